"""Pages that are made from the code are current, and links lead somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

from scripts.generate_docs import PAGES

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#]+)")

WRITTEN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_current(path: Path) -> None:
    assert path.read_text() == PAGES[path](), "run `make docs`"


@pytest.mark.rule("DOC-5")
def test_the_return_codes_are_listed_at_the_root() -> None:
    page = (ROOT / "README_return_codes.md").read_text()
    for code in (
        "KudosUpfront",
        "UnknownChatModel",
        "ChatKudosCapExceeded",
        "ChatSubmitNonconformant",
        "NoOnlineChatWorker",
    ):
        assert f"`{code}`" in page


@pytest.mark.rule("DOC-4")
@pytest.mark.parametrize("number", ["0024", "0026", "0029", "0034", "0035"])
def test_the_decisions_that_others_cite_are_recorded(number: str) -> None:
    assert len(list((ROOT / "docs" / "decisions").glob(f"{number}-*.md"))) == 1


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    missing = [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_a_decision_says_what_else_was_possible_and_what_it_costs(path: Path) -> None:
    text = path.read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context and problem", "Drivers", "Options", "Outcome", "Consequences"]
    assert "- Good: " in text
    assert "- Bad: " in text


def test_help_lists_every_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z]+):", makefile, re.MULTILINE)
    listed = subprocess.run(["/usr/bin/env", "make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in listed.stdout.splitlines()] == targets


def test_every_setting_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows
    assert [row for row in rows if not row.rsplit("|", 2)[1].strip().endswith(".")] == []
