"""What a PromQL expression reads: its series, the labels it names for them, and the values it compares them with."""

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser as promql

__all__ = ["Reading", "readings"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One series of an expression.

    Attributes:
        name: The series' name.
        labels: Labels that selectors and groupings around it name.
        values: Label and value of each equality; alternatives of a regular expression are taken apart.
    """

    name: str
    labels: frozenset[str]
    values: tuple[tuple[str, str], ...]


def readings(expression: str) -> list[Reading]:
    """Return what an expression reads.

    Raises:
        ValueError: It is no PromQL.
    """
    return list(_walk(promql.parse(expression), frozenset()))


def _walk(node: object, labels: frozenset[str]) -> Iterator[Reading]:
    if isinstance(node, promql.VectorSelector):
        yield _reading(node, labels)
        return
    grouping = getattr(node, "modifier", None)
    if isinstance(node, promql.AggregateExpr) and grouping is not None:
        labels |= set(grouping.labels)
    for part in ("lhs", "rhs", "expr", "vector_selector", "args"):
        inner = getattr(node, part, None)
        for child in inner if isinstance(inner, list) else [inner]:
            if child is not None:
                yield from _walk(child, labels)


def _reading(selector: promql.VectorSelector, labels: frozenset[str]) -> Reading:
    matchers = list(selector.matchers.matchers)
    values = tuple(
        (matcher.name, value)
        for matcher in matchers
        if matcher.op in (promql.MatchOp.Equal, promql.MatchOp.Re)
        for value in matcher.value.split("|")
    )
    return Reading(selector.name or "", labels | {matcher.name for matcher in matchers}, values)
