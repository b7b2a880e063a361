import subprocess
import sys

import pytest
from typer.testing import CliRunner

from horde.cli import app


def test_the_command_lists_every_program() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for program in ("front", "native", "worker", "up"):
        assert f" {program} " in result.stdout


def test_an_unknown_program_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["down"]).exit_code == 2


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_a_usage_error(port: str) -> None:
    assert CliRunner().invoke(app, ["up", "--front-port", port]).exit_code == 2


def test_importing_the_command_line_imports_no_program() -> None:
    script = "import sys, horde.cli; print([n for n in sys.modules if n.startswith('horde.') and n != 'horde.cli'])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.strip() == "[]"
