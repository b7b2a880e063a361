"""Gets a job's pictures from the Horde, and from nowhere else: the worker runs inside somebody's own network."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import aiohttp

from horde.worker.origins import origin_of
from horde.worker.pictures import PictureError, picture_urls, replace_pictures, to_data_url

__all__ = ["PictureFetcher"]

_MAX_BYTES: Final = 10 * 1024 * 1024
"""A Horde takes no larger picture."""

_MAX_PICTURES: Final = 64
_FETCH_SECONDS: Final = 30.0
"""For all pictures of a job."""

_CONNECT_SECONDS: Final = 5.0
_AT_A_TIME: Final = 4


class PictureFetcher:
    """Replaces the URLs of a job's pictures by the pictures.

    What is fetched is bounded in size, number and time. No redirect is followed, no key and no cookie is sent. A URL at
    the Horde's host is asked for at the Horde's own address, whatever scheme and port it names: a Horde behind a proxy
    may not know its own.

    Args:
        horde_url: Address of the Horde.
        origins: Further origins that the operator allows: a bucket in which the Horde keeps its pictures.
    """

    def __init__(self, horde_url: str, origins: Iterable[str] = ()) -> None:
        self._horde = urlsplit(horde_url)
        self._origins = frozenset(origin_of(origin) for origin in origins)

    async def fetch(self, messages: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        """Return the messages with every picture as data.

        Raises:
            PictureError: A picture cannot be had from where it may be had, or is none.
        """
        urls = picture_urls(messages)
        if len(urls) > _MAX_PICTURES:
            raise PictureError("The job has more pictures than a Horde takes.")
        wanted = {url: self._address(url) for url in urls if not url.startswith("data:")}
        data = await self._fetch_all(wanted) if wanted else {}
        return replace_pictures(messages, [data.get(url, url) for url in urls])

    def _address(self, url: str) -> str:
        """Return where a picture is asked for.

        Raises:
            PictureError: It is neither the Horde's nor the operator's choice.
        """
        try:
            address, origin = urlsplit(url), origin_of(url)
        except ValueError as error:
            raise PictureError("A picture's URL is malformed.") from error
        if address.hostname == self._horde.hostname:
            return _at(address, self._horde)
        if origin in self._origins:
            return _at(address, urlsplit(origin))
        raise PictureError(
            f"A picture is at {origin}, which is not the Horde: nothing is fetched from there unless"
            " HORDE_WORKER_PICTURE_ORIGINS names it."
        )

    async def _fetch_all(self, wanted: Mapping[str, str]) -> dict[str, str]:
        slots = asyncio.Semaphore(_AT_A_TIME)
        timeout = aiohttp.ClientTimeout(total=_FETCH_SECONDS, sock_connect=_CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            try:
                async with asyncio.timeout(_FETCH_SECONDS), asyncio.TaskGroup() as group:
                    tasks = {
                        url: group.create_task(_fetch(session, slots, address), name="worker - picture")
                        for url, address in wanted.items()
                    }
            except* PictureError as errors:
                raise _first(errors) from None
            except* TimeoutError:
                raise PictureError("The Horde did not hand out a picture in time.") from None
        return {url: task.result() for url, task in tasks.items()}


def _at(address: SplitResult, place: SplitResult) -> str:
    return address._replace(scheme=place.scheme, netloc=place.netloc.rpartition("@")[2], fragment="").geturl()


async def _fetch(session: aiohttp.ClientSession, slots: asyncio.Semaphore, url: str) -> str:
    async with slots:
        try:
            async with session.get(url, allow_redirects=False) as response:
                if response.status != 200:  # noqa: PLR2004 - the one status that has a picture
                    raise PictureError(f"The Horde answered with HTTP {response.status} for a picture.")
                data = await _read_bounded(response)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise PictureError(f"A picture could not be fetched ({type(error).__name__}).") from error
    return await asyncio.to_thread(to_data_url, data)


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > _MAX_BYTES:
            response.close()
            raise PictureError("A picture is larger than 10 MiB.")
    return bytes(data)


def _first(errors: ExceptionGroup[PictureError]) -> PictureError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
