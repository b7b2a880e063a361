"""Settings of the front: environment variables ``HORDE_OAI_*``, read once at start (rules SET, decision U14)."""

import ipaddress
import os
import re
from typing import Annotated, Final

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from horde.telemetry import LogFormat

__all__ = ["FrontSettings", "SettingsError", "load_settings"]

_PREFIX: Final = "HORDE_OAI_"

_CLUSTER_INJECTED: Final = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_.+)?$|_PORT_\d+_.+$")
"""What a cluster sets for a service whose name makes it look like ours."""

_Seconds = Annotated[float, Field(gt=0, le=86400)]


class SettingsError(Exception):
    """The environment is wrong; the message is for the person who started the program."""


class FrontSettings(BaseSettings):
    """Every setting of the front. Times are seconds, sizes bytes."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    horde_urls: Annotated[tuple[str, ...], NoDecode, Field(min_length=1)] = Field(
        ("https://aihorde.net/api",),
        description="Base URLs of one Horde, comma-separated, each ending before `/v2`; tried in order.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    listen_fd: int | None = Field(None, ge=3, description="Inherited listening socket to use instead of host and port.")
    redis_url: str | None = Field(
        None,
        description="Redis or Valkey of the Horde: wakes waiting requests and carries live text. Without it: polling.",
    )
    stream_redis_db: int | None = Field(
        None, ge=0, description="Database number of the delta streams; default: the one of the URL."
    )
    open_requests_secret: Annotated[SecretStr, Field(min_length=16)] | None = Field(
        None,
        description="Secret of all fronts of one Horde, 16 characters or more (`openssl rand -hex 32`): encrypts the "
        "records of open requests in Redis, by which the requests of a front that died are cancelled. Without it none "
        "are kept.",
    )
    front_lease_seconds: float = Field(
        30.0, ge=0.2, le=3600, description="After so long without contact to Redis a front counts as dead."
    )
    max_inflight: int = Field(4096, ge=1, description="Requests running at once in this process.")
    max_inflight_per_source: int = Field(64, ge=1, description="Requests running at once for one client address.")
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Addresses and networks (CIDR), comma-separated, whose `X-Forwarded-For` is believed."
    )
    max_body_bytes: int = Field(16 * 2**20, ge=1024, description="Largest request body, also after decompression.")
    max_body_bytes_reading: int = Field(
        256 * 2**20, ge=1024, description="Bytes of all request bodies being read at once in this process."
    )
    body_read_timeout_seconds: _Seconds = Field(15.0, description="Time to receive a request body whole.")
    nonstream_timeout_seconds: _Seconds = Field(540.0, description="Longest wait of a request that is not streamed.")
    stream_timeout_seconds: _Seconds = Field(1140.0, description="Longest wait of a streamed request.")
    submit_timeout_seconds: _Seconds = Field(30.0, description="Time for a submit, its re-sends included.")
    call_timeout_seconds: _Seconds = Field(10.0, description="Time for one other call to the Horde.")
    call_slots: int = Field(
        256, ge=4, description="Connections to the Horde; cancels have an eighth more of their own."
    )
    signal_recheck_seconds: _Seconds = Field(1.0, description="Interval of a recheck after an unclear status.")
    poll_seconds: _Seconds = Field(2.0, description="First poll interval without signals; grows to 5 seconds.")
    signalled_poll_seconds: _Seconds = Field(30.0, description="Poll interval while signals arrive.")
    fail_fast_grace_seconds: _Seconds = Field(15.0, description="Wait for an eligible worker to appear.")
    keepalive_seconds: _Seconds = Field(5.0, description="Interval of comments in a waiting stream.")
    write_timeout_seconds: _Seconds = Field(30.0, description="Time a client may leave a part of its answer unread.")
    pace_streams: bool = Field(True, description="Spread each progress post over smaller chunks.")  # noqa: FBT003
    include_reasoning: bool = Field(
        True,  # noqa: FBT003 - pydantic's default is its first argument
        description="Default of `horde.include_reasoning` for requests that do not say.",
    )
    cancel_timeout_seconds: _Seconds = Field(
        5.0, description="Time for one cancel, its wait for a connection included."
    )
    cancel_retry_seconds: _Seconds = Field(15.0, description="Interval at which failed cancels are sent again.")
    drain_accept_seconds: float = Field(
        3.0,
        ge=0,
        le=60,
        description="After the stop signal: time in which requests are still accepted, `/readyz` failing.",
    )
    drain_seconds: _Seconds = Field(20.0, description="After that: time for running requests to finish.")
    model_cache_seconds: float = Field(5.0, ge=0, le=3600, description="How long a model list is served from memory.")
    model_stale_seconds: float = Field(
        300.0, ge=0, le=86400, description="How long the last good list is served while the Horde gives none."
    )
    metrics_host: str = Field("127.0.0.1", description="Address on which a Prometheus may scrape.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port for a Prometheus to scrape `/metrics`; 0 takes a free one."
    )
    log_level: str = Field("INFO", description="Lowest log level written.")
    log_format: LogFormat = Field("auto", description="`text`, `json`, or `auto`: text on a terminal.")

    @field_validator("horde_urls", "trusted_proxies", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        """Read a comma-separated list."""
        if isinstance(value, str):
            return tuple(entry.strip() for entry in value.split(",") if entry.strip())
        return value

    @field_validator("port", mode="before")
    @classmethod
    def _ignore_injected_port(cls, value: object) -> object:
        """Keep the default where a cluster sets ``HORDE_OAI_PORT`` for a service of that name."""
        if isinstance(value, str) and value.startswith("tcp://"):
            return cls.model_fields["port"].default
        return value

    @field_validator("horde_urls")
    @classmethod
    def _check_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Require http(s) URLs and drop a final slash."""
        for url in value:
            if not re.match(r"https?://[^/]+", url):
                raise ValueError("each entry is an http:// or https:// URL")
        return tuple(url.rstrip("/") for url in value)

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Require addresses or networks."""
        for network in value:
            ipaddress.ip_network(network, strict=False)
        return value


def _refuse_unknown_variables() -> None:
    known = {_PREFIX + name.upper() for name in FrontSettings.model_fields}
    for name, value in os.environ.items():
        if not name.startswith(_PREFIX) or name in known:
            continue
        if _CLUSTER_INJECTED.search(name) or (name.endswith("_PORT") and value.startswith("tcp://")):
            continue
        raise SettingsError(f"{name} is not a setting of the front; see docs/reference/settings.md for their names.")


def load_settings() -> FrontSettings:
    """Read the settings from the environment.

    Raises:
        SettingsError: A value is wrong, or a ``HORDE_OAI_*`` variable is unknown (a typo must not be silent).
    """
    _refuse_unknown_variables()
    try:
        return FrontSettings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = _PREFIX + str(first["loc"][0]).upper()
        raise SettingsError(f"{name}: {first['msg']}.") from None
