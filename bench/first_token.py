"""Time to the first token and tokens per second: the whole chain against llama.cpp's own server, same model, same run.

Run: ``.venv/bin/python -m bench.first_token [requests]``. Starts a model server and a whole Horde over it, then asks
both in turn, each question a new one so that no prompt is cached, and stops everything.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from rich.console import Console
from rich.table import Table

from horde.local.console import Terminal
from horde.local.process import ChildProcess, Command, wait_until_ready
from horde.local.start import Running, Start, UpOptions
from horde.local.state import StateFolder
from horde.local.supervisor import Supervisor

MAX_TOKENS = 96
SUBJECTS = (
    "rivers",
    "bridges",
    "winter",
    "bread",
    "maps",
    "clocks",
    "gardens",
    "letters",
    "trains",
    "stones",
    "boats",
    "glass",
)
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
"""What the Horde sends to a worker for a request that says nothing, so that both sides do the same work."""


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server.

    Attributes:
        name: Its name in the table.
        base_url: Up to ``/v1``.
        model: Model id.
        api_key: Key, empty for none.
        more: Further keys of the body.
    """

    name: str
    base_url: str
    model: str
    api_key: str = ""
    more: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One streamed reply: seconds to the first and the last text, tokens as the server counted."""

    first_seconds: float
    last_seconds: float
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens over the whole time, the wait for the first one included."""
        return self.tokens / self.last_seconds


async def measure(http: aiohttp.ClientSession, target: Target, question: str) -> Measurement:
    """Stream one reply and time it."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(target.more or {}),
    }
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    asked = time.perf_counter()
    first = last = 0.0
    tokens = 0
    async with http.post(f"{target.base_url}/chat/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = orjson.loads(line[6:])
            assert "error" not in event, event
            if usage := event.get("usage"):
                tokens = usage["completion_tokens"]
            if any(choice["delta"].get("content") for choice in event["choices"]):
                last = time.perf_counter() - asked
                first = first or last
    return Measurement(first, last, tokens)


async def run(requests: int) -> None:
    """Start everything, measure, print."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="horde-bench-") as folder:
        server = await _start_model_server(Path(folder))
        supervisor = Supervisor(lambda _name, _seconds: None)
        backend = f"{server.last_log_lines(1)[0].strip()}/v1"
        options = UpOptions(
            state_dir=Path(folder) / "state", front_port=0, native_port=0, backend_url=backend, sample=False
        )
        try:
            with StateFolder(options.state_dir) as state, Terminal().steps() as steps:
                async with supervisor:
                    running = await Start(options, state, supervisor, steps).run()
                    await _compare(console, backend, running, requests)
        finally:
            await server.stop(grace_seconds=5)


async def _start_model_server(folder: Path) -> ChildProcess:
    argv = [sys.executable, "-m", "horde.local.model_server", "--port", "0"]
    command = Command(argv=argv, log_path=folder / "model_server.txt", folder=Path.cwd())
    server = ChildProcess.start("model server", command)

    async def has_printed() -> bool:
        return any(line.startswith("http") for line in server.last_log_lines(1))

    await wait_until_ready(server, has_printed, seconds=60)
    return server


async def _compare(console: Console, backend: str, running: Running, requests: int) -> None:
    direct = Target("llama.cpp's server, directly", backend, running.model, more=SAMPLING)
    chain = Target("through front, Horde and worker", running.base_url, running.model, running.api_key)
    samples: dict[str, list[Measurement]] = {direct.name: [], chain.name: []}
    # A connection each: llama.cpp closes idle ones while the other side is measured.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        for target in (direct, chain):
            await measure(http, target, "Say hello.")  # Warm: connections, caches, the first import.
        for number in range(requests):
            subject = SUBJECTS[number % len(SUBJECTS)]
            for target in (direct, chain) if number % 2 else (chain, direct):
                question = f"{number} {target.name[:2]}. Write five sentences about {subject}."
                samples[target.name].append(await measure(http, target, question))
    _print(console, samples, direct.name, requests)


def _print(console: Console, samples: Mapping[str, list[Measurement]], base_name: str, requests: int) -> None:
    table = Table(
        "what", "first token ms, median", "added ms", "tokens/s, median", "ratio", title=f"{requests} replies each"
    )
    base = samples[base_name]
    base_first = statistics.median(each.first_seconds for each in base)
    base_rate = statistics.median(each.tokens_per_second for each in base)
    for name, measured in samples.items():
        first = statistics.median(each.first_seconds for each in measured)
        rate = statistics.median(each.tokens_per_second for each in measured)
        added = (first - base_first) * 1000
        table.add_row(name, f"{first * 1000:.0f}", f"{added:+.0f}", f"{rate:.1f}", f"{rate / base_rate:.2f}")
    console.print(table)


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else 12))
