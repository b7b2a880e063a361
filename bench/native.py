"""The native Horde under load: what a pop, a submit and a status cost with a short and a long queue, and whole jobs/s.

Run: ``.venv/bin/python -m bench.native``. PostgreSQL, Valkey and the Horde run as in production, each as processes of
its own; the callers are this process. ``--quick`` is a small run that only shows that it works.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import aiohttp
import psutil
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature, ChatGuarantee
from rich.console import Console
from rich.table import Table

from horde.local.ports import LOOPBACK
from horde.local.postgres import LocalPostgres
from horde.local.process import ChildProcess, Command, wait_until_ready
from horde.local.valkey import LocalValkey
from horde.native.db.engine import migrate, open_pool
from horde.server import bind_socket
from tests.support.filled_queue import fill_queue
from tests.support.native_server import Caller, declaration

DECLARABLE = sorted({*ChatFeature, *ChatGuarantee} - {ChatFeature.VISION})
OWN_MODEL = "bench/model"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        waiting: Lengths of the queue, each with a Horde of its own.
        workers: Workers online.
        models: Models over which both are spread.
        calls: Calls of each kind for one row.
        jobs: Whole jobs for one row.
        callers: How many call at once while whole jobs are counted.
    """

    waiting: Sequence[int] = (1_000, 10_000, 100_000)
    workers: int = 5_000
    models: int = 20
    calls: int = 500
    jobs: int = 2_000
    callers: int = 32


@dataclass(frozen=True, slots=True)
class Horde:
    """A running Horde: its processes, and callers of each."""

    processes: Sequence[ChildProcess]
    urls: Sequence[str]
    postgres_pid: int


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children."""
    process = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)) if each.is_running())


def milliseconds(samples: Sequence[float]) -> tuple[str, str]:
    """Return the median and the 99th percentile of durations in seconds, as text."""
    return f"{statistics.median(samples) * 1000:.1f}", f"{statistics.quantiles(samples, n=100)[98] * 1000:.1f}"


@contextlib.asynccontextmanager
async def running_horde(folder: Path, processes: int, *, waiting: int, size: Size) -> AsyncIterator[Horde]:
    """Run a Horde with a queue of this length.

    Args:
        folder: Where its data and logs go.
        processes: How many native processes serve it.
        waiting: Requests in the queue.
        size: Workers and models.
    """
    async with LocalPostgres(folder / "postgres") as postgres, LocalValkey(folder / "valkey") as valkey:
        url = await postgres.create_database("horde")
        await asyncio.to_thread(migrate, url)
        async with open_pool(url, size=1, timeout_seconds=120) as pool, pool.acquire() as connection:
            await fill_queue(
                connection,
                requests=waiting,
                workers=size.workers,
                models=size.models,
                features=[*DECLARABLE],
                body=b'{"messages":[{"role":"user","content":"Hello"}]}',
            )
            await connection.execute("UPDATE accounts SET balance = 1000000000 WHERE kind = 'user'")
        children: list[ChildProcess] = []
        urls: list[str] = []
        try:
            for number in range(processes):
                with bind_socket(LOOPBACK, 0) as listener:
                    children.append(_start(folder / f"native-{number}.txt", url, valkey.url, listener.fileno()))
                    urls.append(f"http://{LOOPBACK}:{listener.getsockname()[1]}/api")
                await wait_until_ready(children[-1], _answers(urls[-1]), seconds=30)
            yield Horde(children, urls, postgres.process.pid)
        finally:
            for child in children:
                await child.stop()


def _start(log: Path, database_url: str, redis_url: str, descriptor: int) -> ChildProcess:
    environment = {
        **os.environ,
        "HORDE_NATIVE_DATABASE_URL": database_url,
        "HORDE_NATIVE_REDIS_URL": redis_url,
        "HORDE_NATIVE_LISTEN_FD": str(descriptor),
        "HORDE_NATIVE_LOG_LEVEL": "WARNING",
    }
    command = Command(
        argv=[sys.executable, "-m", "horde.native"],
        log_path=log,
        folder=Path.cwd(),
        environment=environment,
        inherited=(descriptor,),
    )
    return ChildProcess.start(log.stem, command)


def _answers(url: str) -> Callable[[], Awaitable[bool]]:
    async def is_there() -> bool:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{url}/v2/status/heartbeat") as answer:
                return answer.ok
        except aiohttp.ClientError:
            return False

    return is_there


def varied_declaration(number: int, models: int) -> dict[str, object]:
    """Return a pop of a worker that has some features, and limits of its own, as in a mixed crowd."""
    features = {feature for place, feature in enumerate(DECLARABLE) if (number // models >> place % 8) & 1}
    limits = {"max_length": 64 << number % 7, "max_context_length": 1024 << number % 6}
    worker = declaration(f"filled/model-{number % models}", without=set(DECLARABLE) - features, **limits)
    return {"name": f"bench-{number}", "declared": worker}


async def time_calls(horde: Horde, size: Size, table: Table, waiting: int) -> None:
    """Add the row of one queue: each kind of call alone, one after the other."""
    async with aiohttp.ClientSession() as http:
        caller = Caller(http, horde.urls[0], "filled-0")
        pops: list[float] = []
        empty = 0
        for number in range(size.calls):
            body = varied_declaration(number * 7, size.models)
            began = time.perf_counter()
            answer = await caller.pop(**body)
            pops.append(time.perf_counter() - began)
            assert answer.status == HTTPStatus.OK, answer
            empty += answer.body["id"] is None
        submits, statuses = [], []
        for number in range(size.calls):
            began = time.perf_counter()
            request_id = await caller.submit_id(models=[f"filled/model-{number % size.models}"])
            submits.append(time.perf_counter() - began)
            began = time.perf_counter()
            await caller.status(request_id)
            statuses.append(time.perf_counter() - began)
    found = f"{1 - empty / size.calls:.0%}"
    table.add_row(f"{waiting:,}", *milliseconds(pops), found, *milliseconds(submits), *milliseconds(statuses))


async def count_jobs(horde: Horde, size: Size, table: Table, name: str) -> None:
    """Add the row of whole jobs: submit, pop, reply and status by callers that work at once."""
    numbers = itertools.count()
    before = [cpu_seconds(child.pid) for child in horde.processes], cpu_seconds(horde.postgres_pid)
    own = time.process_time()
    began = time.perf_counter()

    async def work(caller: Caller, worker: str) -> None:
        while next(numbers) < size.jobs:
            request_id = await caller.submit_id(models=[OWN_MODEL])
            job = await caller.pop_job(name=worker, declared=declaration(OWN_MODEL))
            await caller.reply(job)
            await caller.status(request_id)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        callers = [Caller(http, horde.urls[number % len(horde.urls)], "filled-0") for number in range(size.callers)]
        for number, caller in enumerate(callers):
            await caller.come_online(name=f"own-{number}", declared=declaration(OWN_MODEL))
        async with asyncio.TaskGroup() as group:
            for number, caller in enumerate(callers):
                group.create_task(work(caller, f"own-{number}"))
    seconds = time.perf_counter() - began
    spent = [
        sum(cpu_seconds(child.pid) for child in horde.processes) - sum(before[0]),
        cpu_seconds(horde.postgres_pid) - before[1],
        time.process_time() - own,
    ]
    table.add_row(name, f"{size.jobs / seconds:.0f}", *(f"{each / size.jobs * 1000:.2f}" for each in spent))


async def run(size: Size) -> None:
    """Measure everything and print it."""
    console = Console()
    calls = Table("waiting", title=f"One call at a time, {size.workers:,} workers, {size.models} models; ms")
    for name in ("pop p50", "pop p99", "got a job", "submit p50", "submit p99", "status p50", "status p99"):
        calls.add_column(name, justify="right")
    jobs = Table("Horde", title=f"{size.jobs:,} whole jobs by {size.callers} callers at once")
    for name in ("jobs/s", "CPU ms Horde", "CPU ms PostgreSQL", "CPU ms callers"):
        jobs.add_column(name, justify="right")
    for waiting in size.waiting:
        with tempfile.TemporaryDirectory(prefix="horde-bench-") as folder:
            async with running_horde(Path(folder), 1, waiting=waiting, size=size) as horde:
                await time_calls(horde, size, calls, waiting)
                await count_jobs(horde, size, jobs, f"1 process, {waiting:,} waiting")
    with tempfile.TemporaryDirectory(prefix="horde-bench-") as folder:
        async with running_horde(Path(folder), 2, waiting=size.waiting[0], size=size) as horde:
            await count_jobs(horde, size, jobs, f"2 processes, {size.waiting[0]:,} waiting")
    console.print(calls)
    console.print(jobs)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run that only shows that it works")
    quick = parser.parse_args().quick
    asyncio.run(run(Size((100, 1000), 100, 4, 40, 60, 4) if quick else Size()))


if __name__ == "__main__":
    main()
