"""``horde worker --check-config``: what is configured, and on request what would be declared for each model server."""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from horde.worker.backends import recognise_backend
from horde.worker.backends.base import BackendError, BackendProfile
from horde.worker.backends.openai_compatible import create_backend_session
from horde.worker.built_in import BuiltInBackendError
from horde.worker.configuration import Configuration, ConfiguredWorker
from horde.worker.daemon import open_configured_backend, operator_limits
from horde.worker.declaration import DeclarationError, build_offer
from horde.worker.schedule import WallClock
from horde.worker.settings import WorkerSettings

__all__ = ["describe", "probe_all"]


def describe(configuration: Configuration, clock: WallClock) -> list[str]:
    """Return lines that say what is configured; no key is among them."""
    workers = configuration.workers
    source = configuration.path or "the environment and the command line"
    lines = [f"{source}: {len(workers)} worker{'' if len(workers) == 1 else 's'}, no problem"]
    for worker in workers:
        settings = worker.settings
        lines += [
            "",
            worker.label or "worker",
            f"  serves   {settings.model or 'the first model'} of {_shown(settings.backend_url)}",
            f"  on       {_shown(settings.horde_url)}",
            f"  key      from {worker.places['api_key']}",
            f"  hours    {_hours(settings, clock)}",
        ]
        limits = {name: getattr(settings, name) for name in ("threads", "context_length", "max_length")}
        told = [f"{name} {value}" for name, value in limits.items() if value is not None]
        told += [f"without {', '.join(settings.exclude)}"] if settings.exclude else []
        lines += [f"  limits   {', '.join(told)}"] if told else []
    return lines


def _shown(url: str) -> str:
    """Return an address without user information."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _hours(settings: WorkerSettings, clock: WallClock) -> str:
    schedule, now = settings.read_schedule(), clock.now()
    if not settings.schedule:
        return "always"
    state, change = ("open", "closes") if schedule.is_open(now) else ("closed", "opens")
    zone = settings.time_zone or "local time"
    return f"{'; '.join(settings.schedule)} ({zone}); now {state}, {change} {schedule.in_words(now)}"


async def probe_all(workers: Sequence[ConfiguredWorker]) -> tuple[list[str], bool]:
    """Look at every model server once, all at the same time.

    Returns:
        Lines that say what was found, and whether each can be offered.
    """
    found = await asyncio.gather(*(_probe(worker) for worker in workers))
    return [line for lines, _ in found for line in lines], all(usable for _, usable in found)


async def _probe(worker: ConfiguredWorker) -> tuple[list[str], bool]:
    lines = ["", f"{worker.label or 'worker'}, as found"]
    try:
        profile = await _look_at(worker.settings)
        offer = build_offer(profile, operator_limits(worker.settings))
    except (BackendError, BuiltInBackendError, DeclarationError) as error:
        return [*lines, f"  {error}"], False
    lines += [f"  {profile.kind}: {finding}" for finding in profile.findings]
    lines.append(
        f"  declares {offer.model}, {offer.threads} threads, prompts up to {offer.limits.max_context_length} and "
        f"replies up to {offer.limits.max_length} tokens, "
        f"{', '.join(sorted(offer.declaration.features)) or 'no features'}"
    )
    return lines, True


async def _look_at(settings: WorkerSettings) -> BackendProfile:
    async with open_configured_backend(settings, asyncio.Event()) as location:
        if location is None:
            raise BuiltInBackendError("The built-in model server was stopped.")
        async with create_backend_session(location) as session:
            return await (await recognise_backend(session, location)).probe()
