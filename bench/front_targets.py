"""What the front's benchmark measures, as processes: the front, two plain reverse proxies, the stub behind them all.

What is measured has a core of its own; stub, Valkey and clients share the others.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from horde.local.ports import LOOPBACK, reserved_port
from horde.local.process import ChildProcess, Command, ReadyCheck, wait_until_ready
from horde.local.valkey import LocalValkey
from horde.server import bind_socket

__all__ = [
    "AIOHTTP",
    "FRONT",
    "NGINX",
    "Backend",
    "Reading",
    "Target",
    "has_nginx",
    "raise_file_limit",
    "running",
    "running_backend",
]

FRONT: Final = "front"
AIOHTTP: Final = "aiohttp proxy"
NGINX: Final = "nginx"

_FILES: Final = 65_536
_START_SECONDS: Final = 60
_UNBOUNDED: Final = "100000"

_NGINX_CONFIGURATION: Final = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 60000; }}
http {{
  access_log off;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  upstream stub {{ server 127.0.0.1:{stub}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://stub;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a process had used at one moment.

    Attributes:
        at: Monotonic seconds.
        cpu: Seconds of processor time, from ``/proc/<pid>/stat``.
        rss: Resident bytes.
    """

    at: float
    cpu: float
    rss: int


@dataclass(frozen=True, slots=True)
class Target:
    """One running thing that is measured."""

    name: str
    port: int
    process: ChildProcess

    def read(self) -> Reading:
        """Return what it has used up to now."""
        process = psutil.Process(self.process.pid)
        user, system = process.cpu_times()[:2]
        return Reading(time.monotonic(), user + system, process.memory_info().rss)


@dataclass(frozen=True, slots=True)
class Backend:
    """The stub and its Valkey."""

    port: int
    redis_url: str
    folder: Path


def raise_file_limit() -> None:
    """Allow as many open sockets as ten thousand streams through a proxy take, where that is permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _FILES), max(hard, _FILES)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _cores() -> tuple[set[int], set[int]]:
    """Return the core of what is measured, and those of the rest."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[0]}, set(cores[1:] or cores)


@contextlib.asynccontextmanager
async def running_backend(folder: Path) -> AsyncGenerator[Backend]:
    """Run stub and Valkey, and move this process to their cores."""
    os.sched_setaffinity(0, _cores()[1])
    async with LocalValkey(folder / "valkey") as valkey:
        with bind_socket(LOOPBACK, 0) as listener:
            port = listener.getsockname()[1]
            descriptor = listener.fileno()
            argv = [sys.executable, "-m", "bench.front_stub", str(descriptor)]
            environment = {**os.environ, "BENCH_REDIS_URL": valkey.url}
            stub = _start("stub", argv, folder, environment, descriptor)
        try:
            await wait_until_ready(stub, _accepts(port), seconds=_START_SECONDS)
            yield Backend(port, valkey.url, folder)
        finally:
            await stub.stop(grace_seconds=2)


@contextlib.asynccontextmanager
async def running(name: str, backend: Backend, more: Mapping[str, str] | None = None) -> AsyncGenerator[Target]:
    """Run one of the measured programs on its own core.

    Args:
        name: Which one.
        backend: What it stands before.
        more: Further variables of the environment.
    """
    with contextlib.ExitStack() as held:
        if name == NGINX:
            port = held.enter_context(reserved_port())
            process = _start(name, _nginx_argv(backend, port), backend.folder, {**os.environ})
        else:
            listener = held.enter_context(bind_socket(LOOPBACK, 0))
            port, descriptor = listener.getsockname()[1], listener.fileno()
            upstream = f"http://{LOOPBACK}:{backend.port}"
            proxy = [sys.executable, "-m", "bench.front_proxy", upstream, str(descriptor)]
            argv = [sys.executable, "-m", "horde.oai"] if name == FRONT else proxy
            environment = _front_environment(backend, descriptor) | dict(more or {})
            process = _start(name, argv, backend.folder, environment, descriptor)
        os.sched_setaffinity(process.pid, _cores()[0])
    try:
        await wait_until_ready(process, _accepts(port), seconds=_START_SECONDS)
        yield Target(name, port, process)
    finally:
        process.kill()
        await process.wait()


def has_nginx() -> bool:
    """Whether nginx is installed here."""
    return shutil.which("nginx") is not None


def _start(
    name: str, argv: list[str], folder: Path, environment: Mapping[str, str], descriptor: int | None = None
) -> ChildProcess:
    command = Command(
        argv=argv,
        log_path=folder / f"{name.replace(' ', '-')}.txt",
        folder=Path.cwd(),
        environment=environment,
        inherited=() if descriptor is None else (descriptor,),
    )
    return ChildProcess.start(name, command)


def _nginx_argv(backend: Backend, port: int) -> list[str]:
    path = shutil.which("nginx")
    assert path is not None
    configuration = backend.folder / "nginx.conf"
    configuration.write_text(_NGINX_CONFIGURATION.format(folder=backend.folder, stub=backend.port, port=port))
    return [path, "-c", str(configuration), "-e", str(backend.folder / "nginx-start.txt")]


def _front_environment(backend: Backend, descriptor: int) -> dict[str, str]:
    return {
        **os.environ,
        "HORDE_OAI_HORDE_URLS": f"http://{LOOPBACK}:{backend.port}/api",
        "HORDE_OAI_REDIS_URL": backend.redis_url,
        "HORDE_OAI_LISTEN_FD": str(descriptor),
        "HORDE_OAI_MAX_INFLIGHT": _UNBOUNDED,
        "HORDE_OAI_MAX_INFLIGHT_PER_SOURCE": _UNBOUNDED,
    }


def _accepts(port: int) -> ReadyCheck:
    """Ask for a response: a listening socket that was inherited takes connections before anybody serves them."""

    async def is_there() -> bool:
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            return False
        with contextlib.closing(writer):
            writer.write(b"GET /readyz HTTP/1.1\r\nhost: bench\r\n\r\n")
            try:
                return bool(await reader.read(1))
            except OSError:
                return False

    return is_there
