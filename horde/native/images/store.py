"""Where pictures are kept while their request lives: a local folder, or an S3-compatible bucket (IMG-6, IMG-10).

A worker gets a URL that is signed and expires: the bucket's own, or one of the Horde's that serves the local folder.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

__all__ = ["IMAGE_PATH", "ImageStore", "ImageStoreError", "open_image_store"]

IMAGE_PATH: Final = "/api/v2/images/"
"""Where the Horde serves the pictures of a local store; the image's id follows."""


class ImageStoreError(Exception):
    """The store cannot be used at present."""


class ImageStore:
    """Pictures by id.

    Args:
        place: A folder, made when the first picture is stored, or a bucket.
        secret: Signs the URLs of a folder's pictures; the same in all processes of a Horde.
        clock: Seconds since the epoch.
    """

    def __init__(self, place: Path | S3Store, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._place = place
        self._folder: LocalStore | None = None
        self._secret = secret
        self._clock = clock

    @property
    def serves(self) -> bool:
        """Whether the Horde itself serves the pictures."""
        return isinstance(self._place, Path)

    def _open(self) -> LocalStore | S3Store:
        if not isinstance(self._place, Path):
            return self._place
        if self._folder is None:
            self._place.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder = LocalStore(self._place)
        return self._folder

    async def put(self, image: UUID, data: bytes) -> None:
        """Store a picture.

        Raises:
            ImageStoreError: The store failed.
        """
        try:
            await obstore.put_async(self._open(), _path(image), data)
        except (BaseError, OSError) as error:
            raise ImageStoreError from error

    async def read(self, image: UUID) -> bytes:
        """Return a picture.

        Raises:
            ImageStoreError: It is not there, or the store failed.
        """
        try:
            answer = await obstore.get_async(self._open(), _path(image))
            return bytes(await answer.bytes_async())
        except (BaseError, OSError) as error:
            raise ImageStoreError from error

    async def delete(self, images: Iterable[UUID]) -> None:
        """Delete pictures; those that are gone already are no error.

        Raises:
            ImageStoreError: The store failed.
        """
        paths = [_path(image) for image in images]
        # A bucket deletes many in one call and knows no missing ones; in a folder one that is missing ends the call.
        calls = [[path] for path in paths] if self.serves else [paths]
        for call in filter(None, calls):
            try:
                await obstore.delete_async(self._open(), call)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise ImageStoreError from error

    async def sign(self, image: UUID, seconds: float, base_url: str) -> str:
        """Return a URL under which a picture can be read for so many seconds.

        Args:
            image: The picture.
            seconds: How long it can be read.
            base_url: The Horde's own address, as the worker reaches it; not used by a bucket.

        Raises:
            ImageStoreError: The store failed.
        """
        if isinstance(self._place, Path):
            expires = int(self._clock() + seconds)
            signature = self._signature(image, expires)
            return f"{base_url.rstrip('/')}{IMAGE_PATH}{image}?expires={expires}&signature={signature}"
        try:
            return await obstore.sign_async(self._place, "GET", _path(image), timedelta(seconds=seconds))
        except (BaseError, OSError) as error:
            raise ImageStoreError from error

    def is_signed(self, image: UUID, expires: str, signature: str) -> bool:
        """Say whether a URL was signed by this Horde and has not expired."""
        if not expires.isascii() or not expires.isdecimal() or not signature.isascii():
            return False
        # Compared before the moment is looked at: only what the Horde wrote itself is read as a number.
        if not hmac.compare_digest(self._signature(image, expires), signature):
            return False
        return int(expires) >= self._clock()

    def _signature(self, image: UUID, expires: int | str) -> str:
        return hmac.new(self._secret, f"{image}\n{expires}".encode(), hashlib.sha256).hexdigest()


def _path(image: UUID) -> str:
    return f"chat/{image}.jpg"


def open_image_store(location: str, secret: bytes) -> ImageStore:
    """Return the store at a location.

    Args:
        location: ``s3://bucket/prefix``, whose credentials and endpoint are read from ``AWS_*`` variables, or a folder.
        secret: Signs the URLs of a folder's pictures.
    """
    if location.startswith("s3://"):
        return ImageStore(S3Store.from_url(location), secret)
    return ImageStore(Path(location).expanduser().absolute(), secret)
