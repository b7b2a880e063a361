"""Pages that are made from the code are current, and links lead somewhere."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from scripts.generate_docs import PAGES

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#]+)")
ANCHOR = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]*)#([^)]+)\)")

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


def sections_of(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)


@pytest.mark.rule("DOC-1")
def test_the_reference_of_the_front_has_its_head_and_sections() -> None:
    head = dict(re.findall(r"^(\w+): (.+)$", (ROOT / "docs/reference/chat_front.md").read_text(), re.MULTILINE))
    assert (head["title"], head["topics"], head["order"]) == ("Chat front reference", "operations requests", "110")
    assert head["summary"].startswith("The package horde.oai by concern")
    assert sections_of("reference/chat_front.md")[:13] == [
        "Code map",
        "Request keys",
        "Message roles",
        "Response shape",
        "Relayed deltas",
        "Deliberate deviations",
        "No eligible worker",
        "Kudos cap",
        "Model card fields",
        "Telemetry configuration",
        "Spans",
        "Metrics",
        "Finished-request log line",
    ]


def test_the_reference_of_the_front_places_every_module() -> None:
    table = (ROOT / "docs/reference/chat_front.md").read_text().partition("## Code map")[2].partition("Rules that")[0]
    modules = {path.stem for path in (ROOT / "horde/oai").glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", table)) == modules


@pytest.mark.rule("MAP-40")
@pytest.mark.parametrize(
    "path",
    [
        "tests/unit/oai/test_errors.py",
        "tests/unit/oai/test_lifecycle.py",
        "tests/unit/oai/test_chat_front.py",
        "tests/unit/oai/test_done_without_generation.py",
        "tests/integration/test_chat_front_sdk.py",
    ],
)
def test_the_tests_that_confirm_the_decision_on_errors_exist(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.rule("DOC-2")
def test_the_how_to_for_operators_tells_the_errors() -> None:
    assert "Errors the front returns" in sections_of("how-to/run_openai_chat_front.md")


@pytest.mark.rule("DOC-6")
def test_the_native_contract_has_its_sections_an_explanation_and_a_tutorial() -> None:
    assert {
        "Request body",
        "Impossible reason",
        "Queue position and wait time",
        "Eligibility and pricing",
        "Context adjustments",
        "Streaming progress",
    } <= set(sections_of("reference/chat_requests.md"))
    assert (ROOT / "docs/explanation/chat_requests.md").is_file()
    assert "from openai import OpenAI" in (ROOT / "docs/tutorial/first_reply.md").read_text()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    missing = [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_into_a_page_leads_to_a_heading(path: Path) -> None:
    for target, anchor in ANCHOR.findall(path.read_text()):
        page = path.parent / target if target else path
        headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_a_decision_says_what_else_was_possible_and_what_it_costs(path: Path) -> None:
    text = path.read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context and problem", "Drivers", "Options", "Outcome", "Consequences"]
    assert "- Good: " in text
    assert "- Bad: " in text


def test_help_lists_every_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    # The tests may run under make, which tells the make below it to say more.
    plain = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    command = ["/usr/bin/env", "make", "help"]
    listed = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in listed.stdout.splitlines()] == targets


def test_every_setting_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows
    assert [row for row in rows if not row.rsplit("|", 2)[1].strip().endswith(".")] == []
