"""Where settings are given: on the command line, in the environment, in a TOML file; each value with its place.

The file has every setting of the program and of a worker at its top, the latter for all workers, and a table
``[workers.LABEL]`` for each worker. Variables are ``HORDE_WORKER_<SETTING>`` for all workers and
``HORDE_WORKER_WORKERS__<LABEL>__<SETTING>`` for one.
"""

import difflib
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Final

from horde.worker.settings import KEY_SOURCES, ProgramSettings, WorkerSettings

__all__ = [
    "CONFIG_VARIABLE",
    "OPTION_NAMES",
    "PREFIX",
    "PROGRAM_KEYS",
    "WORKER_KEYS",
    "Given",
    "Layer",
    "Source",
    "read_environment",
    "read_file",
    "read_options",
]

PREFIX: Final = "HORDE_WORKER_"
CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
OPTION_NAMES: Final = {"horde_url": "horde", "api_key": "key", "backend_url": "backend"}
"""Options that are called otherwise than their setting."""

PROGRAM_KEYS: Final = frozenset(ProgramSettings.model_fields)
WORKER_KEYS: Final = frozenset(WorkerSettings.model_fields) | frozenset(KEY_SOURCES)

_FOR_ONE: Final = "WORKERS__"
_TABLE: Final = "workers"
_LABEL: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_MAX_FILE_BYTES: Final = 1024 * 1024
_NOT_ABLE: Final = "cannot be read"


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave.

    Attributes:
        value: As it was given; never shown, since it may be a key.
        place: Where: a variable, an option, or a file with table and key.
        folder: From which a path in it starts; None for the working folder.
    """

    value: object = field(repr=False)
    place: str
    folder: Path | None = None


type Layer = dict[str, Given]
"""Values of one place, by setting."""


@dataclass(slots=True)
class Source:
    """What one source gives.

    Attributes:
        general: For the program and for all workers.
        workers: For one worker, by label, in the order given.
        problems: A sentence each.
        path: The file, when it is one.
    """

    general: Layer = field(default_factory=dict)
    workers: dict[str, Layer] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    path: Path | None = None


def read_options(options: Mapping[str, object]) -> Source:
    """Return what the command line gives, by setting; None is left out."""
    source = Source()
    for name, value in options.items():
        if value is not None:
            source.general[name] = Given(value, "--" + OPTION_NAMES.get(name, name).replace("_", "-"))
    return source


def read_environment(environment: Mapping[str, str]) -> Source:
    """Return what the environment gives; an empty variable is none, an unknown one a problem."""
    source = Source()
    for variable in sorted(environment):
        upper, value = variable.upper(), environment[variable]
        if not upper.startswith(PREFIX) or upper == CONFIG_VARIABLE or _is_injected(upper, value):
            continue
        name = upper.removeprefix(PREFIX)
        layer, known, one = source.general, PROGRAM_KEYS | WORKER_KEYS, ""
        if name.startswith(_FOR_ONE):
            label, _, name = name.removeprefix(_FOR_ONE).partition("__")
            one = f"{_FOR_ONE}{label}__"
            layer, known = source.workers.setdefault(label.lower().replace("_", "-"), {}), WORKER_KEYS
        if name.lower() not in known:
            near = _nearest(name.lower(), known)
            hint = f"did you mean {PREFIX}{one}{near.upper()}?" if near else "remove it or correct its name."
            source.problems.append(f"{variable} is no setting of the worker; {hint}")
        elif value:
            layer[name.lower()] = Given(value, variable)
    return source


def _is_injected(variable: str, value: str) -> bool:
    """Whether a cluster makes the variable for a service called ``horde-worker``."""
    name = variable.removeprefix(PREFIX)
    injected = name.endswith("SERVICE_HOST") or "SERVICE_PORT" in name or name.startswith("PORT_")
    return injected or (name == "PORT" and value.startswith(("tcp://", "udp://")))


def read_file(path: Path) -> Source:
    """Return what a TOML file gives; a file that is none is a problem."""
    source = Source(path=path)
    document = _load(path, source.problems)
    tables = document.pop(_TABLE, {})
    known = PROGRAM_KEYS | WORKER_KEYS
    source.general = _read_table(source, document, f"{path}:", known, known | {_TABLE})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        source.problems.append(f"{path}: {_TABLE} is wrong: a table for each worker is expected, [{_TABLE}.LABEL].")
        return source
    for label, table in tables.items():
        where = f"{path}: [{_TABLE}.{label}]"
        if not _LABEL.fullmatch(label):
            source.problems.append(
                f"{where} is wrong: a label has up to 32 small letters, digits and hyphens.",
            )
        source.workers[label] = _read_table(source, table, where, WORKER_KEYS, WORKER_KEYS)
    return source


def _load(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) <= _MAX_FILE_BYTES:
            return tomllib.loads(data.decode())
        problems.append(f"{path} {_NOT_ABLE}: it is larger than 1 MiB.")
    except OSError as error:
        problems.append(f"{path} {_NOT_ABLE}: {error.strerror or type(error).__name__}.")
    except UnicodeDecodeError:
        problems.append(f"{path} {_NOT_ABLE}: it is not UTF-8.")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path} {_NOT_ABLE} as TOML: {error}.")
    except RecursionError:
        problems.append(f"{path} {_NOT_ABLE} as TOML: it is nested too deeply.")
    return {}


def _read_table(
    source: Source, table: Mapping[str, object], where: str, known: frozenset[str], named: Iterable[str]
) -> Layer:
    """Return the settings of a table; what is none, or of a wrong type, is a problem."""
    layer: Layer = {}
    for key, value in table.items():
        place = f"{where} {key}"
        if key in known:
            if (expected := _expected_type(key, value)) is not None:
                source.problems.append(f"{place} is wrong: {expected} is expected.")
            else:
                layer[key] = Given(value, place, source.path.parent if source.path else None)
        elif key in PROGRAM_KEYS:
            source.problems.append(f"{place} is a setting of the program: it belongs above the first table.")
        else:
            near = _nearest(key, named)
            source.problems.append(f"{place} is no setting; {f'did you mean {near}?' if near else 'remove it.'}")
    return layer


def _expected_type(key: str, value: object) -> str | None:
    """Return in words what a setting of the file takes, when its value is of another type."""
    fields = ProgramSettings.model_fields | WorkerSettings.model_fields
    annotation = fields[key].annotation if key in fields else str
    kinds = [kind for kind in (typing.get_args(annotation) or (annotation,)) if kind is not NoneType]
    if typing.get_origin(annotation) is tuple:
        fits = isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
        return None if fits else "a list of texts"
    if kinds == [bool]:
        return None if isinstance(value, bool) else "true or false"
    if kinds in ([int], [float]):
        fits = isinstance(value, int if kinds == [int] else int | float) and not isinstance(value, bool)
        return None if fits else "a whole number" if kinds == [int] else "a number"
    return None if isinstance(value, str) else "a text"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(known), 1)), None)
