"""How deep decoded JSON nests, measured level by level: without recursion, and each container looked at once."""

__all__ = ["exceeds_depth"]


def exceeds_depth(value: object, levels: int) -> bool:
    """Return whether decoded JSON nests more than a number of levels.

    Args:
        value: Any JSON value.
        levels: Objects and arrays inside one another that are allowed.
    """
    containers = [value] if type(value) is dict or type(value) is list else []
    for _ in range(levels):
        if not containers:
            return False
        # On the path of every request: exact types are twice as fast to tell as isinstance, and JSON has no others.
        containers = [
            inner
            for container in containers
            for inner in (container.values() if type(container) is dict else container)  # type: ignore[attr-defined] # a list
            if type(inner) is dict or type(inner) is list
        ]
    return bool(containers)
