"""How much structure decoded JSON has, measured level by level: without recursion, each container looked at once."""

__all__ = ["exceeds_depth"]


def exceeds_depth(value: object, levels: int, *, values: int | None = None) -> bool:
    """Return whether decoded JSON nests more than a number of levels, or holds more values than allowed.

    Args:
        value: Any JSON value.
        levels: Objects and arrays inside one another that are allowed.
        values: Members of all objects and items of all arrays that are allowed together; None for any number. A level
            with too many is not looked into.
    """
    containers = [value] if type(value) is dict or type(value) is list else []
    left = values
    for _ in range(levels):
        if not containers:
            return False
        if left is not None:
            left -= sum(map(len, containers))
            if left < 0:
                return True
        # On the path of every request: exact types are twice as fast to tell as isinstance, and JSON has no others.
        containers = [
            inner
            for container in containers
            for inner in (container.values() if type(container) is dict else container)
            if type(inner) is dict or type(inner) is list
        ]
    return bool(containers)
