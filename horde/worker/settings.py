"""Settings of the worker: environment variables ``HORDE_WORKER_*``, options of the command line above them."""

import hashlib
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from horde.telemetry import LogFormat

__all__ = ["SettingsError", "WorkerSettings", "load_settings"]

_PREFIX = "HORDE_WORKER_"


class SettingsError(Exception):
    """A setting is wrong; the message names it and says what is expected."""


class WorkerSettings(BaseSettings):
    """What the worker is told; everything else it finds out from the model server."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    horde_url: str = Field(
        default="https://aihorde.net/api",
        description="Address of the Horde to serve, with or without `/api`.",
    )
    api_key: SecretStr = Field(
        min_length=1,
        description="Key of the user who owns the worker and earns its kudos. Required.",
    )
    backend_url: str = Field(
        default="http://127.0.0.1:8080/v1",
        description="OpenAI base URL of the model server to share.",
    )
    backend_api_key: SecretStr | None = Field(
        default=None,
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
    exclude: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Features and guarantees to withhold, separated by commas, such as `seed,json_schema`.",
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
    log_level: Literal["TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="INFO",
        description="Lowest level that is logged.",
    )
    log_format: LogFormat = Field(
        default="auto",
        description="`text`, `json`, or `auto`: text on a terminal, JSON elsewhere.",
    )

    @field_validator("horde_url", "backend_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("a URL that starts with http:// or https:// is expected")
        return value.rstrip("/")

    @field_validator("exclude", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    def worker_name(self, model: str) -> str:
        """Return the worker's name: the one set, or one that is stable for this owner and model and tells neither.

        Args:
            model: Public name of the model.
        """
        if self.name is not None:
            return self.name
        digest = hashlib.sha256(f"{self.api_key.get_secret_value()}\n{model}".encode()).hexdigest()
        return f"{model[:80]} {digest[:8]}"


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> WorkerSettings:
    """Read the settings.

    Args:
        overrides: Values of the command line, by field name; None values count as left out.
        environment: Looked through for unknown variables; the process's own when left out.

    Raises:
        SettingsError: A value is wrong, the key is missing, or a variable with the prefix is unknown.
    """
    given = os.environ if environment is None else environment
    for variable in sorted(given):
        if variable.upper().startswith(_PREFIX) and not _is_known(variable, given[variable]):
            raise SettingsError(f"{variable} is no setting of the worker; remove it or correct its name.")
    try:
        return WorkerSettings(**{name: value for name, value in (overrides or {}).items() if value is not None})
    except ValidationError as error:
        raise SettingsError(_first_fault(error)) from None


def _is_known(variable: str, value: str) -> bool:
    """Whether a variable is a setting, or what a cluster injects for a service called ``horde-worker``."""
    name = variable.upper().removeprefix(_PREFIX)
    if name.lower() in WorkerSettings.model_fields:
        return True
    injected = name.endswith("SERVICE_HOST") or "SERVICE_PORT" in name or name.startswith("PORT_")
    return injected or (name == "PORT" and value.startswith(("tcp://", "udp://")))


def _first_fault(error: ValidationError) -> str:
    """Say what is wrong with the first wrong setting; its value may be a key and is never shown."""
    fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
    name = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "missing":
        return f"{_PREFIX}{name.upper()} is not set; the worker needs it."
    return f"{_PREFIX}{name.upper()} is wrong: {fault['msg'].removeprefix('Value error, ')}."
