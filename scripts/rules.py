"""Bring ``docs/reference/rules.md`` in order: one line for each rule that a test marks, sorted by area and number.

``python scripts/rules.py [FILE …]`` takes lines for rules that the page does not have yet from the files (rows of the
same form), leaves out those that no test marks any more, and prints what it left out and what still has no line.
``tests/test_rules.py`` fails when page and marks differ.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "rules.md"

_ROW: Final = re.compile(r"^\| (?P<id>[A-Z]{2,5}-\d+[a-z]?) \| (?P<sentence>[^|]+) \|$", re.MULTILINE)

_AREAS: Final[Mapping[str, str]] = {
    "GEN": "Service",
    "MAP": "Modules and names",
    "REQ": "Request keys and validation",
    "MSG": "Messages",
    "SMP": "Samplings",
    "HOR": "The `horde` object",
    "RES": "Replies",
    "STR": "Streams",
    "DLT": "Relayed text",
    "DWG": "Done without a reply",
    "DEV": "Deviations from OpenAI",
    "NEW": "No eligible worker",
    "FFA": "Failing fast",
    "KUD": "Kudos",
    "MDL": "Model list",
    "ERR": "Errors",
    "RTY": "Retry guidance",
    "AUT": "Authorization",
    "ATT": "Attribution",
    "CORS": "Browsers",
    "ADM": "Admission",
    "TEL": "Telemetry",
    "SPN": "Spans",
    "MET": "Metrics",
    "LOG": "Finished line",
    "CAN": "Cancels",
    "SUB": "Submits",
    "WAI": "Waiting",
    "SET": "Settings",
    "CTX": "Context",
    "RSN": "Reasoning",
    "IMG": "Images",
    "TOO": "Tools",
    "CNF": "Conformance",
    "FMT": "Structured output",
    "NAT": "Native Horde",
    "WRK": "Workers",
    "DOC": "Documents",
}
"""The areas of the specification in its order; an id starts with its area."""

_HEAD: Final = """\
# Rules

Which statements of the specification a test shows to hold, each in one line. To find the test of a rule, search
`tests/` for its id: the test carries `@pytest.mark.rule("STR-4")`. After adding a mark, add the line here and run
`scripts/rules.py`, which sorts the page and reports what is missing.
"""


def read_rules(text: str) -> list[tuple[str, str]]:
    """Return id and sentence of each row of a page."""
    return [(match["id"], match["sentence"].strip()) for match in _ROW.finditer(text)]


def marked_rules() -> set[str]:
    """Return the ids that the marks of all tests name."""
    return {rule for path in (ROOT / "tests").rglob("test_*.py") for rule in _marks_of(path)}


def _marks_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def render_page(rules: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        rules: The sentence of each id.

    Raises:
        ValueError: An id belongs to no area.
    """
    areas = list(_AREAS)

    def place(rule: str) -> tuple[int, int, str]:
        area, _, number = rule.partition("-")
        return areas.index(area), int(re.sub(r"\D", "", number)), number

    lines = [_HEAD]
    area = ""
    for rule in sorted(rules, key=place):
        if not rule.startswith(f"{area}-"):
            area = rule.partition("-")[0]
            lines += [*([""] if len(lines) > 1 else []), f"## {area}: {_AREAS[area]}", ""]
            lines += ["| Rule | In short |", "|---|---|"]
        lines.append(f"| {rule} | {rules[rule]} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, and return 1 when a marked rule has no line."""
    known: dict[str, str] = {}
    for path in (*map(Path, arguments), PAGE):
        known |= dict(read_rules(path.read_text()))
    listed = {rule for rule, _ in read_rules(PAGE.read_text())}
    marked = marked_rules()
    PAGE.write_text(render_page({rule: known[rule] for rule in marked & known.keys()}))
    for rule in sorted(listed - marked):
        print(f"left out, no test marks it: | {rule} | {known[rule]} |")
    missing = sorted(marked - known.keys())
    for rule in missing:
        print(f"no line: {rule}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
