"""Call front and native Horde by their own OpenAPI documents with schemathesis; exit 0 when it finds nothing.

`make fuzz` runs it: the front over a scripted Horde, the Horde over a PostgreSQL and a Valkey of its own, with a user,
a worker and requests in it. The first argument may be ``front`` or ``native`` to call one of them; further arguments
are schemathesis' own. It needs older libraries than the project, so it lives in an environment of its own,
`.venv/fuzz`, from `requirements-fuzz.lock`.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from tests.support.folders import server_folder
from tests.support.front import FAST
from tests.support.native_server import running_native
from tests.support.postgres import DatabasesForTests
from tests.support.scripted_horde import scripted_horde
from tests.support.serving import serving
from tests.support.valkey import StreamStoreForTests

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv" / "fuzz"
LOCK = ROOT / "requirements-fuzz.lock"


def make_environment() -> Path:
    """Return schemathesis' program, installed when it is not there."""
    program = ENVIRONMENT / "bin" / "schemathesis"
    if not program.exists():
        uv = ROOT / ".venv" / "bin" / "uv"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, ENVIRONMENT], check=True)
        python = ENVIRONMENT / "bin" / "python"
        subprocess.run([uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, str(LOCK)], check=True)
    return program


async def _call(program: Path, url: str, arguments: Sequence[str]) -> int:
    """Run schemathesis against a service and return its exit code."""
    process = await asyncio.create_subprocess_exec(
        program, "run", f"{url}/openapi.json", "--max-examples", "100", *arguments, cwd=ROOT
    )
    return await process.wait()


def fuzz_front(program: Path, arguments: Sequence[str]) -> int:
    """Call a front over a scripted Horde."""

    async def work() -> int:
        async with scripted_horde() as horde:
            settings = FrontSettings(horde_urls=(horde.url,), **FAST)
            async with serving(create_app(settings)) as url:
                return await _call(program, url, arguments)

    return asyncio.run(work())


def fuzz_native(program: Path, arguments: Sequence[str]) -> int:
    """Call a native Horde in use, as a user who also owns a worker."""

    async def work(database_url: str, redis_url: str) -> int:
        async with running_native(database_url, redis_url) as native:
            user = await native.user("fuzz", kudos=10_000)
            await user.come_online()
            for _ in range(20):
                await user.submit_id(stream=True)
            return await _call(program, native.base_url, ["--header", f"apikey: {user.api_key}", *arguments])

    with (
        server_folder("postgres") as postgres_folder,
        DatabasesForTests(postgres_folder) as databases,
        server_folder("valkey") as valkey_folder,
        StreamStoreForTests(valkey_folder) as store,
    ):
        return asyncio.run(work(databases.url_of(databases.create_migrated()), store.url))


_TARGETS: Final[dict[str, Callable[[Path, Sequence[str]], int]]] = {"front": fuzz_front, "native": fuzz_native}


def main(arguments: list[str]) -> int:
    """Call the targets asked for, one after the other; return the first exit code that is not 0."""
    program = make_environment()
    named = arguments[:1] if arguments[:1] and arguments[0] in _TARGETS else []
    codes = [_TARGETS[target](program, arguments[len(named) :]) for target in named or _TARGETS]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
