"""The page at ``/docs`` that shows a service's OpenAPI document: useful without a content delivery network.

Its files come from the package that carries them; a service answers them below ``/docs/`` and the document at
``/openapi.json``.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["PAGE_TYPE", "api_page", "read_page_file"]

PAGE_TYPE: Final = "text/html; charset=utf-8"

_FILES: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
}

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="ui">The page needs JavaScript; the document itself is at <a href="openapi.json">openapi.json</a>.</div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({{url: "openapi.json", dom_id: "#ui", deepLinking: true, tryItOutEnabled: true}});</script>
</body>
</html>
"""


def api_page(title: str) -> bytes:
    """Return the page; ``title`` is plain text of ours."""
    return _PAGE.format(title=title).encode()


@cache
def _folder() -> Path | None:
    # Found without importing the package, which brings a web framework's helpers with it.
    spec = importlib.util.find_spec("swagger_ui")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "static"


def read_page_file(name: str) -> tuple[str, bytes] | None:
    """Return type and content of one of the page's two files, or None for any other name."""
    folder = _folder()
    path = folder / name if folder is not None and name in _FILES else None
    return (_FILES[name], path.read_bytes()) if path is not None and path.is_file() else None
