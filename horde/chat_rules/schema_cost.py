"""How much a client's JSON Schema may cost whoever checks a reply by it: size with its references expanded, patterns.

A few references to one another, each made twice, cost a validator two to the power of their number, and it holds the
interpreter meanwhile. Real schemas are far from the bounds. Every walk here has an explicit stack and a memory of what
it has seen: it takes time in proportion to the schema's text. Recursion into members and items is counted once, since
how deep it goes is the reply's to say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from horde.chat_rules.violation import ContractViolation

__all__ = [
    "MAX_EXPANDED_NODES",
    "MAX_PATTERNS",
    "MAX_PATTERN_BYTES",
    "find_schema_cost_violation",
    "find_schema_excess",
]

MAX_EXPANDED_NODES: Final = 20_000
"""The most objects and arrays of a schema, each reference counted as what it points to."""

MAX_PATTERNS: Final = 64
"""The most different regular expressions of a schema."""

MAX_PATTERN_BYTES: Final = 512
"""The most UTF-8 bytes of one regular expression."""

_MAX_REQUEST_PATTERNS: Final = 4 * MAX_PATTERNS
"""The most regular expressions of a request's schemas together."""

_MAX_RESOURCES: Final = 64

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_APPLIED_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_APPLIED_SCHEMAS: Final = frozenset({"not", "if", "then", "else"})
_APPLIED_MAPS: Final = frozenset({"dependentSchemas", "dependencies"})
"""Keywords whose subschemas look at the same value as the schema itself does."""

type _Container = dict[str, Any] | list[Any]


@dataclass(slots=True)
class _Survey:
    """What one look at each value of a schema tells: its regular expressions, its size, whether it has references."""

    patterns: set[str] = field(default_factory=set)
    containers: int = 0
    refers: bool = False


@dataclass(slots=True)
class _Graph:
    """A schema's objects and arrays by number, in the order they were met; references are edges like any other.

    Attributes:
        nodes: The containers.
        resource: Of each, the number of the schema that its references start from.
        edges: Of each, what it holds or points to.
        applied: Of each, those of its edges that look at the same value.
        applied_maps: Those whose members all look at the value that their schema looks at.
        pointing: Number of each object with a reference, and the reference.
        anchors: Numbers by the name of an anchor.
        identified: Numbers by the last segment of an ``$id``.
    """

    nodes: list[_Container] = field(default_factory=list)
    resource: list[int] = field(default_factory=list)
    edges: list[list[int]] = field(default_factory=list)
    applied: list[list[int]] = field(default_factory=list)
    applied_maps: set[int] = field(default_factory=set)
    pointing: list[tuple[int, str]] = field(default_factory=list)
    anchors: dict[str, list[int]] = field(default_factory=dict)
    identified: dict[str | None, list[int]] = field(default_factory=dict)

    def add(self, container: _Container, resource: int | None) -> int:
        """Return the number of a new node; without a resource it is one itself."""
        number = len(self.nodes)
        self.nodes.append(container)
        self.resource.append(number if resource is None else resource)
        self.edges.append([])
        self.applied.append([])
        return number


def find_schema_excess(schema: object) -> str | None:
    """Return why a schema is too complex to check replies by, as the end of a sentence, or None.

    Args:
        schema: A JSON Schema as decoded JSON.
    """
    return _excess(schema, _survey(schema))


def find_schema_cost_violation(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return the first schema of a request that is too complex, or None.

    Args:
        body: A body with OpenAI's keys ``tools`` and ``response_format``, validated against their shapes.
    """
    patterns: set[str] = set()
    for param, schema in _schemas(body):
        survey = _survey(schema)
        patterns |= survey.patterns
        excess = _excess(schema, survey)
        if excess is None and len(patterns) > _MAX_REQUEST_PATTERNS:
            excess = f"the schemas of a request may hold at most {_MAX_REQUEST_PATTERNS} patterns together"
        if excess is not None:
            return ContractViolation("UnsupportedChatParameter", param, f"'{param}' is too complex: {excess}.")
    return None


def _schemas(body: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield f"tools[{index}].function.parameters", tool["function"].get("parameters")
    named = (body.get("response_format") or {}).get("json_schema") or {}
    yield "response_format.json_schema.schema", named.get("schema")


def _excess(schema: object, survey: _Survey) -> str | None:
    if len(survey.patterns) > MAX_PATTERNS:
        return f"a schema may hold at most {MAX_PATTERNS} patterns"
    if any(len(pattern.encode()) > MAX_PATTERN_BYTES for pattern in survey.patterns):
        return f"a pattern may take at most {MAX_PATTERN_BYTES} bytes"
    size = survey.containers
    if survey.refers and size <= MAX_EXPANDED_NODES and isinstance(schema, dict):
        graph = _read_graph(schema)
        if sum(map(len, graph.identified.values())) > _MAX_RESOURCES:
            return f"a schema with references may hold at most {_MAX_RESOURCES} schemas with an '$id'"
        size = _size_with_references(graph)
    if size > MAX_EXPANDED_NODES:
        return f"with its references expanded, a schema may hold at most {MAX_EXPANDED_NODES} objects and arrays"
    return None


def _survey(schema: object) -> _Survey:
    survey = _Survey()
    pending = [schema]
    while pending:
        current = pending.pop()
        if isinstance(current, list):
            survey.containers += 1
            pending.extend(current)
        elif isinstance(current, dict):
            survey.containers += 1
            if isinstance(pattern := current.get("pattern"), str):
                survey.patterns.add(pattern)
            if isinstance(named := current.get("patternProperties"), dict):
                survey.patterns.update(named)
            survey.refers = survey.refers or any(keyword in current for keyword in _REFERENCES)
            pending.extend(current.values())
    return survey


def _size_with_references(graph: _Graph) -> int:
    """Return the larger of two sizes: all of the schema, and the most that looks at one value.

    The second has no way back to a schema above itself unless the schema is meaningless, so that nothing in it is
    hidden by counting recursion once.
    """
    _add_references(graph)
    expanded = _expanded_size(graph.edges, [0], cycle_size=1)
    applied = _expanded_size(graph.applied, range(len(graph.nodes)), cycle_size=MAX_EXPANDED_NODES + 1)
    return max(expanded, applied)


def _read_graph(schema: dict[str, Any]) -> _Graph:
    graph = _Graph(identified={"": [0]})  # a schema without an '$id' has an address whose path is empty
    pending = [graph.add(schema, None)]
    while pending:
        number = pending.pop()
        container = graph.nodes[number]
        if isinstance(container, dict):
            _note_names(graph, number, container)
        members = container.items() if isinstance(container, dict) else (("", item) for item in container)
        for keyword, member in members:
            if not isinstance(member, dict | list):
                continue
            inner = graph.add(member, None if _identifier(member) else graph.resource[number])
            graph.edges[number].append(inner)
            if _looks_at_the_same(graph, number, keyword, member):
                graph.applied[number].append(inner)
            if keyword in _APPLIED_MAPS:
                graph.applied_maps.add(inner)
            pending.append(inner)
    return graph


def _identifier(container: _Container) -> str | None:
    """Return the URI that names a schema; ``id`` was the word for it once, and may be anything else today."""
    if not isinstance(container, dict):
        return None
    old = container.get("id") if "draft-04" in str(container.get("$schema", ""))[:64] else None
    name = container.get("$id", old)
    return name if isinstance(name, str) else None


def _note_names(graph: _Graph, number: int, schema: dict[str, Any]) -> None:
    if (uri := _identifier(schema)) is not None:
        graph.identified.setdefault(_last_segment(uri), []).append(number)
        if uri.startswith("#"):
            graph.anchors.setdefault(uri[1:], []).append(number)
    for keyword in _ANCHORS:
        if isinstance(name := schema.get(keyword), str):
            graph.anchors.setdefault(name, []).append(number)
    for keyword in _REFERENCES:
        if isinstance(reference := schema.get(keyword), str):
            graph.pointing.append((number, reference))


def _looks_at_the_same(graph: _Graph, number: int, keyword: str, member: _Container) -> bool:
    if isinstance(graph.nodes[number], list) or number in graph.applied_maps:
        return True
    if isinstance(member, list):
        return keyword in _APPLIED_LISTS
    return keyword in _APPLIED_SCHEMAS or keyword in _APPLIED_MAPS


def _last_segment(uri: str) -> str | None:
    try:
        segment = unquote(urlsplit(uri).path).rpartition("/")[2]
    except ValueError:
        return None
    return "" if segment in {".", ".."} else segment


def _add_references(graph: _Graph) -> None:
    """Add an edge for each reference; one that points to nothing is left to the compiler, which refuses it."""
    numbers = {id(container): number for number, container in enumerate(graph.nodes)}
    for number, reference in graph.pointing:
        uri, _, fragment = reference.partition("#")
        roots = [graph.resource[number]]
        if uri:
            roots = graph.identified.get(_last_segment(uri), [])
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            targets = graph.anchors.get(fragment, [])[:_MAX_RESOURCES]
        else:
            found = (_follow(graph.nodes[root], fragment) for root in roots)
            targets = [numbers[id(target)] for target in found if target is not None]
        graph.edges[number].extend(targets)
        graph.applied[number].extend(targets)


def _follow(root: _Container, pointer: str) -> _Container | None:
    """Return the container that a JSON pointer leads to from a root, or None."""
    current: Any = root
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(current, dict):
            current = current.get(name)
        elif isinstance(current, list) and name.isdecimal() and len(name) < 8 and int(name) < len(current):  # noqa: PLR2004 - digits of any index a body can have
            current = current[int(name)]
        else:
            return None
    return current if isinstance(current, dict | list) else None


def _expanded_size(edges: list[list[int]], starts: range | list[int], *, cycle_size: int) -> int:
    """Return the largest size of a start with everything below it, counted once for each way to it, up to the bound.

    Args:
        edges: Of each node, the nodes below it.
        starts: The nodes to measure.
        cycle_size: What a way back to a node above itself counts.
    """
    sizes = [0] * len(edges)
    steps: list[Iterator[int] | None] = [None] * len(edges)
    for start in starts:
        path = [] if sizes[start] else [start]
        while path:
            number = path[-1]
            if steps[number] is None:
                steps[number] = iter(edges[number])
            below = next((inner for inner in steps[number] or () if steps[inner] is None), None)
            if below is not None:
                path.append(below)
                continue
            path.pop()
            total = 1 + sum(sizes[inner] or cycle_size for inner in edges[number])
            sizes[number] = min(total, MAX_EXPANDED_NODES + 1)
    return max(sizes[start] for start in starts)
