"""How the command line tells what it found: a table for people, JSON for programs."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["show_rows", "tell"]

_CENTS: Final = frozenset({"kudos", "held"})
"""Columns of hundredths, shown as kudos."""


def show_rows(rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Write rows as a table, or as a JSON list.

    Args:
        rows: What was found, all with the same columns.
        as_json: Whether a program reads it.
    """
    plain = [{name: _value(name, value) for name, value in row.items()} for row in rows]
    if as_json:
        _write_json(plain)
        return
    table = Table(*(plain[0] if plain else ()))
    for row in plain:
        table.add_row(*(Text("" if value is None else str(value)) for value in row.values()))
    Console().print(table if plain else "nothing", soft_wrap=True)


def tell(fact: Mapping[str, Any], sentence: str, *, as_json: bool) -> None:
    """Write what was done: a sentence, or the fact as a JSON object."""
    if as_json:
        _write_json(fact)
    else:
        Console().print(Text(sentence), soft_wrap=True)


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - a column of any type
    if name in _CENTS:
        return value / 100
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return value if value is None or isinstance(value, int | float | bool) else str(value)


def _write_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    Console().print(orjson.dumps(document).decode(), markup=False, highlight=False, soft_wrap=True)
