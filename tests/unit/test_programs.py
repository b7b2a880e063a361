"""What the programs load when they start."""

import os
import subprocess
import sys

import pytest


@pytest.mark.rule("TEL-2")
@pytest.mark.parametrize("module", ["horde.oai.__main__", "horde.native.__main__", "horde.worker.__main__"])
def test_a_program_without_telemetry_loads_no_logfire(module: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.partition('.')[0] == 'logfire'])"
    environment = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, timeout=60)
    assert told.stdout == b"[]\n"
