"""The code map's page tells the truth: what it places exists, and every helper of the specification has a place."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "code_map.md").read_text()
PLACES = re.findall(r"`([a-z_/]+\.py)::([A-Za-z_.]+)`", PAGE)
IMPORTS = re.findall(r"^\| [^|]+ \| `(horde\.[a-z_.]+)`: ([^|]+) \|", PAGE, re.MULTILINE)

HELPERS = {
    "MAP-5": ("_chat_completions", "_wait_for_completion", "_stream_completion"),
    "MAP-6": ("_submit", "_recover_submit"),
    "MAP-7": ("_cancel_within_budget", "_retry_failed_cancels", "_cancel_open_requests"),
    "MAP-21": ("_relay_deltas",),
    "MAP-27": ("_wait_error",),
    "MAP-31": ("_kudos_cap_error",),
}


def defined_names(body: list[ast.stmt], owner: str = "") -> set[str]:
    """Return the names that a module or class defines, those of its classes behind a dot."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(owner + node.name)
        if isinstance(node, ast.ClassDef):
            names |= defined_names(node.body, f"{owner}{node.name}.")
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {owner + target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize(("path", "name"), PLACES, ids=lambda part: part)
def test_a_place_on_the_page_exists(path: str, name: str) -> None:
    assert name in defined_names(ast.parse((ROOT / path).read_text()).body)


@pytest.mark.parametrize(("module", "names"), IMPORTS, ids=lambda part: part[:40])
def test_a_public_name_is_importable_from_where_the_page_says(module: str, names: str) -> None:
    wanted = set(re.findall(r"`(\w+)`", names))
    assert wanted
    assert wanted <= set(importlib.import_module(module).__all__)


@pytest.mark.rule("MAP-5", "MAP-6", "MAP-7", "MAP-21", "MAP-27", "MAP-31")
@pytest.mark.parametrize("rule", HELPERS)
def test_every_private_helper_of_the_specification_has_a_place(rule: str) -> None:
    rows = dict(re.findall(r"^\| `(_\w+)` \| (.+) \|$", PAGE, re.MULTILINE))
    for helper in HELPERS[rule]:
        assert "::" in rows[helper]
