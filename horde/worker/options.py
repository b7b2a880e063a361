"""The command line of the worker: an option for every setting, and a few that are no settings."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horde.worker.settings import KEY_SOURCES, ProgramSettings, WorkerSettings
from horde.worker.sources import OPTION_NAMES

__all__ = ["Arguments", "option_of", "parse_arguments"]

_USED_MOST = ("horde_url", "api_key", "backend_url", "model", "name", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command line says.

    Attributes:
        config: The configuration file.
        check: Only check the configuration.
        probe: Look at the model servers too while checking.
        settings: The settings given, by name.
    """

    config: Path | None
    check: bool
    probe: bool
    settings: Mapping[str, Any]


def option_of(setting: str) -> str:
    """Return the option of a setting."""
    return "--" + OPTION_NAMES.get(setting, setting).replace("_", "-")


def parse_arguments(argv: Sequence[str] | None) -> Arguments:
    """Read the command line; leaves the program with exit code 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="horde worker",
        description="Share model servers with a Horde.",
        epilog="Every option of a setting is also a variable, HORDE_WORKER_<SETTING>, and a key of the file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the settings of one worker or more")
    parser.add_argument("--check-config", action="store_true", help="say what is configured or wrong, and leave")
    parser.add_argument("--probe", action="store_true", help="with --check-config: look at the model servers too")
    fields = WorkerSettings.model_fields | ProgramSettings.model_fields
    helps = {name: field.description or "" for name, field in fields.items()} | KEY_SOURCES
    for name in (*_USED_MOST, *(name for name in helps if name not in _USED_MOST)):
        text = helps[name].replace("`", "").replace("%", "%%")
        if name in fields and fields[name].annotation is bool:
            parser.add_argument(option_of(name), dest=name, action="store_const", const=True, help=text)
        else:
            parser.add_argument(option_of(name), dest=name, metavar="VALUE", help=text)
    found = vars(parser.parse_args(argv))
    if found["probe"] and not found["check_config"]:
        parser.error("--probe goes with --check-config")
    return Arguments(
        config=found.pop("config"),
        check=found.pop("check_config"),
        probe=found.pop("probe"),
        settings=found,
    )
