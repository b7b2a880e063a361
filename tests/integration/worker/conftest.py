"""Fixtures of the worker's tests: a scripted Horde, a scripted model server, and the real one."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.scripted_model import ScriptedModel
from tests.support.scripted_pops import ScriptedPops
from tests.support.serving import Served, serving
from tests.support.working import running_model_server


@pytest.fixture
async def horde() -> AsyncIterator[Served[ScriptedPops]]:
    """A scripted Horde."""
    pops = ScriptedPops()
    async with serving(pops) as url:
        yield Served(pops, url)


@pytest.fixture
async def model() -> AsyncIterator[Served[ScriptedModel]]:
    """A scripted model server; its URL is the OpenAI base URL."""
    scripted = ScriptedModel()
    async with serving(scripted) as url:
        yield Served(scripted, f"{url}/v1")


@pytest.fixture(scope="session")
def real_model_url() -> Iterator[str]:
    """OpenAI base URL of llama.cpp with the bundled model, two slots."""
    with running_model_server("--slots=2", "--context=2048") as url:
        yield url
