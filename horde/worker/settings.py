"""What a worker can be told: the settings of one worker, and those of the program that runs it.

Where values come from, and which stands over which, is :mod:`horde.worker.configuration`'s.
"""

import hashlib
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from horde.telemetry import LogFormat
from horde.worker.origins import origin_of
from horde.worker.schedule import Schedule, Window, find_zone

__all__ = ["KEY_SOURCES", "ONE_WORKER", "ProgramSettings", "SettingsError", "WorkerSettings"]

KEY_SOURCES: Final = {
    "api_key_env": "Environment variable that holds `api_key`, instead of it.",
    "api_key_file": "File that holds `api_key` and nothing else, instead of it.",
    "backend_api_key_env": "Environment variable that holds `backend_api_key`, instead of it.",
    "backend_api_key_file": "File that holds `backend_api_key` and nothing else, instead of it.",
}
"""Settings that say where a key is, and what they mean."""

ONE_WORKER: Final = frozenset({"name", "model", "public_model"})
"""Settings that can be meant for one worker only."""


class SettingsError(Exception):
    """Settings are wrong.

    Attributes:
        problems: A sentence each, with the place of the setting and never with its value.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _split(separator: str) -> BeforeValidator:
    """Return what reads a list out of a text; a list passes as it is."""

    def split(value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(separator) if part.strip())
        return value

    return BeforeValidator(split)


class ProgramSettings(BaseModel):
    """What holds for the whole program."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log_level: Literal["TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="INFO",
        description="Lowest level that is logged.",
    )
    log_format: LogFormat = Field(
        default="auto",
        description="`text`, `json`, or `auto`: text on a terminal, JSON elsewhere.",
    )
    plain: bool = Field(
        default=False,
        description="Only log, also where standard output is a terminal that could show a view. `NO_COLOR` alone keeps"
        " the view without colours.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address on which a Prometheus may scrape.")
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for a Prometheus to scrape `/metrics`; 0 takes a free one. The worker opens no other port.",
    )


class WorkerSettings(BaseModel):
    """What one worker is told; everything else it finds out from the model server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    horde_url: str = Field(
        default="https://aihorde.net/api",
        description="Address of the Horde to serve, with or without `/api`.",
    )
    api_key: SecretStr = Field(
        min_length=1,
        description="Key of the user who owns the worker and earns its kudos.",
    )
    backend_url: str = Field(
        default="http://127.0.0.1:8080/v1",
        description="OpenAI base URL of the model server to share; `llama_cpp` starts one with the bundled model,"
        " `llama_cpp:` and a path one with that GGUF file. Required beside other workers.",
    )
    backend_api_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="Bearer key of the model server, when it wants one.",
    )
    backend_start_seconds: float = Field(
        default=60.0,
        ge=0,
        description="Time that the model server has to answer when the worker starts.",
    )
    backend_stall_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Longest silence of the model server within one reply, before the job is faulted.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Name of the worker, unique on the Horde; made of the model's name and the key when left out.",
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="Model to share, as the model server lists it; the first one listed when left out.",
    )
    public_model: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="Name under which the Horde offers the model; the model server's own name for it when left out.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Jobs served at a time; at most, and by default, as many as the model server has slots.",
    )
    context_length: int | None = Field(
        default=None,
        ge=64,
        description="Tokens of prompt and reply together; at most, and by default, what the model server says.",
    )
    max_length: int | None = Field(
        default=None,
        ge=16,
        le=16384,
        description="Longest reply in tokens; a quarter of the context length, at most 4096, when left out.",
    )
    exclude: Annotated[tuple[str, ...], _split(",")] = Field(
        default=(),
        description="Features and guarantees to withhold, such as `seed,json_schema`; separated by commas.",
    )
    picture_origins: Annotated[tuple[str, ...], _split(",")] = Field(
        default=(),
        description="Where pictures of jobs may be fetched from beside the Horde itself, such as the bucket in which it"
        " keeps them, `https://pictures.example`; separated by commas.",
    )
    schedule: Annotated[tuple[str, ...], _split(";")] = Field(
        default=(),
        description="When to serve, such as `mon-fri 22:00-07:00; sat,sun 00:00-24:00`; always when left out;"
        " separated by semicolons.",
    )
    time_zone: str | None = Field(
        default=None,
        min_length=1,
        description="Time zone of the schedule, such as `Europe/Berlin`; the machine's own when left out.",
    )
    wait_seconds: float = Field(
        default=20.0,
        ge=0,
        le=25,
        description="Time for which the Horde may hold a pop until a job fits.",
    )
    drain_seconds: float = Field(
        default=20.0,
        ge=0,
        description="Time that running jobs have to finish after a stop signal, before they are faulted.",
    )

    @field_validator("horde_url", "backend_url")
    @classmethod
    def _check_url(cls, value: str, info: ValidationInfo) -> str:
        if info.field_name == "backend_url" and (value == "llama_cpp" or value.startswith("llama_cpp:")):
            return value
        if not value.startswith(("http://", "https://")):
            raise ValueError("a URL that starts with http:// or https:// is expected")
        return value.rstrip("/")

    @field_validator("exclude")
    @classmethod
    def _check_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value:
            # The SDK takes a second to import, and logs while it does: not before somebody withholds something.
            from horde_sdk.generation_parameters.text.chat_policy import (  # noqa: PLC0415
                KNOWN_CHAT_DECLARATIONS,
                parse_chat_declaration,
            )

            for name in value:
                if parse_chat_declaration(name) is None:
                    raise ValueError(f"{name} is none of {', '.join(sorted(KNOWN_CHAT_DECLARATIONS))}")
        return value

    @field_validator("picture_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(origin_of(origin) for origin in value)

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for window in value:
            Window.parse(window)
        return value

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, value: str | None) -> str | None:
        if value is not None:
            find_zone(value)
        return value

    def read_schedule(self) -> Schedule:
        """Return the schedule."""
        zone = None if self.time_zone is None else find_zone(self.time_zone)
        return Schedule(tuple(Window.parse(window) for window in self.schedule), zone)

    def worker_name(self, model: str, label: str = "") -> str:
        """Return the worker's name: the one set, or one that stays the same and tells neither key nor label.

        Args:
            model: Public name of the model.
            label: The worker's name in the configuration; empty for one without.
        """
        if self.name is not None:
            return self.name
        parts = [self.api_key.get_secret_value(), model, *([label] if label else [])]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"{model[:80]} {digest[:8]}"
