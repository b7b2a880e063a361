"""The project's list of rules and the tests that show them to hold name the same ids."""

from scripts.rules import PAGE, marked_rules, read_rules, render_page

LISTED = dict(read_rules(PAGE.read_text()))


def test_every_listed_rule_has_a_test_that_names_it() -> None:
    assert sorted(LISTED.keys() - marked_rules()) == []


def test_every_rule_that_a_test_names_is_listed() -> None:
    assert sorted(marked_rules() - LISTED.keys()) == []


def test_each_rule_is_listed_once_and_says_something() -> None:
    assert len(read_rules(PAGE.read_text())) == len(LISTED)
    assert all(sentence.endswith(".") for sentence in LISTED.values())


def test_the_list_is_in_order() -> None:
    assert PAGE.read_text() == render_page(LISTED), "run `.venv/bin/python scripts/rules.py`"
