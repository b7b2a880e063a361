import io

import pytest

from horde.local.console import Terminal


def test_without_a_terminal_each_step_is_one_line_when_it_is_done() -> None:
    output = io.StringIO()
    with Terminal(output).steps() as steps, steps.step("model [server]"):
        assert output.getvalue() == ""
    line = output.getvalue()
    assert "model [server] (0.0 s)" in line
    assert line.count("\n") == 1


def test_a_step_that_fails_is_not_shown_as_done() -> None:
    output = io.StringIO()
    with pytest.raises(ZeroDivisionError), Terminal(output).steps() as steps, steps.step("worker"):
        _ = 1 / 0
    assert output.getvalue() == ""


def test_a_failure_goes_to_the_error_stream_with_its_log_lines_as_they_are() -> None:
    output, errors = io.StringIO(), io.StringIO()
    Terminal(output, errors).fail("front ended.", ["[red]not markup[/red]"])
    assert output.getvalue() == ""
    assert errors.getvalue() == "front ended.\n    [red]not markup[/red]\n"


def test_a_piece_of_a_reply_is_written_at_once() -> None:
    output = io.StringIO()
    terminal = Terminal(output)
    terminal.piece("Hel")
    assert output.getvalue() == "Hel"
