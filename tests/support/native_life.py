"""Everything that users, workers, administrators and clocks do to a Horde, with what is known of its requests."""

from decimal import Decimal
from typing import Any, Final
from uuid import uuid4

from horde.native.admin.operations import AdminError, award_kudos
from tests.support.native_server import Answer, Caller, NativeServer, declaration
from tests.support.waiting import wait_until

__all__ = ["FAULT_REASONS", "NativeLife"]

FAULT_REASONS: Final = ("generation_error", "prompt_overflow", "tool_violation", "reply_refused")
_EXPECTED: Final = frozenset({200, 202, 400, 403, 404, 409})
"""No call ever ends in a server error."""

_LONG: Final = 8192


class NativeLife:
    """One of everything that can be done, with what is known of requests and jobs.

    Args:
        native: The Horde.
        submitters: Who submits: the last one is anonymous.
        owners: Who owns workers.
    """

    def __init__(self, native: NativeServer, submitters: list[Caller], owners: list[Caller]) -> None:
        self.native = native
        self.submitters = submitters
        self.owners = owners
        self.names: list[str] = []
        self.tag = uuid4().hex[:8]
        self.requests: list[tuple[Caller, str]] = []
        self.jobs: list[tuple[Caller, dict[str, Any]]] = []
        self.keys: list[tuple[Caller, str, dict[str, object]]] = []

    @classmethod
    async def begin(cls, native: NativeServer) -> "NativeLife":
        """Make users and let their workers come online."""
        tag = uuid4().hex[:8]
        owners = [await native.user(f"owner-{number}-{tag}") for number in range(2)]
        rich, poor = await native.user(f"rich-{tag}", kudos=2000), await native.user(f"poor-{tag}", kudos=1)
        life = cls(native, [rich, poor, owners[0], native.caller()], owners)
        life.names = [f"rich-{tag}", f"poor-{tag}"]
        for number in range(3):
            await life.pop(number)
        return life

    async def submit(self, who: int, *, stream: bool, large: bool, both: bool) -> None:
        """Submit a request, under a key of its own."""
        caller = self.submitters[who % len(self.submitters)]
        body: dict[str, object] = {
            "stream": stream,
            "params": {"max_length": _LONG if large else 64},
            "models": ["test/model-a", "test/model-b"] if both else ["test/model-a"],
            "operation_key": str(uuid4()),
        }
        self.keys.append((caller, str(body["operation_key"]), body))
        answer = _seen(await caller.submit(**body))
        if answer.status == 202:
            self.requests.append((caller, answer.body["id"]))

    async def submit_again(self, which: int) -> None:
        """Send a submit once more."""
        if self.keys:
            caller, _, body = self.keys[which % len(self.keys)]
            answer = _seen(await caller.submit(**body))
            # The first copy may have been refused; then this one is the first.
            if answer.status == 202:
                self.requests.append((caller, answer.body["id"]))

    async def cancel(self, which: int) -> None:
        """Cancel a request, whatever its state."""
        if self.requests:
            caller, request_id = self.requests[which % len(self.requests)]
            _seen(await caller.cancel(request_id))

    async def cancel_key(self, which: int) -> None:
        """Cancel by an operation key."""
        if self.keys:
            caller, key, _ = self.keys[which % len(self.keys)]
            _seen(await caller.cancel_operation(key))

    async def pop(self, which: int) -> None:
        """Pop with one of three workers."""
        number = which % 3
        owner = self.owners[number % 2]
        declared = declaration("test/model-b" if number == 1 else "test/model-a", max_length=16384)
        name = f"worker-{number}-{self.tag}"
        answer = _seen(await owner.pop(name=name, declared=declared, pop_id=str(uuid4())))
        if answer.body["id"] is not None:
            self.jobs.append((owner, answer.body))

    async def progress(self, which: int, seq: int) -> None:
        """Post for a job, in order or not."""
        if self.jobs:
            owner, job = self.jobs[which % len(self.jobs)]
            _seen(await owner.progress(job["id"], seq, "some text"))

    async def reply(self, which: int, length: int) -> None:
        """Submit a reply of a length in characters."""
        if self.jobs:
            owner, job = self.jobs[which % len(self.jobs)]
            _seen(await owner.reply(job, "x" * length))

    async def fault(self, which: int, reason: str) -> None:
        """Submit a fault."""
        if self.jobs:
            owner, job = self.jobs[which % len(self.jobs)]
            _seen(await owner.fault(job, reason))

    async def lose_lease(self) -> None:
        """Let the lease of every running job end."""
        await self.native.pool.execute("UPDATE chat_jobs SET deadline_at = now() WHERE state = 'processing'")

    async def expire(self) -> None:
        """Let every third open request expire."""
        await self.native.pool.execute(
            "UPDATE chat_requests SET expires_at = now() WHERE state IN ('waiting', 'processing') AND seq % 3 = 0"
        )

    async def award(self, which: int, kudos: int) -> None:
        """Award kudos to a submitter, or take some when negative."""
        try:
            await award_kudos(self.native.pool, self.names[which % len(self.names)], Decimal(kudos))
        except AdminError:
            # Of nothing at all.
            assert kudos == 0

    async def forget(self) -> None:
        """Let the records of ended requests come to the end of their time, and wait for their deletion."""
        await self.native.pool.execute(
            "UPDATE chat_requests SET expires_at = now() - interval '1 hour'"
            " WHERE state NOT IN ('waiting', 'processing')"
        )
        gone = "SELECT count(*) = 0 FROM chat_requests WHERE expires_at < now() - interval '50 minutes'"
        await wait_until(lambda: self.native.pool.fetchval(gone), description="old records to be deleted")

    def move_to(self, native: NativeServer) -> None:
        """Go on with another process of the same Horde."""
        self.native = native
        self.submitters = [native.caller(caller.api_key) for caller in self.submitters]
        self.owners = [native.caller(caller.api_key) for caller in self.owners]
        self.requests = [(native.caller(caller.api_key), request_id) for caller, request_id in self.requests]
        self.jobs = [(native.caller(caller.api_key), job) for caller, job in self.jobs]
        self.keys = [(native.caller(caller.api_key), key, body) for caller, key, body in self.keys]

    async def finish(self) -> None:
        """Let every request end."""
        await self.native.pool.execute(
            "UPDATE chat_requests SET expires_at = now() WHERE state IN ('waiting', 'processing')"
        )
        open_ones = "SELECT count(*) = 0 FROM chat_requests WHERE state IN ('waiting', 'processing')"
        await wait_until(lambda: self.native.pool.fetchval(open_ones), description="every request to end")


def _seen(answer: Answer) -> Answer:
    assert answer.status in _EXPECTED, answer
    return answer
