"""The way of a picture through the Horde: taken in at submit, stored, handed to a worker, deleted with its request.

No crash loses track of an object: its row is committed before it is written and deleted after it is. What a request
that has ended refers to is deleted, and so are orphans: rows without a request, from a submit that broke off.
"""

import asyncio
import base64
import contextlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self
from uuid import UUID, uuid4

from loguru import logger

from horde.native.db import queries, reads
from horde.native.db.engine import DATABASE_ERRORS, Pool
from horde.native.errors import RefusalError, ReturnCode
from horde.native.images.fetch import FetchError, ImageFetcher
from horde.native.images.pictures import MAX_IMAGES, STORED_BYTES, PictureError, decode_data_url, reencode
from horde.native.images.references import find_references, iter_image_parts, replace_references, with_reference
from horde.native.images.store import ImageStore, ImageStoreError

__all__ = ["ImageKeeper"]

_TAKE_IN_SECONDS: Final = 15.0
"""All images of a request together; shorter than a front waits for its submit."""

_STORE_SECONDS: Final = 10.0
"""Longest time of what one call does with the store."""

_DECODERS: Final = 2
"""Pictures decoded at a time: one of 64 megapixels takes 0.25 (JPEG) to 1 GB (WebP) of memory for a moment."""

_PARALLEL: Final = 4
"""Pictures of one request that are taken in at a time, so that no request keeps others from being served."""

_ORPHAN_SECONDS: Final = 600.0
"""Far longer than a submit takes from storing a picture to giving it to its request."""

_SPARE_SECONDS: Final = 60.0
"""How much longer than its first deadline a job's images can be read."""

_BATCH: Final = 100
_URL_TRANSPORT: Final = "url"


class ImageKeeper:
    """Takes in, hands out and deletes pictures; an async context manager.

    Args:
        pool: The database.
        store: Where pictures are kept.
        fetcher: Fetches those that are given by URL.
        sweep_seconds: How often those no longer needed are looked for.
        take_in_seconds: Longest time that all images of a request may take.
    """

    def __init__(
        self,
        pool: Pool,
        store: ImageStore,
        fetcher: ImageFetcher,
        *,
        sweep_seconds: float,
        take_in_seconds: float = _TAKE_IN_SECONDS,
    ) -> None:
        self.store = store
        self._pool = pool
        self._fetcher = fetcher
        self._sweep_seconds = sweep_seconds
        self._take_in_seconds = take_in_seconds
        self._decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="picture")

    async def __aenter__(self) -> Self:
        """Start nothing: threads are made when they are needed."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Forget pictures that wait to be decoded, and wait for those that are being decoded."""
        await asyncio.to_thread(self._decoders.shutdown, cancel_futures=True)

    async def take_in(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], dict[UUID, bytes]]:
        """Return messages that refer to their pictures, and the pictures as they are to be stored.

        Raises:
            RefusalError: ``BadRequest``: there are too many, or one cannot be had or decoded. The message opens with
                the part's path.
        """
        urls = {(place, part): value["image_url"]["url"] for place, part, value in iter_image_parts(messages)}
        if len(urls) > MAX_IMAGES:
            path = _path(list(urls)[MAX_IMAGES])
            raise RefusalError(
                ReturnCode.BAD_REQUEST, f"'{path}' is one image more than the {MAX_IMAGES} of a request."
            )
        slots, share = asyncio.Semaphore(_PARALLEL), STORED_BYTES // max(1, len(urls))
        try:
            async with asyncio.timeout(self._take_in_seconds), asyncio.TaskGroup() as group:
                taken = {
                    place: group.create_task(self._take_one(slots, _path(place), url, share), name="native - image")
                    for place, url in urls.items()
                }
        except* RefusalError as errors:
            raise _first(errors) from None
        except* TimeoutError:
            raise RefusalError(
                ReturnCode.BAD_REQUEST,
                f"'messages' holds images that could not be fetched and decoded within {self._take_in_seconds:.0f} s.",
            ) from None
        images = {place: uuid4() for place in urls}
        return _refer(messages, images), {images[place]: task.result() for place, task in taken.items()}

    async def _take_one(self, slots: asyncio.Semaphore, path: str, url: str, max_bytes: int) -> bytes:
        """Return the picture at a URL as it is to be stored."""
        loop = asyncio.get_running_loop()
        async with slots:
            try:
                if url[:5].lower() == "data:":
                    data = await loop.run_in_executor(self._decoders, decode_data_url, url)
                else:
                    data = await self._fetcher.fetch(url)
                return await loop.run_in_executor(self._decoders, reencode, data, max_bytes)
            except (FetchError, PictureError) as error:
                raise RefusalError(ReturnCode.BAD_REQUEST, f"'{path}' {error}.") from None

    async def keep(self, pictures: Mapping[UUID, bytes]) -> None:
        """Store pictures, for the submit to give to its request.

        Raises:
            RefusalError: ``ChatImageStorageUnavailable``; what was stored is an orphan.
        """
        if not pictures:
            return
        await self._pool.execute(queries.ADD_IMAGES, list(pictures))
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                for image, data in pictures.items():
                    await self.store.put(image, data)
        except (ImageStoreError, TimeoutError) as error:
            logger.warning("An image could not be stored ({})", type(error.__cause__ or error).__name__)
            raise RefusalError(ReturnCode.CHAT_IMAGE_STORAGE_UNAVAILABLE) from None

    async def discard(self, pictures: Collection[UUID]) -> None:
        """Delete pictures that were stored for a submit which then was refused; what fails is left to the sweeper."""
        if not pictures:
            return
        with contextlib.suppress(ImageStoreError, TimeoutError, *DATABASE_ERRORS):
            async with asyncio.timeout(_STORE_SECONDS):
                await self.store.delete(pictures)
                await self._pool.execute(queries.PURGE_IMAGES, list(pictures))

    async def hand_out(
        self, payload: bytes, job_id: UUID, seconds: float, transports: Collection[str], base_url: str
    ) -> bytes:
        """Return a job's payload with its pictures in the place of what refers to them (IMG-9).

        Args:
            payload: The stored payload.
            job_id: The job; only its own request's pictures are handed out.
            seconds: How long the worker has for the job.
            transports: How it receives images; ``url`` is preferred.
            base_url: The Horde's address as the worker reaches it.

        Raises:
            RefusalError: ``ChatImageStorageUnavailable``; the job goes back as one whose answer was lost does.
        """
        wanted = find_references(payload)
        if not wanted:
            return payload
        rows = await self._pool.fetch(reads.READ_IMAGES, wanted, job_id)
        urls: dict[UUID, str] = {}
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                for row in rows:
                    urls[row["id"]] = await self._url(row["id"], transports, seconds + _SPARE_SECONDS, base_url)
        except (ImageStoreError, TimeoutError) as error:
            logger.warning("An image could not be handed out ({})", type(error.__cause__ or error).__name__)
            raise RefusalError(ReturnCode.CHAT_IMAGE_STORAGE_UNAVAILABLE) from None
        return replace_references(payload, urls)

    async def _url(self, image: UUID, transports: Collection[str], seconds: float, base_url: str) -> str:
        if _URL_TRANSPORT in transports:
            return await self.store.sign(image, seconds, base_url)
        return "data:image/jpeg;base64," + base64.b64encode(await self.store.read(image)).decode()

    async def run(self) -> None:
        """Delete what is no longer needed, again and again; runs until it is cancelled."""
        while True:
            try:
                await self._sweep_all()
            except DATABASE_ERRORS as error:
                logger.warning("Old images could not be looked for ({})", type(error).__name__)
            await asyncio.sleep(self._sweep_seconds)

    async def _sweep_all(self) -> None:
        try:
            while await self.sweep() == _BATCH:
                pass
        except ImageStoreError as error:
            logger.warning("Old images could not be deleted ({})", type(error.__cause__ or error).__name__)

    async def sweep(self) -> int:
        """Delete pictures of requests that have ended, and orphans; at most a hundred. Return how many.

        Raises:
            ImageStoreError: The store failed; their rows stay.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(queries.FIND_OLD_IMAGES, _ORPHAN_SECONDS, _BATCH)
            images = [row["id"] for row in rows]
            try:
                async with asyncio.timeout(_STORE_SECONDS):
                    await self.store.delete(images)
            except TimeoutError as error:
                raise ImageStoreError from error
            await connection.execute(queries.PURGE_IMAGES, images)
        return len(images)


def _first(errors: ExceptionGroup[RefusalError]) -> RefusalError:
    error: BaseException = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, RefusalError) else RefusalError(ReturnCode.BAD_REQUEST)


def _path(place: tuple[int, int]) -> str:
    return "messages[{}].content[{}].image_url".format(*place)


def _refer(messages: Sequence[Mapping[str, Any]], images: Mapping[tuple[int, int], UUID]) -> list[Mapping[str, Any]]:
    referring: list[Mapping[str, Any]] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            referring.append(message)
            continue
        parts = [
            with_reference(part, images[index, number]) if (index, number) in images else part
            for number, part in enumerate(content)
        ]
        referring.append({**message, "content": parts})
    return referring
