"""The project's list of rules and the tests that show them to hold name the same ids."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTED = re.compile(r"^\| (?P<id>[A-Z]{2,5}-\d+[a-z]?) \| (?P<sentence>[^|]+) \|$", re.MULTILINE)


def listed_rules() -> dict[str, str]:
    page = (ROOT / "docs" / "reference" / "rules.md").read_text()
    return {match["id"]: match["sentence"].strip() for match in LISTED.finditer(page)}


def marks_of(path: Path) -> Iterator[str]:
    """The ids that the marks of one test module name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def marked_rules() -> set[str]:
    return {rule for path in (ROOT / "tests").rglob("test_*.py") for rule in marks_of(path)}


def test_every_listed_rule_has_a_test_that_names_it() -> None:
    assert sorted(listed_rules().keys() - marked_rules()) == []


def test_every_rule_that_a_test_names_is_listed() -> None:
    assert sorted(marked_rules() - listed_rules().keys()) == []


def test_each_rule_is_listed_once_and_says_something() -> None:
    page = (ROOT / "docs" / "reference" / "rules.md").read_text()
    assert len(LISTED.findall(page)) == len(listed_rules())
    assert all(sentence.endswith(".") for sentence in listed_rules().values())
