"""Run the official Node SDK's tests against the front over a scripted Horde; `make test-node` does it.

Node.js and npm have to be there; the packages are those of `tests/node/package-lock.json`, kept in `.horde/node`.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from tests.support.front import FAST
from tests.support.scripted_horde import Answer, ScriptedHorde, generation, scripted_horde, status
from tests.support.serving import serving

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "tests" / "node"
FOLDER = ROOT / ".horde" / "node"


def install() -> None:
    """Copy the tests beside their packages, which are installed when the lock has changed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lock = FOLDER / "package-lock.json"
    current = lock.is_file() and lock.read_bytes() == (SOURCES / lock.name).read_bytes()
    for source in SOURCES.iterdir():
        if source.is_file():
            shutil.copy(source, FOLDER)
    if not current or not (FOLDER / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--silent"], cwd=FOLDER, check=True)


def read_script(horde: ScriptedHorde, replies: Any) -> None:  # noqa: ANN401 - any JSON
    """Set what the next requests are answered with."""
    bodies = []
    for reply in replies if isinstance(replies, list) else [replies]:
        if reply.get("faulted"):
            bodies += [status("queued"), status("faulted")]
        else:
            fields = dict(reply)
            bodies.append(status("replied", generation(fields.pop("content"), **fields)))
    horde.restart([Answer(body=body) for body in bodies])


async def run() -> int:
    """Serve front, Horde and script, and run the tests."""
    async with scripted_horde() as horde:

        async def script(request: web.Request) -> web.Response:
            read_script(horde, orjson.loads(await request.read()))
            return web.Response()

        app = web.Application()
        app.router.add_post("/", script)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        settings = FrontSettings(horde_urls=(horde.url,), **FAST)
        async with serving(create_app(settings)) as url:
            environment = os.environ | {
                "FRONT_URL": f"{url}/v1",
                "SCRIPT_URL": f"http://127.0.0.1:{runner.addresses[0][1]}/",
            }
            process = await asyncio.create_subprocess_exec("node", "--test", cwd=FOLDER, env=environment)
            code = await process.wait()
        await runner.cleanup()
        return code


if __name__ == "__main__":
    install()
    sys.exit(asyncio.run(run()))
