"""The queue as it was a moment ago: positions, waits, loads, and why workers were passed over (NAT-7, FFA-12).

Counting the queue for each status read would cost more than serving it, so it is counted about every two seconds, by
one process where there is Redis and by each for itself where there is none. A request reads position 0 until it is in
a snapshot.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import orjson
from loguru import logger
from redis.asyncio import Redis
from redis.exceptions import RedisError

from horde.chat_contract import CHAT_QUEUE_KEY
from horde.native.db import reads
from horde.native.db.engine import DATABASE_ERRORS, Pool
from horde.native.eligibility import RequestNeeds, WorkerFacts, passed_over_causes
from horde.native.keys import SNAPSHOT_TURN_KEY

__all__ = ["ModelLoad", "QueueKeeper", "QueueView", "Waiting", "count_queue"]

_DEFAULT_SPEED: Final = 10.0
"""Tokens a second of a thread nobody has measured."""

_MAX_ROWS: Final = 200_000
"""Rows of the queue that are counted; what waits behind them reads position 0."""

_MAX_SHAPES: Final = 1000
"""Different kinds of waiting requests that a pop is told about; the commonest."""

_VERSION: Final = 1
"""Shape of a shared count: it changes with the shape."""

_KEEP_SECONDS: Final = 10
_REDIS_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What waits and runs for a model.

    Attributes:
        queued: Requests waiting for it.
        queued_tokens: Reply tokens they ask for.
        running: Jobs running.
        threads: Threads of its online workers.
        speed: Measured tokens a second of one of them.
    """

    queued: int = 0
    queued_tokens: int = 0
    running: int = 0
    threads: int = 0
    speed: float = _DEFAULT_SPEED


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where a request is in the queue.

    Attributes:
        position: Place among the requests of its models, from 1.
        tokens_ahead: Reply tokens of all requests before it.
    """

    position: int
    tokens_ahead: int


@dataclass(frozen=True, slots=True)
class QueueView:
    """One snapshot; empty before the first.

    Attributes:
        waiting: Every waiting request, by id.
        loads: What waits and runs, by model.
        shapes: Kinds of waiting requests and how many there are of each.
    """

    waiting: Mapping[UUID, Waiting] = field(default_factory=dict)
    loads: Mapping[str, ModelLoad] = field(default_factory=dict)
    shapes: Sequence[tuple[RequestNeeds, int]] = ()

    def position(self, request_id: UUID) -> int:
        """Return a request's place, 0 when it is not in the snapshot."""
        found = self.waiting.get(request_id)
        return found.position if found else 0

    def wait_seconds(self, request_id: UUID) -> int:
        """Return the estimated wait of a request: what is ahead of it by what the whole Horde writes a second."""
        found = self.waiting.get(request_id)
        if found is None:
            return 0
        throughput = sum(load.threads * load.speed for load in self.loads.values())
        return round(found.tokens_ahead / max(throughput, _DEFAULT_SPEED))

    def load(self, model: str) -> ModelLoad:
        """Return what waits and runs for a model."""
        return self.loads.get(model, _IDLE)

    def jobs(self, models: Iterable[str]) -> int:
        """Return how many requests wait or run for any of these models."""
        return sum(self.load(model).queued + self.load(model).running for model in set(models))

    def skipped(self, worker: WorkerFacts) -> dict[str, int]:
        """Return how many waiting requests a worker was passed over for, by cause."""
        causes: Counter[str] = Counter()
        for needs, count in self.shapes:
            for cause in passed_over_causes(worker, needs):
                causes[cause] += count
        return dict(causes)


_IDLE: Final = ModelLoad()


def count_queue(counts: Mapping[str, Any]) -> QueueView:
    """Return the view of a queue that was read from the database or from Redis.

    Args:
        counts: ``queue``: ``[request id, models, max_length, shape]`` in the order of service; ``shapes``: fields of
            needs; ``running``: jobs by model; ``speeds``: ``[threads, speed or null]`` by model.
    """
    waiting: dict[UUID, Waiting] = {}
    queued: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    kinds: Counter[int] = Counter()
    ahead = 0
    for request_id, models, max_length, shape in counts["queue"]:
        for model in models:
            queued[model] += 1
            tokens[model] += max_length
        kinds[shape] += 1
        waiting[UUID(request_id)] = Waiting(min(queued[model] for model in models), ahead)
        ahead += max_length
    running: Mapping[str, int] = counts["running"]
    speeds: Mapping[str, Sequence[Any]] = counts["speeds"]
    loads = {
        model: ModelLoad(
            queued[model],
            tokens[model],
            running.get(model, 0),
            speeds[model][0] if model in speeds else 0,
            (speeds[model][1] if model in speeds else None) or _DEFAULT_SPEED,
        )
        for model in {*queued, *running, *speeds}
    }
    shapes = [
        (RequestNeeds.from_fields(counts["shapes"][shape]), count) for shape, count in kinds.most_common(_MAX_SHAPES)
    ]
    return QueueView(waiting, loads, shapes)


def _view_of(stored: bytes | str | None) -> QueueView | None:
    """Return the view of a shared count; None when there is none, or none that this version of the Horde can read."""
    if not stored:
        return None
    # Anyone can write there, another version of the Horde too.
    try:
        counts = orjson.loads(stored)
        return count_queue(counts) if counts["version"] == _VERSION else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


class QueueKeeper:
    """Keeps the newest snapshot of this process.

    Args:
        pool: The Horde's database.
        redis: Where processes share one count, or None.
        seconds: Time between two counts.
    """

    def __init__(self, pool: Pool, redis: Redis | None, seconds: float) -> None:
        self._pool = pool
        self._redis = redis
        self._seconds = seconds
        self.view = QueueView()

    async def run(self) -> None:
        """Count again and again; runs until it is cancelled."""
        while True:
            try:
                await self.refresh()
            except DATABASE_ERRORS as error:
                logger.warning("The queue could not be counted ({})", type(error).__name__)
            await asyncio.sleep(self._seconds)

    async def refresh(self) -> None:
        """Take the snapshot that another process counted, or count."""
        view = _view_of(await self._counted_elsewhere())
        if view is None:
            counts = await self._count()
            await self._share(counts)
            view = count_queue(counts)
        self.view = view

    async def _counted_elsewhere(self) -> bytes | str | None:
        """Return another process's count as it is stored, or None when it is this one's turn."""
        if self._redis is None:
            return None
        try:
            async with asyncio.timeout(_REDIS_SECONDS):
                milliseconds = max(1, round(self._seconds * 900))
                if await self._redis.set(SNAPSHOT_TURN_KEY, b"1", nx=True, px=milliseconds):
                    return None
                stored: bytes | str | None = await self._redis.get(CHAT_QUEUE_KEY)
        except (RedisError, OSError, TimeoutError):
            return None
        return stored

    async def _count(self) -> dict[str, Any]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(reads.READ_QUEUE, _MAX_ROWS)
            running = await connection.fetch(reads.READ_RUNNING)
            speeds = await connection.fetch(reads.READ_SPEEDS)
        shapes: dict[bytes, int] = {}
        requests: dict[UUID, list[Any]] = {}
        for row in rows:
            known = requests.get(row["request_id"])
            if known is not None:
                known[1].append(row["model"])
                continue
            requests[row["request_id"]] = [str(row["request_id"]), [row["model"]], row["max_length"], row]
        for request in requests.values():
            fields = orjson.dumps(
                RequestNeeds.from_row(request[3], request[1]).to_fields(), option=orjson.OPT_SORT_KEYS
            )
            request[3] = shapes.setdefault(fields, len(shapes))
        return {
            "version": _VERSION,
            "queue": list(requests.values()),
            "shapes": [orjson.loads(fields) for fields in shapes],
            "running": {row["model"]: row["jobs"] for row in running},
            "speeds": {row["model"]: [row["threads"], row["speed"]] for row in speeds},
        }

    async def _share(self, counts: Mapping[str, Any]) -> None:
        if self._redis is None:
            return
        try:
            async with asyncio.timeout(_REDIS_SECONDS):
                await self._redis.set(CHAT_QUEUE_KEY, orjson.dumps(counts), ex=_KEEP_SECONDS)
        except (RedisError, OSError, TimeoutError):
            return
