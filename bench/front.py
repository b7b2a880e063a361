"""The front's speed against a Horde that answers at once, beside plain reverse proxies in the same run.

Run: ``.venv/bin/python -m bench.front``; ``--quick`` is a small run that only shows that it works. Front and proxies
run in turn on one core, each a process; stub, Valkey and clients on the others. Processor time is the process's own,
from ``/proc``, so that what else runs on the machine disturbs it little.
"""

import argparse
import asyncio
import itertools
import platform
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from bench.front_load import Load, Results, close_all, open_streams, run_requests
from bench.front_stub import CHUNK_SECONDS, CHUNKS, KEEPALIVE_SECONDS, Kind
from bench.front_targets import (
    AIOHTTP,
    FRONT,
    NGINX,
    Backend,
    Reading,
    Target,
    has_nginx,
    raise_file_limit,
    running,
    running_backend,
)

PARTS: Final = ("requests", "relayed", "waiting", "live", "telemetry")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        requests: For one row of whole requests.
        clients: Clients that send them at once.
        paced: Relayed streams of 20 chunks for one row.
        paced_clients: How many of these run at once.
        waiting: Numbers of waiting streams, each with a process of its own.
        watch_seconds: How long these are watched.
        live: Streams relayed at once.
    """

    requests: int = 4_000
    clients: int = 32
    paced: int = 600
    paced_clients: int = 100
    waiting: Sequence[int] = (1_000, 5_000, 10_000)
    watch_seconds: float = 30.0
    live: int = 1_000


QUICK: Final = Size(200, 8, 20, 10, (50,), 6.0, 20)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a target spent on some requests."""

    results: Results
    before: Reading
    after: Reading

    @property
    def cpu(self) -> float:
        """Seconds of processor time."""
        return self.after.cpu - self.before.cpu

    @property
    def seconds(self) -> float:
        """Seconds that passed."""
        return self.after.at - self.before.at

    @property
    def cpu_milliseconds_each(self) -> float:
        """Milliseconds of processor time for one request."""
        return self.cpu * 1000 / max(1, self.results.done)


def percentile(samples: Sequence[float], share: int) -> float:
    """Return a percentile of some samples, 0 when there are too few."""
    return statistics.quantiles(samples, n=100)[share - 1] if len(samples) > 1 else 0.0


def make_table(title: str, *columns: str) -> Table:
    """Return a table with one column of text and the others of figures."""
    table = Table("what", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


async def measure(target: Target, load: Load, *, count: int, clients: int) -> Cost:
    """Warm the target up, then send the requests."""
    await run_requests(load, count=min(count, 3 * clients), clients=clients)
    before = target.read()
    results = await run_requests(load, count=count, clients=clients)
    return Cost(results, before, target.read())


async def compare_requests(backend: Backend, size: Size, names: Sequence[str]) -> Table:
    """Measure whole requests, and streams whose reply is there at once."""
    table = make_table(
        f"Requests of {size.clients} clients at once", "CPU ms each", "requests/s per core", "ratio", "failed"
    )
    shapes = (
        ("whole, reply after a signal (3 native calls)", Kind.WHOLE, False),
        ("whole, reply at the first read (2 native calls)", Kind.NOW, False),
        ("streamed, reply after a signal (3 native calls)", Kind.WHOLE, True),
    )
    costs: dict[tuple[str, int], Cost] = {}
    for name in names:
        async with running(name, backend) as target:
            for number, (_, kind, streamed) in enumerate(shapes):
                load = Load(target.port, kind, streamed)
                costs[name, number] = await measure(target, load, count=size.requests, clients=size.clients)
    for number, (title, _, _) in enumerate(shapes):
        base = costs[AIOHTTP, number].cpu_milliseconds_each
        for name in names:
            cost = costs[name, number]
            each = cost.cpu_milliseconds_each
            rate = f"{1000 / each:,.0f}" if each else "-"
            table.add_row(f"{name}: {title}", f"{each:.2f}", rate, f"{each / base:.1f}", str(cost.results.failed))
    return table


async def compare_relayed(backend: Backend, size: Size, names: Sequence[str]) -> Table:
    """Measure relayed streams: what each costs, and what is added to the time of its first text."""
    table = make_table(
        f"Streams of {CHUNKS} chunks, {CHUNK_SECONDS * 1000:.0f} ms apart, {size.paced_clients} at once",
        *("CPU ms each", "ratio", "chunks each", "first token + ms p50", "p99", "each chunk + ms p50", "p99", "failed"),
    )
    costs: dict[str, Cost] = {}
    for name in names:
        async with running(name, backend) as target:
            load = Load(target.port, Kind.PACED, streamed=True)
            costs[name] = await measure(target, load, count=size.paced, clients=size.paced_clients)
    for name, cost in costs.items():
        results = cost.results
        table.add_row(
            name,
            f"{cost.cpu_milliseconds_each:.2f}",
            f"{cost.cpu_milliseconds_each / costs[AIOHTTP].cpu_milliseconds_each:.1f}",
            f"{results.chunks / max(1, results.done):.1f}",
            *(f"{percentile(results.first, share) * 1000:.1f}" for share in (50, 99)),
            *(f"{percentile(results.posts, share) * 1000:.1f}" for share in (50, 99)),
            str(results.failed),
        )
    return table


async def compare_waiting(backend: Backend, size: Size, names: Sequence[str]) -> Table:
    """Measure streams that wait in the queue: memory, processor, and how late their comments are."""
    table = make_table(
        f"Streams that wait, watched for {size.watch_seconds:.0f} s",
        *("RSS KiB each", "ratio", "CPU % of a core per 1,000", "ratio", "CPU % in all", "comment late ms p99"),
        *("opened/s", "open"),
    )
    for count in size.waiting:
        rows: dict[str, Waiting] = {}
        for name in names:
            async with running(name, backend) as target:
                rows[name] = await _hold(target, count, size.watch_seconds)
        base = rows[AIOHTTP]
        for name, row in rows.items():
            table.add_row(
                f"{name}: {count:,}",
                f"{row.kibibytes:.1f}",
                f"{row.kibibytes / base.kibibytes:.1f}" if base.kibibytes else "-",
                f"{row.cpu_share * 100_000 / count:.2f}",
                f"{row.cpu_share / base.cpu_share:.1f}" if base.cpu_share else "-",
                f"{row.cpu_share * 100:.1f}",
                f"{row.late_milliseconds:.0f}",
                f"{row.opened_per_second:,.0f}",
                f"{row.open:,}",
            )
    return table


@dataclass(frozen=True, slots=True)
class Waiting:
    """What some waiting streams cost; ``cpu_share`` is of one core, ``open`` those still open at the end."""

    kibibytes: float
    cpu_share: float
    late_milliseconds: float
    opened_per_second: float
    open: int


async def _hold(target: Target, count: int, seconds: float) -> Waiting:
    await run_requests(Load(target.port, Kind.WHOLE, streamed=True), count=200, clients=8)
    results = Results()
    before = target.read()
    connections = await open_streams(Load(target.port, Kind.WAIT, streamed=True), results, count=count)
    opened = target.read()
    await asyncio.sleep(KEEPALIVE_SECONDS)  # What opening left to do is done, and each has had its first comment.
    began = target.read()
    await asyncio.sleep(seconds)
    ended = target.read()
    still_open = sum(not connection.ended.done() for connection in connections)
    gaps = [
        later - earlier - KEEPALIVE_SECONDS
        for times in results.comments
        for earlier, later in itertools.pairwise(times)
    ]
    await close_all(connections)
    return Waiting(
        kibibytes=(ended.rss - before.rss) / 1024 / count,
        cpu_share=(ended.cpu - began.cpu) / (ended.at - began.at),
        late_milliseconds=percentile(gaps, 99) * 1000,
        opened_per_second=count / (opened.at - before.at),
        open=still_open,
    )


async def compare_live(backend: Backend, size: Size, names: Sequence[str]) -> Table:
    """Measure streams relayed at once, a post a second each."""
    table = make_table(
        f"{size.live:,} streams relayed at once, a post a second each",
        *("CPU % of a core", "ratio", "chunks/s", "post + ms p50", "p99", "whole", "failed"),
    )
    costs: dict[str, Cost] = {}
    for name in names:
        async with running(name, backend) as target:
            await run_requests(Load(target.port, Kind.WHOLE, streamed=True), count=200, clients=8)
            results = Results()
            connections = await open_streams(Load(target.port, Kind.LIVE, streamed=True), results, count=size.live)
            before = target.read()
            await asyncio.gather(*(connection.ended for connection in connections), return_exceptions=True)
            costs[name] = Cost(results, before, target.read())
            await close_all(connections)
    for name, cost in costs.items():
        share = cost.cpu / cost.seconds
        base = costs[AIOHTTP].cpu / costs[AIOHTTP].seconds
        table.add_row(
            name,
            f"{share * 100:.0f}",
            f"{share / base:.1f}" if base else "-",
            f"{cost.results.chunks / cost.seconds:,.0f}",
            *(f"{percentile(cost.results.posts, share) * 1000:.1f}" for share in (50, 99)),
            str(cost.results.done),
            str(cost.results.failed),
        )
    return table


async def compare_telemetry(backend: Backend, size: Size, _names: Sequence[str]) -> Table:
    """Measure what exporting telemetry to a collector adds to the front."""
    table = make_table(
        "What telemetry adds to the front", "whole: CPU ms each", "ratio", "relayed: CPU ms each", "ratio", "failed"
    )
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{backend.port}"}
    variants: Mapping[str, Mapping[str, str]] = {
        "off": {},
        "scraped": {"HORDE_OAI_METRICS_PORT": "0"},
        "on, 5 % of traces": endpoint | {"OTEL_TRACES_SAMPLER_ARG": "0.05"},
        "on, every trace": endpoint | {"OTEL_TRACES_SAMPLER_ARG": "1.0"},
    }
    base: tuple[float, float] | None = None
    for title, more in variants.items():
        async with running(FRONT, backend, more) as target:
            whole = await measure(
                target, Load(target.port, Kind.WHOLE, streamed=False), count=size.requests, clients=size.clients
            )
            relayed = await measure(
                target, Load(target.port, Kind.PACED, streamed=True), count=size.paced, clients=size.paced_clients
            )
        each = whole.cpu_milliseconds_each, relayed.cpu_milliseconds_each
        base = base or each
        failed = whole.results.failed + relayed.results.failed
        table.add_row(
            title,
            *(f"{each[0]:.2f}", f"{each[0] / base[0]:.2f}", f"{each[1]:.2f}", f"{each[1] / base[1]:.2f}"),
            str(failed),
        )
    return table


async def run(size: Size, parts: Sequence[str]) -> None:
    """Measure and print, part by part."""
    raise_file_limit()
    console = Console(width=160)
    cores = psutil.cpu_count()
    console.print(f"{cores} cores, Python {platform.python_version()}, {platform.system()}")
    names = [FRONT, AIOHTTP, *([NGINX] if has_nginx() else [])]
    comparisons = {
        "requests": compare_requests,
        "relayed": compare_relayed,
        "waiting": compare_waiting,
        "live": compare_live,
        "telemetry": compare_telemetry,
    }
    with tempfile.TemporaryDirectory(prefix="horde-bench-") as folder:
        async with running_backend(Path(folder)) as backend:
            for part in parts:
                console.print(await comparisons[part](backend, size, names))


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run that only shows that it works")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part only; may be repeated")
    arguments = parser.parse_args()
    uvloop.run(run(QUICK if arguments.quick else Size(), arguments.only or PARTS))


if __name__ == "__main__":
    main()
