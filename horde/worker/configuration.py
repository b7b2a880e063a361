"""What the program is to do: the command line stands over the environment, that over the file, that over defaults.

Within one of them, what is said for one worker stands over what is said for all.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from horde.worker.keys import KEYS, group_of, readable_by_others, resolve_keys
from horde.worker.settings import KEY_SOURCES, ONE_WORKER, ProgramSettings, SettingsError, WorkerSettings
from horde.worker.sources import (
    CONFIG_VARIABLE,
    PREFIX,
    PROGRAM_KEYS,
    WORKER_KEYS,
    Given,
    Layer,
    Source,
    read_environment,
    read_file,
    read_options,
)

__all__ = ["Configuration", "ConfiguredWorker", "load_configuration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredWorker:
    """One worker to run.

    Attributes:
        label: Its name in the configuration, logs and metrics; empty for the one that has none.
        settings: Its settings.
        places: Where each setting that was given was given, by setting.
    """

    label: str
    settings: WorkerSettings
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that was told.

    Attributes:
        program: Settings of the whole program.
        workers: The workers; at least one.
        warnings: A sentence each on what works and should not stay.
        path: The file that was read, or None.
    """

    program: ProgramSettings
    workers: tuple[ConfiguredWorker, ...]
    warnings: tuple[str, ...] = ()
    path: Path | None = None


def load_configuration(
    options: Mapping[str, object] | None = None,
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Configuration:
    """Read the whole configuration.

    Args:
        options: Values of the command line, by setting; None values count as left out.
        config: The file; ``HORDE_WORKER_CONFIG`` when left out.
        environment: The process's own when left out.

    Raises:
        SettingsError: With every problem that was found.
    """
    given = os.environ if environment is None else environment
    if config is None and given.get(CONFIG_VARIABLE):
        config = Path(given[CONFIG_VARIABLE])
    file = Source() if config is None else read_file(config)
    reader = _Reader(read_options(options or {}), read_environment(given), file, given)
    configuration = reader.read()
    if reader.problems:
        raise SettingsError(*dict.fromkeys(reader.problems))
    return configuration


@dataclass(slots=True)
class _Reader:
    """Puts the sources together and collects what is wrong with them."""

    options: Source
    variables: Source
    file: Source
    environment: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def read(self) -> Configuration:
        """Return the configuration; it means nothing when there are problems."""
        for source in (self.variables, self.file):
            self.problems += source.problems
        labels = self._labels()
        program = self._merge([self.options.general, self.variables.general, self.file.general], PROGRAM_KEYS)
        if len(labels) > 1:
            self._check_shared_settings()
        workers = [self._read_worker(label, alone=len(labels) == 1) for label in labels]
        whole = tuple(worker for worker in workers if worker is not None)
        self._check_neighbours(whole)
        return Configuration(
            program=self._validate(ProgramSettings, program, "") or ProgramSettings(),
            workers=whole,
            warnings=tuple(dict.fromkeys(self.warnings)),
            path=self.file.path,
        )

    def _labels(self) -> list[str]:
        """Return the workers' labels; variables name workers of their own only where no file does."""
        if not self.file.workers:
            return list(self.variables.workers) or [""]
        for label, layer in self.variables.workers.items():
            if label not in self.file.workers:
                known = ", ".join(self.file.workers)
                self.problems += [
                    f"{given.place} is for a worker that {self.file.path} does not have; it has {known}."
                    for given in layer.values()
                ]
        return list(self.file.workers)

    def _check_shared_settings(self) -> None:
        for source in (self.options, self.variables, self.file):
            self.problems += [
                f"{given.place} is meant for one worker, and there are several: set it for one of them."
                for name, given in source.general.items()
                if name in ONE_WORKER
            ]

    def _read_worker(self, label: str, *, alone: bool) -> ConfiguredWorker | None:
        layers = [
            self.options.general,
            self.variables.workers.get(label, {}),
            self.variables.general,
            self.file.workers.get(label, {}),
            self.file.general,
        ]
        merged = self._merge(layers, WORKER_KEYS)
        self._warn_of_keys_in_the_file(merged)
        values = resolve_keys(merged, self.environment, self.problems, self.warnings)
        if not alone and "backend_url" not in values:
            self.problems.append(f"{self._place(label, 'backend_url')} is not set; beside other workers it has to be.")
        if any(name in merged for name in KEY_SOURCES if group_of(name) == "api_key") and "api_key" not in values:
            values["api_key"] = Given("unknown", "")  # why it is missing has been said
        settings = self._validate(WorkerSettings, values, label)
        if settings is None:
            return None
        places = {name: given.place for name, given in values.items()}
        return ConfiguredWorker(label=label, settings=settings, places=places)

    def _merge(self, layers: Iterable[Layer], keys: Iterable[str]) -> Layer:
        """Return the value of each setting from the first layer that has it, or another source of the same key."""
        merged: Layer = {}
        for layer in layers:
            taken = {group_of(name) for name in merged}
            for name in sorted(layer.keys() & set(keys)):
                group = group_of(name)
                if group in taken:
                    continue
                if (other := next((each for each in merged if group_of(each) == group), None)) is not None:
                    self.problems.append(f"{layer[name].place} and {merged[other].place} say the same; keep one.")
                merged[name] = layer[name]
        return merged

    def _warn_of_keys_in_the_file(self, merged: Layer) -> None:
        path = self.file.path
        if path is None or not readable_by_others(path):
            return
        for name in KEYS:
            if name in merged and merged[name].place.startswith(f"{path}:"):
                self.warnings.append(
                    f"{merged[name].place} is a key that other users of this machine can read: "
                    f"chmod 600 {path}, or use {name}_file or {name}_env"
                )

    def _validate[Settings: BaseModel](
        self, model: type[Settings], values: Mapping[str, Given], label: str
    ) -> Settings | None:
        try:
            return model.model_validate({name: given.value for name, given in values.items()})
        except ValidationError as error:
            for fault in error.errors(include_input=False, include_url=False, include_context=False):
                self.problems.append(self._sentence(fault, values, label))
            return None

    def _sentence(self, fault: Any, values: Mapping[str, Given], label: str) -> str:  # noqa: ANN401 - pydantic's details
        """Say what is wrong with one setting; its value may be a key and is never shown."""
        name = str(fault["loc"][0])
        if fault["type"] == "missing":
            return f"{self._place(label, name)} is not set; the worker needs it."
        return f"{values[name].place} is wrong: {str(fault['msg']).removeprefix('Value error, ')}."

    def _place(self, label: str, name: str) -> str:
        """Return where a setting that is missing would be."""
        if label and label in self.file.workers:
            return f"{self.file.path}: [workers.{label}] {name}"
        one = f"WORKERS__{label.upper().replace('-', '_')}__" if label else ""
        return f"{PREFIX}{one}{name.upper()}"

    def _check_neighbours(self, workers: tuple[ConfiguredWorker, ...]) -> None:
        """Workers of one name are one worker for a Horde, and two of one model share its slots unknowingly."""
        names: dict[tuple[str, str], str] = {}
        served: dict[tuple[str, str | None], str] = {}
        for worker in workers:
            settings = worker.settings
            if settings.name is not None:
                other = names.setdefault((settings.horde_url, settings.name), worker.label)
                if other != worker.label:
                    self.problems.append(
                        f"{self._place(worker.label, 'name')} is also that of {other}: "
                        "on a Horde a worker's name serves one model."
                    )
            twin = served.setdefault((settings.backend_url, settings.model), worker.label)
            if twin != worker.label:
                self.warnings.append(
                    f"{twin} and {worker.label} serve one model of one server: give each a part of its slots as threads"
                )
