"""Sizes that keep the code easy to live in, and locks that hold what the project asks for."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES, FUNCTION_LINES, NESTING = 500, 60, 4
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)

MODULES = sorted(path for folder in ("horde", "tests", "bench", "scripts") for path in (ROOT / folder).rglob("*.py"))

LOCKED = re.compile(r"^([a-z0-9._-]+)==", re.MULTILINE)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def depth(node: ast.AST, level: int = 0) -> int:
    """The deepest nesting of blocks below a node; an ``elif`` counts as its ``if``."""
    deepest = level
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        inner = level + 1 if isinstance(child, BLOCKS) and not is_elif else level
        deepest = max(deepest, depth(child, inner))
    return deepest


def locked_names(lock: str) -> set[str]:
    return set(LOCKED.findall((ROOT / lock).read_text()))


def wanted_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=;\[]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_and_its_functions_fit_on_a_screen(path: Path) -> None:
    too_large = [
        f"{path.name}:{function.lineno} {function.name}: {function.end_lineno - function.lineno + 1} lines"
        for function in functions_of(path)
        if function.end_lineno and function.end_lineno - function.lineno + 1 > FUNCTION_LINES
    ]
    too_deep = [
        f"{path.name}:{function.lineno} {function.name}: {depth(function)} deep"
        for function in functions_of(path)
        if depth(function) > NESTING
    ]
    assert path.read_text().count("\n") <= FILE_LINES
    assert too_large == []
    assert too_deep == []


def test_importing_the_package_costs_nothing() -> None:
    assert (ROOT / "horde" / "__init__.py").read_text() == ""


def test_the_locks_hold_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = wanted_names(project["project"]["dependencies"])
    assert runtime - locked_names("requirements.lock") == set()
    development = wanted_names(project["dependency-groups"]["dev"])
    assert development - locked_names("requirements-dev.lock") - locked_names("requirements.lock") == set()
    local = wanted_names(project["project"]["optional-dependencies"]["local"])
    assert locked_names("requirements-local.lock") == local


@pytest.mark.parametrize("lock", sorted(path.name for path in ROOT.glob("requirements*.lock")))
def test_a_lock_names_no_place_of_the_machine_it_was_made_on(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert not re.search(r"://|file:|--index|--find-links|--extra-index|\s/", text)
    packages = re.findall(r"^[a-z0-9._-]+==.*(?:\n[ \t]+.*)*", text, re.MULTILINE)
    assert packages
    assert all("--hash=sha256:" in package for package in packages)


def test_what_is_installed_is_what_the_project_says_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version("horde-oai") == project["version"]
