"""The Horde as an application: its parts, their life-cycle, its routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, TypedDict

from loguru import logger
from starlette.applications import Starlette
from starlette.routing import Route

from horde.client_address import ClientAddresses
from horde.native import api_document
from horde.native.db import reads
from horde.native.db.engine import Pool, open_pool
from horde.native.held_pops import HeldPops, listen_for_wakes
from horde.native.http import EXCEPTION_HANDLERS
from horde.native.images.fetch import ImageFetcher
from horde.native.images.keeper import ImageKeeper
from horde.native.images.store import IMAGE_PATH, open_image_store
from horde.native.moderation import Moderator, PromptFilter, load_patterns
from horde.native.moderation_service import ModerationService
from horde.native.publish import Publisher, create_redis
from horde.native.rate_limits import CallLimiter
from horde.native.routes import chat, images, jobs, models, status, users, workers
from horde.native.settings import NativeSettings
from horde.native.snapshot import QueueKeeper
from horde.native.state import NativeState
from horde.native.sweeper import Sweeper
from horde.native.users import UserDirectory

__all__ = ["NativeState", "create_app"]


_IMAGE_SWEEPS: Final = 5
"""Sweeps of leases between two of images: those can wait."""


class _Shared(TypedDict):
    native: NativeState


@contextlib.asynccontextmanager
async def open_state(
    settings: NativeSettings, stopping: asyncio.Event, on_failure: Callable[[], object] | None = None
) -> AsyncIterator[NativeState]:
    """Connect and start what runs in the background; stop and close it in the reverse order.

    A background task that dies stops the process: it would not be a Horde without it.
    """
    url = settings.database_url.get_secret_value()
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            open_pool(url, size=settings.database_pool_size, timeout_seconds=settings.database_timeout_seconds)
        )
        redis = create_redis(settings.redis_url.get_secret_value()) if settings.redis_url else None
        if redis is not None:
            stack.push_async_callback(redis.aclose)
        images = await stack.enter_async_context(_open_images(settings, pool))
        state = NativeState(
            images=images,
            settings=settings,
            pool=pool,
            redis=redis,
            publisher=Publisher(redis),
            held_pops=HeldPops(),
            queue=QueueKeeper(pool, redis, settings.snapshot_seconds),
            users=UserDirectory(pool),
            stopping=stopping,
            limiter=CallLimiter(settings, redis),
            moderators=await stack.enter_async_context(_open_moderators(settings)),
            addresses=ClientAddresses(settings.trusted_fronts),
        )
        state.metrics.observe(lambda: state.queue.view.loads, lambda: len(state.held_pops))
        await state.queue.refresh()
        await stack.enter_async_context(_background(state, on_failure))
        yield state


@contextlib.asynccontextmanager
async def _open_images(settings: NativeSettings, pool: Pool) -> AsyncIterator[ImageKeeper | None]:
    if not settings.image_store:
        yield None
        return
    store = open_image_store(settings.image_store, await pool.fetchval(reads.READ_SHARED_KEY, "image_urls"))
    async with (
        ImageFetcher(settings.image_networks) as fetcher,
        ImageKeeper(pool, store, fetcher, sweep_seconds=_IMAGE_SWEEPS * settings.sweep_seconds) as keeper,
    ):
        yield keeper


@contextlib.asynccontextmanager
async def _open_moderators(settings: NativeSettings) -> AsyncIterator[tuple[Moderator, ...]]:
    """Return what looks at prompts: the operator's patterns, which cost nothing, before the service."""
    seconds, fails_open = settings.moderation_seconds, settings.moderation_fails_open
    moderators: list[Moderator] = []
    if settings.moderation_patterns_file is not None:
        patterns = load_patterns(settings.moderation_patterns_file)
        moderators.append(PromptFilter(patterns, seconds=seconds, fails_open=fails_open))
    async with contextlib.AsyncExitStack() as stack:
        if settings.moderation_url is not None:
            service = ModerationService(
                settings.moderation_url,
                api_key=settings.moderation_api_key,
                model=settings.moderation_model,
                seconds=seconds,
                max_bytes=settings.moderation_max_bytes,
                fails_open=fails_open,
            )
            moderators.append(await stack.enter_async_context(service))
        yield tuple(moderators)


@contextlib.asynccontextmanager
async def _background(state: NativeState, on_failure: Callable[[], object] | None) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(state.queue.run(), name="native - queue keeper"),
            group.create_task(Sweeper(state).run(), name="native - sweeper"),
            group.create_task(_release_pops(state), name="native - pop release"),
        ]
        if state.images is not None:
            tasks.append(group.create_task(state.images.run(), name="native - image sweeper"))
        if state.redis is not None:
            wakes = listen_for_wakes(state.redis, state.held_pops)
            tasks.append(group.create_task(wakes, name="native - wake listener"))
            tasks.append(group.create_task(state.publisher.run(), name="native - missed signals"))
        for task in tasks:
            task.add_done_callback(partial(_stop_when_failed, state.stopping, on_failure))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def _stop_when_failed(
    stopping: asyncio.Event, on_failure: Callable[[], object] | None, task: asyncio.Task[None]
) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.opt(exception=error).critical("The task '{}' failed; the Horde stops", task.get_name())
        if on_failure is not None:
            on_failure()
        stopping.set()


async def _release_pops(state: NativeState) -> None:
    """Answer every held pop empty when the process is told to stop, so that none delays its end."""
    await state.stopping.wait()
    state.held_pops.wake_all()


ROUTES: Final = (
    Route("/api/v2/generate/chat", chat.submit, methods=["POST"]),
    Route("/api/v2/generate/chat/status/{id}", chat.status, methods=["GET"]),
    Route("/api/v2/generate/chat/status/{id}", chat.cancel, methods=["DELETE"]),
    Route("/api/v2/generate/chat/operation/{id}", chat.cancel_by_operation, methods=["DELETE"]),
    Route("/api/v2/generate/chat/progress", jobs.progress, methods=["POST"]),
    Route("/api/v2/generate/text/pop", jobs.pop, methods=["POST"]),
    Route("/api/v2/generate/text/submit", jobs.submit, methods=["POST"]),
    Route(IMAGE_PATH + "{id}", images.show_image, methods=["GET"]),
    Route("/api/v2/status/models", models.list_models, methods=["GET"]),
    Route("/api/v2/status/performance", status.performance, methods=["GET"]),
    Route("/api/v2/status/heartbeat", status.heartbeat, methods=["GET"]),
    Route("/api/v2/find_user", users.find_user, methods=["GET"]),
    Route("/api/v2/workers", workers.list_workers, methods=["GET"]),
    Route("/api/v2/workers/{id}", workers.show_worker, methods=["GET"]),
    Route("/api/v2/workers/{id}", workers.change_worker, methods=["PUT"]),
    Route("/healthz", status.health, methods=["GET"]),
    Route("/readyz", status.ready, methods=["GET"]),
    Route("/openapi.json", api_document.openapi_json, methods=["GET"]),
    Route("/docs", api_document.docs_page, methods=["GET"]),
    Route("/docs/{name}", api_document.docs_file, methods=["GET"]),
)
"""Every path the Horde serves."""


def create_app(
    settings: NativeSettings,
    *,
    stopping: asyncio.Event | None = None,
    on_failure: Callable[[], object] | None = None,
) -> Starlette:
    """Return the application.

    Args:
        settings: The settings.
        stopping: Set when the process is told to stop; shared with the server.
        on_failure: Called when the process stops because a part of it failed.

    The database has to have the newest schema: the program brings it there before it serves.
    """
    told = stopping or asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[_Shared]:
        async with open_state(settings, told, on_failure) as state:
            yield {"native": state}

    return Starlette(routes=ROUTES, lifespan=lifespan, exception_handlers=dict(EXCEPTION_HANDLERS))
