"""Settings of the Horde: environment variables ``HORDE_NATIVE_*``, read once at start (SET)."""

import ipaddress
import os
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from horde.native.moderation import load_patterns
from horde.telemetry import LogFormat

__all__ = ["NativeSettings", "SettingsError", "load_settings"]

_PREFIX: Final = "HORDE_NATIVE_"

_LEAST_WORKER_CALLS: Final = 120
"""Twice a call a second, the pace of a worker whose pops do not wait."""

_INJECTED_SUFFIXES: Final = ("_SERVICE_HOST", "_SERVICE_PORT")
_INJECTED_PARTS: Final = ("_SERVICE_PORT_", "_PORT_")


class SettingsError(Exception):
    """The settings are wrong; the message is one sentence and never holds a value."""


class NativeSettings(BaseSettings):
    """What an operator can set; frozen."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    database_url: SecretStr = Field(
        description="Address of the PostgreSQL database, postgresql://user:password@host:port/name.",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="Address of Redis or Valkey, for signals and live text; without it both are off.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8001, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    listen_fd: int | None = Field(
        default=None,
        ge=0,
        description="Descriptor of an inherited listening socket, used instead of host and port.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address on which a Prometheus may scrape.")
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port for a Prometheus to scrape `/metrics`; 0 takes a free one."
    )
    log_level: Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO",
        description="Lowest level that is logged.",
    )
    log_format: LogFormat = Field(default="auto", description="Form of the log: text, json, or auto for a terminal.")
    migrate: bool = Field(default=True, description="Whether the database is brought to the newest schema at start.")
    database_pool_size: int = Field(default=10, ge=1, le=1000, description="Most database connections of this process.")
    database_timeout_seconds: float = Field(default=10.0, gt=0, description="Longest time of a statement.")
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024, description="Largest body that is read.")
    body_read_timeout_seconds: float = Field(default=30.0, gt=0, description="Longest time a body may take.")
    auto_add_models: bool = Field(
        default=True,
        description="Whether the first worker that declares a model makes it known to the Horde.",
    )
    moderation_patterns_file: Path | None = Field(
        default=None,
        description="File of regular expressions, one a line; a prompt that one is found in is refused.",
    )
    moderation_url: str | None = Field(
        default=None,
        description="Address of a service like OpenAI's `POST /v1/moderations` that each prompt is sent to.",
    )
    moderation_api_key: SecretStr | None = Field(default=None, description="Key for `HORDE_NATIVE_MODERATION_URL`.")
    moderation_model: str | None = Field(
        default=None, max_length=256, description="Moderation model to ask for; without it the service chooses."
    )
    moderation_max_bytes: int = Field(
        default=1024 * 1024,
        ge=1024,
        description="Largest prompt that is sent to the service; a larger one counts as one that takes too long.",
    )
    moderation_seconds: float = Field(default=2.0, gt=0, description="Longest time a prompt may be looked at.")
    moderation_fails_open: bool = Field(
        default=False, description="Whether a prompt that takes longer, or that the service fails on, is let through."
    )
    user_submits_per_minute: int = Field(
        default=0, ge=0, le=60_000, description="Submits a key may send in a minute; 0 for no limit."
    )
    anonymous_submits_per_minute: int = Field(
        default=0,
        ge=0,
        le=60_000,
        description="Submits without a key that an address may send in a minute; 0 for no limit.",
    )
    user_reads_per_minute: int = Field(
        default=0, ge=0, le=600_000, description="Statuses and other reads of a key in a minute; 0 for no limit."
    )
    anonymous_reads_per_minute: int = Field(
        default=0,
        ge=0,
        le=600_000,
        description="Statuses and other reads of an address without a key in a minute; 0 for no limit.",
    )
    user_cancels_per_minute: int = Field(
        default=0, ge=0, le=600_000, description="Cancels and changes of workers by a key in a minute; 0 for no limit."
    )
    anonymous_cancels_per_minute: int = Field(
        default=0, ge=0, le=600_000, description="Cancels by an address without a key in a minute; 0 for no limit."
    )
    worker_empty_pops_per_minute: int = Field(
        default=0,
        ge=0,
        le=600_000,
        description="Pops of one worker in a minute that bring no job; at least 120, or 0 for no limit.",
    )
    user_lost_posts_per_minute: int = Field(
        default=0,
        ge=0,
        le=600_000,
        description="Posts and submits of a key in a minute for jobs that do not run; at least 120, or 0 for no limit.",
    )
    trusted_fronts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Addresses and networks (CIDR), comma-separated, whose `X-Forwarded-For` is believed.",
    )
    public_url: str | None = Field(
        default=None,
        description="Address at which workers reach this Horde, for URLs of images; else the one a pop was sent to.",
    )
    image_store: str = Field(
        default="horde-images",
        description="Where images are kept: a folder, or `s3://bucket/prefix`; empty refuses requests with images.",
    )
    image_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = Field(
        default=(),
        description="Networks (CIDR), comma-separated, that images may be fetched from although they are not public.",
    )
    progress_interval_seconds: float = Field(
        default=1.0, gt=0, description="How often workers are asked to post progress."
    )
    lease_seconds: float = Field(default=30.0, gt=0, description="How long a job lives after a progress post.")
    relook_seconds: float = Field(default=2.0, gt=0, description="How often a held pop looks again by itself.")
    snapshot_seconds: float = Field(default=2.0, gt=0, description="How often queue positions are counted.")
    sweep_seconds: float = Field(default=1.0, gt=0, description="How often leases and expiries are looked at.")
    slow_worker_tokens_per_second: float = Field(
        default=5.0,
        ge=0,
        description="Speed, in tokens a second, under which a worker counts as slow.",
    )
    drain_seconds: float = Field(default=20.0, ge=0, description="Time running calls have after a stop signal.")
    drain_accept_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Time in which connections are still taken after a stop signal, for a balancer to notice.",
    )

    @field_validator("moderation_patterns_file")
    @classmethod
    def _check_patterns(cls, value: Path | None) -> Path | None:
        """Require a file that can be read and holds patterns alone."""
        if value is not None:
            load_patterns(value)
        return value

    @field_validator("worker_empty_pops_per_minute", "user_lost_posts_per_minute")
    @classmethod
    def _leave_room_for_a_worker(cls, value: int) -> int:
        """Require what one worker needs that looks for jobs once a second, or loses as many at once."""
        if 0 < value < _LEAST_WORKER_CALLS:
            raise ValueError(f"a worker needs {_LEAST_WORKER_CALLS} a minute")
        return value

    @field_validator("moderation_url")
    @classmethod
    def _check_moderation_url(cls, value: str | None) -> str | None:
        """Require an address of the web without a user or a key in it, which would be logged and traced."""
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc or parts.query:
                raise ValueError("it is an http:// or https:// address without a user or a query")
        return value

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, value: str | None) -> str | None:
        """Require an address of the web, and drop the slash at its end."""
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://")
        return value.rstrip("/") if value else None

    @field_validator("image_store")
    @classmethod
    def _check_image_store(cls, value: str) -> str:
        """Require a folder or a bucket."""
        if "://" in value and not value.startswith("s3://"):
            raise ValueError("images are kept in a folder or at an s3:// address")
        return value

    @field_validator("trusted_fronts", "image_networks", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        """Read a comma-separated list."""
        if isinstance(value, str):
            return tuple(entry.strip() for entry in value.split(",") if entry.strip())
        return value

    @field_validator("trusted_fronts")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Require addresses or networks."""
        for network in value:
            ipaddress.ip_network(network, strict=False)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is the library's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from :func:`load_settings` alone, which has looked at every variable."""
        return (init_settings,)


def load_settings(environment: Mapping[str, str] | None = None) -> NativeSettings:
    """Read the settings.

    Args:
        environment: Variables to read instead of the process's own, for tests.

    Raises:
        SettingsError: A variable is missing, wrong or unknown.
    """
    variables = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for name, value in variables.items():
        if not name.upper().startswith(_PREFIX) or _is_injected(name, value):
            continue
        field = name[len(_PREFIX) :].lower()
        if field not in NativeSettings.model_fields:
            raise SettingsError(f"{name} is not a setting of the Horde; check its spelling.")
        values[field] = value
    try:
        return NativeSettings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = _PREFIX + str(first["loc"][0]).upper()
        if first["type"] == "missing":
            raise SettingsError(f"{name} has to be set.") from None
        raise SettingsError(f"{name} is wrong: {first['msg']}.") from None


def _is_injected(name: str, value: str) -> bool:
    """Say whether a cluster set this variable for a service of that name."""
    return (
        name.endswith(_INJECTED_SUFFIXES)
        or any(part in name for part in _INJECTED_PARTS)
        or (name.endswith("_PORT") and value.startswith("tcp://"))
    )
