"""How each program of the project is started: its command line, its environment, its log."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from horde.local.process import Command
from horde.local.state import LocalKeys

__all__ = ["Addresses", "front_command", "model_server_command", "native_command", "worker_command"]

_LOG_FORMAT = "text"
"""The logs are read by a person, in files or when a part crashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the parts find one another.

    Attributes:
        native_url: The Horde, with ``/api``.
        front_url: The front, with ``/v1``.
        logs: Folder of the log files.
        images: Folder of the images that requests hold.
    """

    native_url: str
    front_url: str
    logs: Path
    images: Path


def native_command(addresses: Addresses, listener: socket.socket, *, database_url: str, redis_url: str) -> Command:
    """Return how to start the native Horde on a socket that is bound already."""
    settings = {
        "HORDE_NATIVE_DATABASE_URL": database_url,
        "HORDE_NATIVE_REDIS_URL": redis_url,
        "HORDE_NATIVE_LISTEN_FD": str(listener.fileno()),
        "HORDE_NATIVE_IMAGE_STORE": str(addresses.images),
        "HORDE_NATIVE_LOG_FORMAT": _LOG_FORMAT,
    }
    return _program("horde.native", addresses.logs / "native.log", settings, inherited=(listener.fileno(),))


def front_command(addresses: Addresses, listener: socket.socket, *, redis_url: str) -> Command:
    """Return how to start the front on a socket that is bound already."""
    settings = {
        "HORDE_OAI_HORDE_URLS": addresses.native_url,
        "HORDE_OAI_REDIS_URL": redis_url,
        "HORDE_OAI_LISTEN_FD": str(listener.fileno()),
        "HORDE_OAI_LOG_FORMAT": _LOG_FORMAT,
    }
    # No balancer watches this front, and the person who pressed Ctrl-C is waiting.
    habits = {"HORDE_OAI_DRAIN_ACCEPT_SECONDS": "0", "HORDE_OAI_DRAIN_SECONDS": "5"}
    return _program("horde.oai", addresses.logs / "front.log", settings, habits, inherited=(listener.fileno(),))


def worker_command(addresses: Addresses, keys: LocalKeys, *, backend_url: str) -> Command:
    """Return how to start the worker."""
    settings = {
        "HORDE_WORKER_HORDE_URL": addresses.native_url,
        "HORDE_WORKER_API_KEY": keys.worker,
        "HORDE_WORKER_BACKEND_URL": backend_url,
        "HORDE_WORKER_LOG_FORMAT": _LOG_FORMAT,
    }
    return _program("horde.worker", addresses.logs / "worker.log", settings, {"HORDE_WORKER_DRAIN_SECONDS": "5"})


def model_server_command(addresses: Addresses, model: Path | None) -> Command:
    """Return how to start the model server on a free port; it prints its address."""
    arguments = ["--port", "0", *(["--model", os.fspath(model)] if model else [])]
    return _program("horde.local.model_server", addresses.logs / "model_server.log", {}, arguments=arguments)


def _program(
    module: str,
    log_path: Path,
    settings: Mapping[str, str],
    habits: Mapping[str, str] | None = None,
    *,
    arguments: list[str] | None = None,
    inherited: tuple[int, ...] = (),
) -> Command:
    """Return how to run a module of ours as a program.

    Args:
        module: The module.
        log_path: Its log.
        settings: Environment variables that are ours to say.
        habits: Environment variables that the person's own stand over.
        arguments: Its command line.
        inherited: Descriptors it keeps.
    """
    return Command(
        # -P: a folder named horde where the person happens to be is not this package.
        argv=[sys.executable, "-P", "-m", module, *(arguments or [])],
        log_path=log_path,
        environment={"PYTHONUNBUFFERED": "1", **(habits or {}), **os.environ, **settings},
        inherited=inherited,
    )
