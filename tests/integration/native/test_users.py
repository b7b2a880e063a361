import hashlib

import pytest

from horde.native.users import ensure_user
from tests.support.native_invariants import broken_invariants
from tests.support.native_server import Caller, NativeServer


async def test_a_user_is_made_once_and_its_key_is_stored_as_a_hash(native: NativeServer) -> None:
    first = await ensure_user(native.pool, "somebody", "a key", kudos=10)
    assert await ensure_user(native.pool, "somebody", "a key", kudos=10) == first
    stored = await native.pool.fetchval("SELECT api_key_hash FROM users WHERE id = $1", first)
    assert stored == hashlib.sha256(b"a key").digest()

    found = await native.caller("a key").call("GET", "/v2/find_user")
    assert (found.body["id"], found.body["username"], found.body["kudos"]) == (first, "somebody", 10.0)
    assert await broken_invariants(native.pool) == {}


async def test_a_user_can_be_given_another_key(native: NativeServer) -> None:
    first = await ensure_user(native.pool, "somebody", "a key")
    assert await ensure_user(native.pool, "somebody", "another key") == first
    assert (await native.caller("another key").call("GET", "/v2/find_user")).body["id"] == first
    assert (await native.caller("a key").call("GET", "/v2/find_user")).rc == "InvalidAPIKey"


@pytest.mark.parametrize("key", ["0000000000", "", "taken"])
async def test_a_key_that_is_somebody_elses_is_not_given(native: NativeServer, key: str) -> None:
    await ensure_user(native.pool, "first", "taken")
    with pytest.raises(ValueError, match="key"):
        await ensure_user(native.pool, "second", key)


async def test_the_anonymous_user_has_nothing(native: NativeServer) -> None:
    found = await native.caller().call("GET", "/v2/find_user")
    assert (found.body["id"], found.body["username"], found.body["kudos"]) == (0, "Anonymous", 0.0)


async def test_workers_are_listed_and_shown(native: NativeServer, owner: Caller) -> None:
    await owner.come_online(threads=3)
    listed = await native.caller().call("GET", "/v2/workers")
    shown = await native.caller().call("GET", f"/v2/workers/{await native.worker_id()}")
    assert listed.body == [shown.body]
    assert (shown.body["name"], shown.body["online"], shown.body["threads"]) == ("worker-1", True, 3)
    assert (await native.caller().call("GET", "/v2/workers/nonsense")).rc == "WorkerNotFound"
