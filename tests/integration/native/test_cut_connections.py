"""A database connection that is lost at any statement of any call, before the statement or after its commit.

Each call is made once whole, to count its statements; then it is made anew for each of them, and for both sides of it,
with the connection cut there. What a client or worker then does is what the contract says: it calls again.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from horde_sdk.worker.chat_declaration import ChatImageTransport

from tests.support.database_proxy import Cut, DatabaseProxy, database_proxy
from tests.support.native_invariants import broken_invariants
from tests.support.native_server import Answer, Caller, NativeServer, running_native, seeing
from tests.support.picture_server import encode_picture, image_message

_NEVER = 3600.0
"""Seconds between the statements of the background, so that those of a call are the only ones."""

_WORKER = seeing(ChatImageTransport.BASE64)
_PIXEL = "data:image/png;base64," + base64.b64encode(encode_picture((1, 1))).decode()

_OVER_ALLOWANCE = 4097
"""A reply length above the free allowance: the submit holds kudos."""


@dataclass(slots=True)
class _Story:
    """One request and what is known of it."""

    native: NativeServer
    client: Caller
    owner: Caller
    stream: bool = True
    key: str = field(default_factory=lambda: str(uuid4()))
    pop_id: str = field(default_factory=lambda: str(uuid4()))
    request_id: str = ""
    job: dict[str, Any] = field(default_factory=dict)

    async def submit(self) -> Answer:
        answer = await self.client.submit(
            operation_key=self.key, stream=self.stream, params={"max_length": _OVER_ALLOWANCE}
        )
        self.request_id = answer.body.get("id", "")
        return answer

    async def submit_image(self) -> Answer:
        answer = await self.client.submit(operation_key=self.key, messages=[image_message(_PIXEL)])
        self.request_id = answer.body.get("id", "")
        return answer

    async def pop(self) -> Answer:
        answer = await self.owner.pop(pop_id=self.pop_id, declared=_WORKER, max_length=8192, running=[])
        if answer.status == 200:
            self.job = answer.body
        return answer

    async def progress(self) -> Answer:
        return await self.owner.progress(self.job["id"], 1, "A reply")

    async def reply(self) -> Answer:
        return await self.owner.reply(self.job, "A reply.")

    async def fault(self) -> Answer:
        return await self.owner.fault(self.job)

    async def status(self) -> Answer:
        return await self.client.call("GET", f"/v2/generate/chat/status/{self.request_id}")

    async def cancel(self) -> Answer:
        return await self.client.cancel(self.request_id)

    async def cancel_operation(self) -> Answer:
        return await self.client.cancel_operation(self.key)


Step = Callable[[_Story], Awaitable[Answer]]

_DONE_TWICE = frozenset({"reply", "fault"})
"""Calls that are refused with 409 when they were committed before."""

_PATHS: dict[str, tuple[tuple[Step, ...], Step]] = {
    "submit": ((), _Story.submit),
    "submit with an image": ((), _Story.submit_image),
    "pop with an image": ((_Story.submit_image,), _Story.pop),
    "status": ((_Story.submit,), _Story.status),
    "pop": ((_Story.submit,), _Story.pop),
    "progress": ((_Story.submit, _Story.pop), _Story.progress),
    "reply": ((_Story.submit, _Story.pop, _Story.progress), _Story.reply),
    "fault": ((_Story.submit, _Story.pop), _Story.fault),
    "cancel of a waiting request": ((_Story.submit,), _Story.cancel),
    "cancel of a running one": ((_Story.submit, _Story.pop, _Story.progress), _Story.cancel),
    "cancel of a replied one": ((_Story.submit, _Story.pop, _Story.reply), _Story.cancel),
    "cancel by key": ((_Story.submit, _Story.pop), _Story.cancel_operation),
    "cancel by a key that comes first": ((), _Story.cancel_operation),
}
"""By name: the calls that come before, and the call whose connection is cut."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A Horde whose connections to its database can be cut, and who calls it."""

    native: NativeServer
    proxy: DatabaseProxy
    client: Caller
    owner: Caller

    def story(self) -> _Story:
        return _Story(self.native, self.client, self.owner)


@pytest.fixture
async def place(migrated_database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[_Place]:
    async with (
        database_proxy(migrated_database_url) as proxy,
        running_native(
            proxy.url,
            redis_url,
            snapshot_seconds=_NEVER,
            sweep_seconds=_NEVER,
            relook_seconds=_NEVER,
            database_pool_size=2,
            image_store=str(tmp_path / "images"),
        ) as native,
    ):
        client, owner = await native.user("a client", kudos=100_000), await native.user("an owner")
        await owner.pop(declared=_WORKER, max_length=8192)
        await client.call("GET", "/v2/find_user")
        yield _Place(native, proxy, client, owner)


async def _end(story: _Story) -> None:
    """Let a request end as its people would: the worker replies to what it holds, then pops until nothing is left."""
    if not story.request_id:
        return
    if story.job:
        assert (await story.reply()).status in {200, 404, 409}
    while not (await story.client.status(story.request_id))["done"]:
        story.pop_id = str(uuid4())
        answer = await story.pop()
        assert answer.status == 200, answer
        assert answer.body["id"] is not None, answer
        assert (await story.reply()).status == 200


@pytest.mark.rule("SUB-2", "KUD-16")
@pytest.mark.parametrize("path", _PATHS)
@pytest.mark.parametrize("cut", Cut)
async def test_whatever_connection_is_lost_nothing_is_lost_or_doubled(place: _Place, path: str, cut: Cut) -> None:
    before, call = _PATHS[path]
    name = call.__name__
    whole = place.story()
    for step in before:
        await step(whole)
    place.proxy.count_anew()
    assert (await call(whole)).status in {200, 202}
    rounds = place.proxy.rounds
    await _end(whole)

    for cut_at in range(1, rounds + 1):
        story = place.story()
        for step in before:
            assert (await step(story)).status in {200, 202}
        place.proxy.count_anew(cut_at, cut)
        first = await call(story)
        # A statement that follows a commit may fail without the caller's knowing.
        assert first.status in {200, 202} or (first.status == 503 and first.rc is None), (cut_at, first)
        place.proxy.count_anew()

        again = await call(story)

        allowed = {200, 202, 409} if name in _DONE_TWICE else {200, 202}
        assert again.status in allowed, (cut_at, first, again)
        if first.status in {200, 202} and "id" in first.body:
            assert again.body.get("id") == first.body["id"]
        await _end(story)
        assert await broken_invariants(place.native.pool) == {}, (cut_at, first, again)
    doubled = "SELECT operation_key FROM chat_operations GROUP BY 1 HAVING count(*) > 1"
    assert await place.native.pool.fetch(doubled) == []
    shared = "SELECT request_id FROM chat_images WHERE request_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1"
    assert await place.native.pool.fetch(shared) == []
