"""Two fronts as programs behind a real proxy with the configuration that is shipped."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from tests.support.scripted_horde import ScriptedHorde
from tests.support.waiting import wait_until

__all__ = ["PROXIES", "Replica", "Replicas", "running_replicas", "shipped_configuration"]

ROOT: Final = Path(__file__).resolve().parents[2]

PROXIES: Final[Mapping[str, Path]] = {
    "haproxy": ROOT / "deploy/haproxy/haproxy.cfg",
    "nginx": ROOT / "deploy/nginx/horde-front.conf",
}
"""The shipped configuration of each."""

_NGINX_MAIN: Final = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/horde-front.conf;
}}
"""


def shipped_configuration(proxy: str, port: int, fronts: Sequence[int]) -> str:
    """Return the shipped configuration with other addresses in the lines marked CHANGE, and nothing else changed.

    Args:
        proxy: ``haproxy`` or ``nginx``.
        port: Where the proxy listens.
        fronts: Where the two fronts listen.
    """
    lines = []
    for line in PROXIES[proxy].read_text().splitlines():
        setting, marked, note = line.partition("# CHANGE")
        if marked:
            setting = re.sub(r"(bind|listen) :?80\b", rf"\1 127.0.0.1:{port}", setting)
            setting = setting.replace("10.0.0.11:8000", f"127.0.0.1:{fronts[0]}")
            setting = setting.replace("10.0.0.12:8000", f"127.0.0.1:{fronts[1]}")
        lines.append(setting + marked + note)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Replica:
    """One front.

    Attributes:
        name: The first part of the path under which it calls the Horde.
        port: Where it listens.
        process: The program.
    """

    name: str
    port: int
    process: asyncio.subprocess.Process


@dataclass(frozen=True, slots=True)
class Replicas:
    """The fronts and the proxy before them.

    Attributes:
        url: The proxy's address.
        fronts: The fronts.
        horde: The Horde behind them.
    """

    url: str
    fronts: tuple[Replica, Replica]
    horde: ScriptedHorde

    def submits(self, front: Replica) -> int:
        """Return how many requests a front has submitted."""
        return len(self.horde.of("POST", f"/{front.name}/api/"))

    def serving(self) -> Replica:
        """Return the front that has the one request there is."""
        (front,) = [front for front in self.fronts if self.submits(front)]
        return front


@asynccontextmanager
async def _running(command: Sequence[str], log: Path, **options: object) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **options,  # type: ignore[arg-type]
        )
    try:
        yield process
    finally:
        # With nginx's workers, which outlive their master. A front that is told to stop would go on accepting for its
        # time; nobody waits for that here.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def _front(name: str, horde: ScriptedHorde, folder: Path, settings: Mapping[str, str]) -> AsyncIterator[Replica]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HORDE_", "OTEL_"))}
    async with AsyncExitStack() as held:
        # Ours is closed once the program has its own: when that dies, connections are refused.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            environment |= {
                "HORDE_OAI_LISTEN_FD": str(listener.fileno()),
                "HORDE_OAI_HORDE_URLS": horde.url.replace("/api", f"/{name}/api"),
                "HORDE_OAI_TRUSTED_PROXIES": "127.0.0.1",
                **settings,
            }
            command = [sys.executable, "-m", "horde.oai"]
            running = _running(command, folder / f"{name}.log", env=environment, pass_fds=[listener.fileno()])
            process = await held.enter_async_context(running)
        yield Replica(name, port, process)


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@asynccontextmanager
async def running_replicas(
    proxy: str, horde: ScriptedHorde, folder: Path, settings: Mapping[str, str]
) -> AsyncIterator[Replicas]:
    """Run two fronts and a proxy.

    Args:
        proxy: ``haproxy`` or ``nginx``; its program has to be on the path.
        horde: The Horde behind the fronts.
        folder: For configuration and logs.
        settings: ``HORDE_OAI_*`` of both fronts, other than the defaults.
    """
    async with AsyncExitStack() as held:
        session = await held.enter_async_context(aiohttp.ClientSession())
        fronts = [
            await held.enter_async_context(_front(name, horde, folder, settings)) for name in ("front1", "front2")
        ]
        for front in fronts:
            await _wait_ready(session, f"http://127.0.0.1:{front.port}", front.process)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        configuration = shipped_configuration(proxy, port, [front.port for front in fronts])
        command = _write_configuration(proxy, configuration, folder)
        process = await held.enter_async_context(_running(command, folder / f"{proxy}.out"))
        url = f"http://127.0.0.1:{port}"
        await _wait_ready(session, url, process)
        yield Replicas(url, (fronts[0], fronts[1]), horde)


def _write_configuration(proxy: str, configuration: str, folder: Path) -> list[str]:
    (folder / PROXIES[proxy].name).write_text(configuration)
    if proxy == "haproxy":
        return ["haproxy", "-db", "-f", str(folder / PROXIES[proxy].name)]
    (folder / "nginx.conf").write_text(_NGINX_MAIN.format(folder=folder))
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


async def _wait_ready(session: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> None:
    async def is_ready() -> bool:
        assert process.returncode is None, "the program ended; see its log in the test's folder"
        return await _is_ready(session, url)

    await wait_until(is_ready, description=f"{url} to be ready", seconds=60, interval_seconds=0.05)
