"""A streamed answer from its headers to ``[DONE]``: keepalives, live text, the final reply (rules STR, DLT).

One loop serves a stream: it waits for the request's end, for deltas and for the next thing due, and is the only place
that writes events. What was written is what the relay counts as sent, so a stream ends consistent with the reply.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from horde.oai.answers import EventStream
from horde.oai.errors import ChatFrontError
from horde.oai.mapping import ReplyContext, build_completion, build_system_fingerprint
from horde.oai.native_status import Generation, NativeStatus
from horde.oai.pacing import Pacer
from horde.oai.relay import DeltaRelay, Piece, Reconciled, RelayOutcome
from horde.oai.sse import (
    ChunkHead,
    build_completion_events,
    build_delta_events,
    build_error_events,
    build_final_events,
    build_keepalive_event,
    build_role_event,
)
from horde.oai.state import OpenRequests
from horde.oai.trace import RequestTrace
from horde.oai.wait_errors import RequestFaultedError, StatusRefusedError, StreamDivergedError
from horde.oai.waiter import ChatRequestWatcher, DeltaSubscription
from horde.oai.wake import Wake

__all__ = ["ReplyStream", "StreamShape"]

_STALLED_AFTER_SECONDS: Final = 3.0
"""A relayed stream without an entry for so long is asked about (decision U14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShape:
    """How a stream is sent.

    Attributes:
        keepalive_seconds: Interval of comments.
        paced: Whether posts are spread over smaller chunks.
        include_usage: Whether the client asked for a usage chunk.
        include_reasoning: Whether it gets the reasoning text.
    """

    keepalive_seconds: float
    paced: bool
    include_usage: bool
    include_reasoning: bool


class ReplyStream:
    """One streamed answer.

    Args:
        stream: The open response.
        shape: How it is sent.
        context: What the reply is built with.
        trace: Told of what happened.
        deltas: The request's deltas, None when the reply is delivered whole.
        open_requests: Counts the streams being relayed, which pacing looks at.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        stream: EventStream,
        *,
        shape: StreamShape,
        context: ReplyContext,
        trace: RequestTrace,
        open_requests: OpenRequests,
        deltas: DeltaSubscription | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._shape = shape
        self._context = context
        self._trace = trace
        self._deltas = deltas
        self._open_requests = open_requests
        self._clock = clock
        self._relay = DeltaRelay(include_reasoning=shape.include_reasoning)
        self._pacer = Pacer(enabled=shape.paced)
        self._head: ChunkHead | None = None
        self._last_entry_at = 0.0

    @property
    def diverged(self) -> bool:
        """Whether what was sent can no longer be continued."""
        return self._relay.diverged

    def stalls(self) -> bool:
        """Whether live text has stopped coming, so that the status should be polled."""
        return self._relay.exposed and self._clock() - self._last_entry_at > _STALLED_AFTER_SECONDS

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers: from here on the status is 200 whatever happens (STR-4)."""
        await self._stream.open(headers)
        self._trace.opened()

    async def relay(self, watcher: ChatRequestWatcher) -> NativeStatus:
        """Keep the stream alive and send live text until the reply is there.

        Raises:
            WaitError: The request ended without a reply, or the text sent will not be continued.
            ClientStalledError: The client does not read.
        """
        watcher.on_change = lambda: self._join_when_started(watcher)
        watcher.on_change()
        try:
            status = await self._run(watcher)
        finally:
            watcher.on_change = lambda: None
            self._open_requests.relaying -= self._head is not None
        if status is None:
            await self._raise_divergence(watcher)
        return status  # type: ignore[return-value] # raised above when there is none

    async def complete(self, status: NativeStatus, generation: Generation) -> None:
        """Send what the final reply adds to what was sent, and the end (DLT-25 to DLT-27).

        Raises:
            StreamDivergedError: The reply does not continue what was sent.
        """
        completion = build_completion(self._context, generation, status)
        reconciled = await self._reconcile(generation.id, generation.content or "", generation.reasoning)
        if reconciled.outcome is not None:
            self._trace.metrics.relay_ended(reconciled.outcome.value)
        if reconciled.diverged:
            raise StreamDivergedError
        if reconciled.outcome is None:
            events = build_completion_events(completion, include_usage=self._shape.include_usage)
        else:
            events = [] if self._head is not None else [build_role_event(self._open_head())]
            head = self._open_head()
            events += build_delta_events(head, reasoning=reconciled.rest.reasoning, text=reconciled.rest.text)
            events += build_final_events(head, completion, include_usage=self._shape.include_usage)
        await self._stream.write(events, last=True)
        self._trace.content_sent(relayed=False)
        self._trace.delivered(completion)

    async def _reconcile(self, generation_id: str | None, text: str, reasoning: str | None) -> Reconciled:
        """End the relay; what of the reply was posted and not read yet is read first."""
        relay = self._relay
        complete = relay.is_complete(generation_id=generation_id, text=text, reasoning=reasoning)
        if relay.exposed and not complete and self._deltas is not None:
            relay.feed(await self._deltas.drain())
        self._pacer.discard()
        return relay.reconcile(generation_id=generation_id, text=text, reasoning=reasoning)

    async def fail(self, error: ChatFrontError) -> None:
        """End the stream in the one error event (STR-6)."""
        await self._stream.write(build_error_events(error.envelope(in_stream=True)), last=True)

    async def _run(self, watcher: ChatRequestWatcher) -> NativeStatus | None:
        """Serve the stream until the request ends; None when what was sent can no longer be continued."""
        keepalive_due = self._clock() + self._shape.keepalive_seconds
        changed = Wake()
        finish = asyncio.create_task(watcher.wait(), name="front - waiter")
        finish.add_done_callback(lambda _task: changed.set())
        deltas = self._deltas if self._deltas is not None and not self._deltas.stopped else None
        if deltas is not None:
            deltas.notify(changed.set)
        try:
            while not finish.done():
                if deltas is None or not deltas.arrived:
                    piece_due = self._pacer.next_due()
                    due = keepalive_due if piece_due is None else min(keepalive_due, piece_due)
                    await changed.wait_within(due - self._clock())
                changed.clear()
                if deltas is not None and deltas.arrived:
                    if not self._take_deltas():
                        return None
                    # What stopped brings nothing more, but stays marked as arrived.
                    deltas = None if deltas.stopped else deltas
                await self._send_due()
                if self._clock() >= keepalive_due:
                    keepalive_due = self._clock() + self._shape.keepalive_seconds
                    await self._send_keepalive(None if watcher.started else watcher.latest)
            return finish.result()
        finally:
            if self._deltas is not None:
                self._deltas.notify(None)
            await _cancel(finish)

    def _join_when_started(self, watcher: ChatRequestWatcher) -> None:
        if self._deltas is not None and watcher.started:
            self._deltas.join()

    def _take_deltas(self) -> bool:
        """Feed the relay what has arrived; False when the stream diverged."""
        assert self._deltas is not None  # noqa: S101 - only called for a subscription
        now = self._clock()
        self._last_entry_at = now
        for piece in self._relay.feed(self._deltas.take()):
            self._pacer.add(now, piece, active_streams=self._open_requests.relaying)
        return not self._relay.diverged

    async def _send_due(self) -> None:
        for piece in self._pacer.pop_due(self._clock()):
            await self._send_piece(piece)

    async def _send_piece(self, piece: Piece) -> None:
        events = []
        if self._head is None:
            events.append(build_role_event(self._open_head()))
            self._open_requests.relaying += 1
        events += build_delta_events(self._open_head(), reasoning=piece.reasoning, text=piece.text)
        await self._stream.write(events)
        self._relay.mark_sent(piece)
        self._trace.content_sent(relayed=True)

    def _open_head(self) -> ChunkHead:
        """Return the head that every chunk repeats, fixed by the first delta (RES-28, DLT-21, DLT-22)."""
        if self._head is None:
            model = self._relay.model or self._context.fallback_model
            self._head = ChunkHead(
                self._context.completion_id,
                self._context.created,
                model,
                build_system_fingerprint(self._relay.worker, model),
            )
        return self._head

    async def _send_keepalive(self, waiting: NativeStatus | None) -> None:
        """Send a comment with a place in the queue, as far as it is known and the request is still there."""
        position, wait_time = (0, 0.0) if waiting is None else (waiting.queue_position, waiting.wait_time)
        await self._stream.write([build_keepalive_event(position, wait_time)])

    async def _raise_divergence(self, watcher: ChatRequestWatcher) -> None:
        """End a diverged relay; an ended attempt may be a faulted request, which one read tells."""
        outcome = self._relay.outcome
        if outcome is not None:
            self._trace.metrics.relay_ended(outcome.value)
        if outcome is RelayOutcome.ENDED:
            try:
                status = await watcher.read_once()
            except StatusRefusedError:
                status = None
            if status is not None and status.faulted:
                raise RequestFaultedError(status.fault)
        raise StreamDivergedError


async def _cancel(task: "asyncio.Task[NativeStatus]") -> None:
    """Cancel a task that still runs and wait until it has ended; what it failed with is nobody's any more."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
