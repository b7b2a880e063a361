"""What lives as long as a process of the Horde; made by the lifespan of :mod:`horde.native.app`."""

import asyncio
from dataclasses import dataclass, field

from redis.asyncio import Redis

from horde.client_address import ClientAddresses
from horde.native.db.engine import Pool
from horde.native.held_pops import HeldPops
from horde.native.images.keeper import ImageKeeper
from horde.native.metrics import NativeMetrics
from horde.native.moderation import Moderator
from horde.native.publish import Publisher
from horde.native.rate_limits import CallLimiter
from horde.native.settings import NativeSettings
from horde.native.snapshot import QueueKeeper
from horde.native.turns import Turns
from horde.native.users import UserDirectory

__all__ = ["NativeState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeState:
    """The parts that calls share.

    Attributes:
        settings: The settings.
        pool: The database.
        redis: Redis, or None.
        publisher: Signals, delta entries and wake-ups.
        held_pops: Pops of this process that wait.
        queue: The newest queue snapshot.
        users: Users by key.
        stopping: Set when the process has been told to stop.
        limiter: Counts calls.
        addresses: Reads whose call it is, behind trusted fronts.
        moderators: The operator's filters of prompts, asked in order.
        metrics: The instruments.
        images: Takes in, stores and hands out pictures, or None where there is no storage.
        turns: Lets copies of one operation through one after the other.
        known_models: Models this process has made known, so that each is written once.
    """

    settings: NativeSettings
    pool: Pool
    redis: Redis | None
    publisher: Publisher
    held_pops: HeldPops
    queue: QueueKeeper
    users: UserDirectory
    stopping: asyncio.Event
    limiter: CallLimiter
    addresses: ClientAddresses = field(default_factory=lambda: ClientAddresses(()))
    moderators: tuple[Moderator, ...] = ()
    metrics: NativeMetrics = field(default_factory=NativeMetrics)
    images: ImageKeeper | None = None
    turns: Turns = field(default_factory=Turns)
    known_models: set[str] = field(default_factory=set)
