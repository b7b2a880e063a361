"""Call the front by its own OpenAPI document with schemathesis, over a scripted Horde; exit 0 when it finds nothing.

`make fuzz` runs it. Schemathesis needs older libraries than the project, so it lives in an environment of its own,
`.venv/fuzz`, from `requirements-fuzz.lock`. Further arguments are schemathesis' own.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from tests.support.front import FAST
from tests.support.scripted_horde import scripted_horde
from tests.support.serving import serving

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


async def fuzz(program: Path, arguments: list[str]) -> int:
    """Serve the front and run schemathesis against it."""
    async with scripted_horde() as horde:
        settings = FrontSettings(horde_urls=(horde.url,), **FAST)
        async with serving(create_app(settings)) as url:
            process = await asyncio.create_subprocess_exec(
                program, "run", f"{url}/openapi.json", "--max-examples", "100", *arguments, cwd=ROOT
            )
            return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(fuzz(make_environment(), sys.argv[1:])))
