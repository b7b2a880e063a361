"""Many clients of a whole Horde on this machine, and what became of each of their requests.

Run: ``.venv/bin/python -m tests.stress.chat_scale_demo --clients 50 --requests 1000 --chaos worker``.

PostgreSQL, Valkey, native Horde, front and workers run as programs of their own; the model server answers each question
with words made of it. A request is delivered when its client got exactly its reply, and refused when it got a clear
error: a status with OpenAI's envelope, or an error event. Any other end is a loss, and so is a delivered request
without its finished line in the front's log. It is duplicated when the Horde's database or that log holds it twice. The
program ends with 1 when anything was lost or duplicated, or when the Horde still has a request open at the end.
"""

import argparse
import asyncio
import contextlib
import re
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from rich.console import Console

from horde.local.postgres import LocalPostgres
from horde.local.valkey import LocalValkey
from tests.stress.echo_model import reply_to
from tests.stress.parts import Parts, running_parts
from tests.support.waiting import wait_until

__all__ = ["CHAOS", "FinishedLine", "Report", "ScaleOptions", "main", "read_finished_lines", "run_scale"]

FINISHED_LINE: Final = re.compile(
    r"Chat request (?P<id>\S+) finished: streamed=(?P<streamed>True|False) submitted_at=(?P<submitted_at>\S+)"
    r" woke_at=(?P<woke_at>\S+) woke_by=(?P<woke_by>\S+) waited=(?P<waited>[\d.]+|none)s"
)
"""The front's finished line up to ``waited``, whose form is fixed (LOG-7)."""

_QUESTION: Final = re.compile(rb"question-[0-9a-f]{32}")
_REQUEST_SECONDS: Final = 180.0
_SETTLE_SECONDS: Final = 60.0
_MAX_RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class FinishedLine:
    """What a finished line says.

    Attributes:
        request_id: The Horde's id.
        woke_by: What caused the read that found it finished.
        waited_seconds: From the submit to that read.
    """

    request_id: str
    woke_by: str
    waited_seconds: float


def read_finished_lines(lines: Iterable[str]) -> list[FinishedLine]:
    """Return the finished lines of submitted requests in a log of the front."""
    found = filter(None, map(FINISHED_LINE.search, lines))
    return [
        FinishedLine(match["id"], match["woke_by"], 0.0 if match["waited"] == "none" else float(match["waited"]))
        for match in found
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    """What to run.

    Attributes:
        clients: Clients at once, each with one request open at a time.
        requests: Requests of all of them together.
        streams: Share of the requests that are streamed, 0 to 1.
        workers: Workers.
        threads: Jobs each serves at a time.
        word_seconds: Pace of the replies.
        chaos: What is done to the parts when a third of the requests have ended; a key of :data:`CHAOS`.
        pause_seconds: For how long the stream store stands still where that is done to it.
    """

    clients: int = 50
    requests: int = 1000
    streams: float = 0.5
    workers: int = 2
    threads: int = 8
    word_seconds: float = 0.02
    chaos: str = "none"
    pause_seconds: float = 10.0


CHAOS: Final[dict[str, Callable[[Parts, ScaleOptions], Awaitable[None]]]] = {
    "worker": lambda parts, _: parts.restart("worker-0", kill=True),
    "front": lambda parts, _: parts.restart("front", kill=False),
    "native": lambda parts, _: parts.restart("native", kill=True),
    "store": lambda parts, _: parts.restart_store(),
    "store-paused": lambda parts, options: parts.pause_store(options.pause_seconds),
}
"""Kill a worker, the native Horde, the stream store; restart the front by its stop signal; pause the stream store."""


@dataclass(slots=True)
class Report:
    """What became of the requests.

    Attributes:
        delivered: Clients that got exactly their reply.
        refused: Clients that got a clear error, by its code.
        lost: What happened to each request that had neither.
        duplicated: Questions or requests that exist twice.
        left_open: Requests that the Horde still had at the end.
        reconnected: Connections that ended before any answer, and were made again.
        waits: Seconds each delivered request waited, by the front's log.
        seconds: Time of the whole.
    """

    delivered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    left_open: int = 0
    reconnected: int = 0
    waits: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, duplicated or left behind."""
        return not (self.lost or self.duplicated or self.left_open)

    def lines(self) -> list[str]:
        """Return the report as text."""
        waits = sorted(self.waits) or [0.0]
        median, late = statistics.median(waits), waits[int(0.99 * (len(waits) - 1))]
        rate = self.delivered / self.seconds if self.seconds else 0.0
        return [
            f"delivered   {self.delivered} ({rate:.1f}/s; waited p50 {median:.2f} s, p99 {late:.2f} s)",
            f"refused     {self.refused.total()} {dict(self.refused) if self.refused else ''}".rstrip(),
            f"lost        {len(self.lost)}",
            *(f"            {each}" for each in self.lost[:10]),
            f"duplicated  {len(self.duplicated)}",
            *(f"            {each}" for each in self.duplicated[:10]),
            f"left open   {self.left_open}",
            f"reconnected {self.reconnected}",
        ]


class _Run:
    """One run over started parts."""

    def __init__(self, parts: Parts, options: ScaleOptions) -> None:
        self._parts = parts
        self._options = options
        self._report = Report()
        self._left = options.requests
        self._ended = 0
        self._chaos_due = asyncio.Event()
        self._delivered_ids: list[str] = []

    async def run(self) -> Report:
        began = time.monotonic()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
            for number in range(self._options.clients):
                group.create_task(self._client(session), name=f"client {number}")
            if chaos := CHAOS.get(self._options.chaos):
                group.create_task(self._disturb(chaos), name="chaos")
        self._report.seconds = time.monotonic() - began
        await self._count()
        return self._report

    async def _disturb(self, chaos: Callable[[Parts, ScaleOptions], Awaitable[None]]) -> None:
        await self._chaos_due.wait()
        await chaos(self._parts, self._options)

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while self._left > 0:
            self._left -= 1
            streamed = self._left < self._options.requests * self._options.streams
            question = f"question-{uuid.uuid4().hex}"
            try:
                await self._ask_again(session, question, streamed=streamed)
            except (aiohttp.ClientError, TimeoutError) as error:
                self._report.lost.append(f"{question}: {type(error).__name__}: {error}")
            self._ended += 1
            if self._ended >= self._options.requests // 3:
                self._chaos_due.set()

    async def _ask_again(self, session: aiohttp.ClientSession, question: str, *, streamed: bool) -> None:
        """Ask; a connection that ended before any answer is made again, as every client library does.

        A server that stops closes connections on which a request may be under way to it. Had it taken that request in,
        the second one would show among the duplicated.
        """
        for _ in range(_MAX_RETRIES):
            try:
                return await self._ask(session, question, streamed=streamed)
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                self._report.reconnected += 1
        return await self._ask(session, question, streamed=streamed)

    async def _ask(self, session: aiohttp.ClientSession, question: str, *, streamed: bool) -> None:
        body = {
            "model": self._parts.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 256,
            "stream": streamed,
        }
        headers = {"Authorization": f"Bearer {self._parts.api_key}"}
        async with session.post(f"{self._parts.front_url}/v1/chat/completions", json=body, headers=headers) as response:
            data = await response.read()
            request_id = response.headers.get("x-request-id", "")
            is_stream = response.content_type == "text/event-stream"
        text, code = _read_stream(data) if is_stream else _read_whole(response.status, data)
        if code is not None:
            self._report.refused[code] += 1
        elif text == reply_to(question):
            self._report.delivered += 1
            self._delivered_ids.append(request_id)
        else:
            self._report.lost.append(f"{question}: {response.status} {data[-200:]!r}")

    async def _count(self) -> None:
        """Compare with the front's log and the Horde's database."""
        report, pool = self._report, self._parts.pool

        async def nothing_is_open() -> bool:
            open_now = "SELECT count(*) FROM chat_requests WHERE state IN ('waiting', 'processing')"
            report.left_open = await pool.fetchval(open_now)
            return report.left_open == 0

        with contextlib.suppress(AssertionError):
            await wait_until(nothing_is_open, description="the Horde to have nothing open", seconds=_SETTLE_SECONDS)
        # A client has its last byte before the front writes the line.
        lines: list[FinishedLine] = []

        def all_are_logged() -> bool:
            lines[:] = read_finished_lines(self._parts.logs("front"))
            return {line.request_id for line in lines}.issuperset(self._delivered_ids)

        with contextlib.suppress(AssertionError):
            await wait_until(all_are_logged, description="the finished lines", interval_seconds=0.1)
        by_id = Counter(line.request_id for line in lines)
        report.lost += [f"{each}: delivered and not logged" for each in self._delivered_ids if each not in by_id]
        report.duplicated += [f"{each}: finished twice" for each, count in by_id.items() if count > 1]
        delivered = set(self._delivered_ids)
        report.waits = [line.waited_seconds for line in lines if line.request_id in delivered]
        if len(delivered) < len(self._delivered_ids):
            report.duplicated.append("one request was delivered to two clients")
        bodies = await pool.fetch("SELECT body FROM chat_payloads")
        asked = Counter(match[0].decode() for row in bodies if (match := _QUESTION.search(row["body"])))
        report.duplicated += [f"{question}: submitted twice" for question, count in asked.items() if count > 1]


def _read_whole(status: int, data: bytes) -> tuple[str | None, str | None]:
    """Return the text of a reply, or the code of an error."""
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        body = orjson.loads(data)
        if status == 200:
            return body["choices"][0]["message"]["content"], None
        return None, str(body["error"]["code"])
    return None, None


def _read_stream(data: bytes) -> tuple[str | None, str | None]:
    """Return the text of a stream that ended in good order, or the code of its error event."""
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: ")]
    if not lines or lines[-1] != b"[DONE]":
        return None, None
    text, finished = "", False
    for line in lines[:-1]:
        event: dict[str, Any] = orjson.loads(line)
        if "error" in event:
            return None, str(event["error"]["code"])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            finished = finished or choice["finish_reason"] is not None
    return (text if finished else None), None


async def run_scale(options: ScaleOptions, folder: Path, database_url: str, store: LocalValkey) -> Report:
    """Run clients against parts that are started for it.

    Args:
        options: What to run.
        folder: Where the parts log.
        database_url: A database of the run's own.
        store: The stream store.
    """
    pace = options.word_seconds
    async with running_parts(
        folder, database_url, store, workers=options.workers, threads=options.threads, word_seconds=pace
    ) as parts:
        return await _Run(parts, options).run()


async def _run_on_own_servers(options: ScaleOptions) -> Report:
    with tempfile.TemporaryDirectory(prefix="chat-scale-") as name:
        folder = Path(name)
        postgres = LocalPostgres(folder / "postgres", for_tests=True)
        await postgres.start()
        try:
            async with LocalValkey(folder / "valkey") as valkey:
                return await run_scale(options, folder / "logs", postgres.url, valkey)
        finally:
            await postgres.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the report; return 0 when nothing was lost or duplicated.

    Args:
        argv: The command line.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = ScaleOptions()
    parser.add_argument("--clients", type=int, default=defaults.clients, help="clients at once")
    parser.add_argument("--requests", type=int, default=defaults.requests, help="requests of all clients")
    parser.add_argument("--streams", type=float, default=defaults.streams, help="share that is streamed, 0 to 1")
    parser.add_argument("--workers", type=int, default=defaults.workers)
    parser.add_argument("--threads", type=int, default=defaults.threads, help="jobs of one worker at a time")
    parser.add_argument("--word-seconds", type=float, default=defaults.word_seconds, help="pace of the replies")
    parser.add_argument("--chaos", choices=["none", *CHAOS], default=defaults.chaos, help="what is done to it")
    parser.add_argument("--pause-seconds", type=float, default=defaults.pause_seconds, help="of the stream store")
    report = asyncio.run(_run_on_own_servers(ScaleOptions(**vars(parser.parse_args(argv)))))
    console = Console(highlight=False, soft_wrap=True)
    for line in report.lines():
        console.print(line, markup=False)
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
