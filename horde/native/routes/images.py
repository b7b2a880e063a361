"""The route that workers fetch pictures from, where the Horde itself keeps them."""

from starlette.requests import Request
from starlette.responses import Response

from horde.native.errors import RefusalError, ReturnCode
from horde.native.http import path_id, state_of
from horde.native.images.store import ImageStoreError

__all__ = ["show_image"]

_HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}


async def show_image(request: Request) -> Response:
    """``GET /api/v2/images/{id}``: a picture, for whoever holds a URL that the Horde signed.

    Raises:
        RefusalError: ``ImageNotFound``: the same for a wrong signature, one that has expired, and a deleted picture.
    """
    images = state_of(request).images
    image = path_id(request, ReturnCode.IMAGE_NOT_FOUND)
    expires, signature = request.query_params.get("expires", ""), request.query_params.get("signature", "")
    if images is None or not images.store.serves or not images.store.is_signed(image, expires, signature):
        raise RefusalError(ReturnCode.IMAGE_NOT_FOUND)
    try:
        return Response(await images.store.read(image), media_type="image/jpeg", headers=_HEADERS)
    except ImageStoreError:
        raise RefusalError(ReturnCode.IMAGE_NOT_FOUND) from None
