"""``POST /v1/chat/completions``: the life of one request, from its bytes to its last one.

Read top to bottom: check, take a slot, submit once, wait, answer; and whatever way it ends, the slot is given back, a
job nobody waits for is cancelled, and one line is logged, once each.
"""

import asyncio
import uuid
from contextlib import ExitStack, suppress
from enum import StrEnum
from typing import Final

import orjson
from loguru import logger
from starlette.types import Message, Receive, Scope, Send

from horde.oai.answers import ClientStalledError, EventStream, read_headers, send_error, send_json
from horde.oai.body import ClientLeftError
from horde.oai.cancel import CancelTarget
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.horde_client import NativeAnswer
from horde.oai.mapping import (
    ReplyContext,
    build_completion,
    build_native_chat_body,
    estimate_request_tokens,
    relays_deltas,
)
from horde.oai.native_status import NativeStatus
from horde.oai.prepare import PreparedRequest, prepare_request
from horde.oai.state import FrontState
from horde.oai.streaming import ReplyStream, StreamShape
from horde.oai.submit import Submission
from horde.oai.trace import RequestTrace
from horde.oai.wait_answers import shutting_down_error, wait_error_answer
from horde.oai.wait_errors import (
    DeclarationGapError,
    FrontStoppingError,
    QueueUnavailableError,
    RequestFaultedError,
    StreamDivergedError,
    WaitError,
)
from horde.oai.waiter import ChatRequestWatcher, DeltaSubscription, SignalSubscription, WaitBudget, WaitTiming

__all__ = ["ChatExchange", "chat_completions"]

_RETRY_COUNT_HEADER: Final = "x-stainless-retry-count"


class _Interruption(StrEnum):
    """Why an exchange was ended from outside."""

    CLIENT_LEFT = "client left"
    SHUTDOWN = "shutdown"


async def chat_completions(state: FrontState, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request: check it, take a slot, and let a :class:`ChatExchange` do the rest."""
    headers = read_headers(scope)
    if headers.get(_RETRY_COUNT_HEADER, "0").strip("0 "):
        state.metrics.client_retried()
    try:
        prepared = await prepare_request(state, scope, receive, headers)
        state.open_requests.check_open()
        slot = state.limiter.acquire(prepared.source)
    except ClientLeftError:
        return
    except ChatFrontError as error:
        state.metrics.request_refused(error.status, error.code)
        await send_error(send, error)
        return
    exchange = ChatExchange(state, prepared, receive, send)
    del prepared  # It holds the body, which nothing needs once the request is submitted.
    with slot:
        await exchange.run()


class ChatExchange:
    """One admitted request.

    Args:
        state: The front.
        prepared: The checked request.
        receive: The ASGI channel, which tells when the client leaves.
        send: The ASGI channel for the answer.
    """

    def __init__(self, state: FrontState, prepared: PreparedRequest, receive: Receive, send: Send) -> None:
        self._state = state
        self._receive = receive
        self._send_raw = send
        request = prepared.request
        options = request.horde
        self._request = request.without_content()
        self._caller = prepared.caller
        self._created = prepared.created
        self._budget = WaitBudget(prepared.arrived + prepared.budget_seconds)
        self._prompt_tokens = estimate_request_tokens(prepared.body)
        self._relays = state.reader is not None and relays_deltas(request)
        self._fail_fast = options is not None and options.availability_mode == "fail_fast"
        asked = options.include_reasoning if options is not None else None
        self._include_reasoning = state.settings.include_reasoning if asked is None else asked
        self._trace = RequestTrace(
            state.metrics, bool(request.stream), request.accepted_models, self._fail_fast, arrived=prepared.arrived
        )
        self._operation = CancelTarget(prepared.caller, prepared.arrived, str(uuid.uuid4()))
        self._submission: Submission | None = self._build_submission(prepared)
        self._submit_task: asyncio.Task[CancelTarget] | None = None
        self._started = False
        self._target: CancelTarget | None = None
        self._ended = False
        self._reply: ReplyStream | None = None
        self._work: asyncio.Task[None] | None = None
        self._interruption: _Interruption | None = None

    async def run(self) -> None:
        """Serve the request to its end; returns when its answer is out or nobody wants it."""
        work = self._work = asyncio.create_task(self._serve(), name="front - chat request")
        client = asyncio.create_task(self._watch_client(), name="front - client")
        self._state.open_requests.add(self)
        try:
            await asyncio.wait({work})
            await self._settle(work)
        finally:
            client.cancel()
            if not work.done():  # The server itself gives this request up.
                work.cancel()
                await asyncio.wait({work})
            self._abandon()
            self._state.cancels.settle(self._operation.operation_key)
            self._state.open_requests.remove(self)
            self._trace.finish()
            await asyncio.wait({client})

    def interrupt(self) -> None:
        """End the request now: this front stops (decision U44)."""
        self._interrupt(_Interruption.SHUTDOWN)

    def _interrupt(self, reason: _Interruption) -> None:
        if self._interruption is None and self._work is not None and not self._work.done():
            self._interruption = reason
            self._work.cancel()

    async def _watch_client(self) -> None:
        """Wait for the client to leave; never polled."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._interrupt(_Interruption.CLIENT_LEFT)

    async def _serve(self) -> None:
        """Submit, wait, answer."""
        try:
            target = await self._submit()
        except ChatFrontError as error:
            self._ended = True
            await self._answer_error(error)
            return
        self._target = target
        self._trace.submitted(target.request_id or "")
        with ExitStack() as held:
            state = self._state
            signals = deltas = None
            request_id = target.request_id or ""
            if state.listener is not None:
                signals = held.enter_context(state.listener.register(request_id))
            if state.reader is not None and self._relays:
                deltas = held.enter_context(state.reader.subscribe(request_id))
            try:
                await self._deliver_or_answer(target, signals, deltas)
            except ClientStalledError:
                logger.info("The client of request {} stopped reading; its request is cancelled", request_id)

    def _build_submission(self, prepared: PreparedRequest) -> Submission:
        key = self._operation.operation_key
        body = build_native_chat_body(prepared.request, prepared.body, operation_key=key, relay=self._relays)
        return Submission(self._request, orjson.dumps(body), key, prepared.caller)

    async def _submit(self) -> CancelTarget:
        """Submit once; a client that leaves meanwhile does not interrupt it, and what it created is cancelled."""
        submission, self._submission = self._submission, None
        assert submission is not None  # noqa: S101 - a request is submitted once
        submit = asyncio.create_task(self._state.submitter.submit(submission), name="front - submit")
        del submission
        try:
            return await asyncio.shield(submit)
        except asyncio.CancelledError:
            if self._interruption is _Interruption.SHUTDOWN:
                self._submit_task = submit
            else:
                self._state.cancels.spawn_after(submit, self._operation)
            raise

    async def _deliver_or_answer(
        self, target: CancelTarget, signals: SignalSubscription | None, deltas: DeltaSubscription | None
    ) -> None:
        try:
            await self._deliver(target, signals, deltas)
        except WaitError as error:
            await self._answer_wait_error(target, error)

    async def _deliver(
        self, target: CancelTarget, signals: SignalSubscription | None, deltas: DeltaSubscription | None
    ) -> None:
        watcher = self._build_watcher(target, signals)
        status = await watcher.decide()
        if not self._request.stream:
            await self._answer_whole(status or await watcher.wait())
            return
        reply = self._reply = self._build_stream(deltas)
        await reply.open(self._request_headers())
        await self._complete_stream(reply, status or await reply.relay(watcher))

    def _build_watcher(self, target: CancelTarget, signals: SignalSubscription | None) -> ChatRequestWatcher:
        state, caller = self._state, self._caller
        settings, listener = state.settings, state.listener
        request_id = target.request_id or ""

        async def read_status(seconds: float) -> NativeAnswer:
            return await state.client.status(request_id, caller, limit_seconds=seconds)

        return ChatRequestWatcher(
            read_status,
            budget=self._budget,
            timing=WaitTiming(
                recheck=settings.signal_recheck_seconds,
                poll=settings.poll_seconds,
                signalled_poll=settings.signalled_poll_seconds,
                grace=settings.fail_fast_grace_seconds,
                call=settings.call_timeout_seconds,
            ),
            observer=self._trace,
            signals=signals,
            signals_alive=lambda: listener is not None and listener.alive,
            fail_fast=self._fail_fast,
            hurry=lambda: self._reply is not None and self._reply.stalls(),
        )

    def _build_stream(self, deltas: DeltaSubscription | None) -> ReplyStream:
        settings, request = self._state.settings, self._request
        return ReplyStream(
            EventStream(self._send, write_timeout_seconds=settings.write_timeout_seconds),
            shape=StreamShape(
                keepalive_seconds=settings.keepalive_seconds,
                paced=settings.pace_streams,
                include_usage=bool(request.stream_options and request.stream_options.include_usage),
                include_reasoning=self._include_reasoning,
            ),
            context=self._reply_context(),
            trace=self._trace,
            open_requests=self._state.open_requests,
            deltas=deltas,
        )

    def _reply_context(self) -> ReplyContext:
        return ReplyContext(
            request_id=self._trace.request_id or "",
            fallback_model=self._request.accepted_models[0],
            prompt_tokens=self._prompt_tokens,
            created=self._created,
            include_reasoning=self._include_reasoning,
        )

    def _request_headers(self) -> dict[str, str]:
        return {"x-request-id": self._trace.request_id or self._operation.operation_key}

    async def _answer_whole(self, status: NativeStatus) -> None:
        if status.generation is None:
            raise AssertionError("a reply has a generation")
        self._ended = True
        completion = build_completion(self._reply_context(), status.generation, status)
        await send_json(self._send, 200, completion, self._request_headers())
        self._trace.content_sent(relayed=False)
        self._trace.delivered(completion)

    async def _complete_stream(self, reply: ReplyStream, status: NativeStatus) -> None:
        if status.generation is None:
            raise AssertionError("a reply has a generation")
        self._ended = True
        await reply.complete(status, status.generation)

    async def _answer_wait_error(self, target: CancelTarget, error: WaitError) -> None:
        """Cancel what nobody waits for any more, and answer; a reply that the cancel's answer shows is delivered."""
        if isinstance(error, QueueUnavailableError):
            self._trace.refused_by_queue(error.wait_time, error.threads)
        if isinstance(error, RequestFaultedError):
            self._ended = True
        elif not self._ended:
            try:
                if await self._cancel_and_deliver(target):
                    return
            except StreamDivergedError as diverged:
                error = diverged
        cards = await self._state.catalog.known_cards() if isinstance(error, DeclarationGapError) else {}
        await self._answer_error(wait_error_answer(error, self._request, target.request_id or "", cards))

    async def _cancel_and_deliver(self, target: CancelTarget) -> bool:
        """Cancel the request; deliver and return True when its reply was there before the cancel.

        Raises:
            StreamDivergedError: The reply is there and does not continue what was streamed.
        """
        self._ended = True  # The cancel is its own task from here on, whatever becomes of this one.
        status = await self._state.cancels.cancel(target)
        if status is None or not status.replied or (self._reply is not None and self._reply.diverged):
            return False
        if self._reply is None and not self._request.stream:
            await self._answer_whole(status)
            return True
        reply = self._reply
        if reply is None:
            reply = self._reply = self._build_stream(None)
            await reply.open(self._request_headers())
        await self._complete_stream(reply, status)
        return True

    async def _answer_error(self, error: ChatFrontError) -> None:
        self._trace.failed(error)
        if self._reply is not None and self._trace.headers_sent:
            await self._reply.fail(error)
        elif not self._started:
            await send_error(self._send, error, self._request_headers())

    async def _send(self, message: Message) -> None:
        """Pass a message on, and remember that a response was begun: there is never a second one."""
        self._started = self._started or message["type"] == "http.response.start"
        try:
            await self._send_raw(message)
        except (RuntimeError, OSError):
            # The connection is gone and the server did not say so: of a client that pipelines it tells only the last
            # request.
            raise ClientStalledError from None

    async def _settle(self, work: "asyncio.Task[None]") -> None:
        """Answer for work that ended in another way than by its own answer."""
        if work.cancelled():
            if self._interruption is _Interruption.SHUTDOWN:
                await self._answer_shutdown()
            elif self._interruption is _Interruption.CLIENT_LEFT and self._target is not None:
                self._trace.disconnected()
            return
        failure = work.exception()
        if failure is None:
            return
        logger.opt(exception=failure).error("A chat request ended in a defect of the front")
        error = ChatFrontError(FrontCode.INTERNAL, "The front failed on this request; its operator's log says why.")
        with suppress(ClientStalledError):
            await self._answer_error(error)

    async def _answer_shutdown(self) -> None:
        """Cancel on the Horde and say that this front stops; a reply that is already there is delivered."""
        with suppress(ClientStalledError):
            if self._target is not None:
                await self._answer_wait_error(self._target, FrontStoppingError())
            elif self._submit_task is not None:
                confirmed = await self._state.cancels.abort(self._submit_task, self._operation)
                key = None if confirmed else self._operation.operation_key
                await self._answer_error(shutting_down_error(None, unknown_operation=key))

    def _abandon(self) -> None:
        """Cancel a job that nobody waits for any more, in the background."""
        if self._target is not None and not self._ended:
            self._ended = True
            self._state.cancels.spawn(self._target)
