"""One ``horde up`` for the tests that only ask it things."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.folders import server_folder
from tests.support.whole_horde import WholeHorde

ONE_AFTER_ANOTHER = "horde up"
"""Group whose tests run in one process, one after another: each starts a real model on all cores."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "end_to_end" in item.path.parts:
            item.add_marker(pytest.mark.xdist_group(ONE_AFTER_ANOTHER))


@pytest.fixture(scope="session")
def whole_horde() -> Iterator[WholeHorde]:
    """A whole Horde with the real model, started once."""
    with server_folder("horde-up") as folder, asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        horde = WholeHorde.start(folder)
        try:
            yield runner.run(horde.ready())
        finally:
            runner.run(horde.stop())
