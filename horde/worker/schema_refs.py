"""Puts a client's schema into a larger one without breaking its references. Pure."""

from collections.abc import Mapping
from typing import Any

__all__ = ["embed_schema"]


def embed_schema(schema: Mapping[str, Any], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return what stands for a schema inside of a larger one.

    A schema without references is put there as it is. One with references, which count from its root, becomes a
    definition of the larger one, and they are made to count from there.

    Args:
        schema: The client's schema, of bounded nesting (TOO-9, FMT-6).
        name: A name that is free among the definitions.
        definitions: Definitions of the larger schema; added to.
    """
    moved, has_references = _move(schema, f"#/$defs/{name}")
    if not has_references:
        return dict(schema)
    definitions[name] = moved
    return {"$ref": f"#/$defs/{name}"}


def _move(value: Any, root: str) -> tuple[Any, bool]:  # noqa: ANN401 - any JSON value
    """Return a copy whose references count from ``root``, and whether there are any."""
    if isinstance(value, Mapping):
        moved = {key: _move_member(key, member, root) for key, member in value.items()}
        return {key: member for key, (member, _) in moved.items()}, any(found for _, found in moved.values())
    if isinstance(value, list):
        items = [_move(item, root) for item in value]
        return [item for item, _ in items], any(found for _, found in items)
    return value, False


def _move_member(key: str, value: Any, root: str) -> tuple[Any, bool]:  # noqa: ANN401 - any JSON value
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return root + value[1:], True
    return _move(value, root)
