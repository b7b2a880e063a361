"""One job, from the pop's answer to the submit: a page that reads from top to bottom."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from horde_sdk.worker.chat_declaration import (
    ChatFaultReason,
    ChatFinishReason,
    ChatJobPayload,
    build_chat_reply_submit,
)
from loguru import logger

from horde.chat_contract import CHAT_REQUEST_EXPIRY_SECONDS
from horde.worker.activity import JobActivity, WorkerActivity
from horde.worker.backend_health import BackendHealth
from horde.worker.backends.base import (
    BackendError,
    BackendUnavailableError,
    ChatBackend,
    GenerationFinished,
    ReasoningDelta,
    TextDelta,
)
from horde.worker.declaration import WorkerOffer
from horde.worker.delivery import Delivery, deliver_fault, deliver_reply
from horde.worker.horde_client import HordeClient, ProgressVerdict
from horde.worker.metrics import JobOutcome
from horde.worker.picture_fetcher import PictureFetcher
from horde.worker.pictures import PictureError, are_plain_contents
from horde.worker.progress import JobCancelledError, PostProgress, ProgressPacing, ProgressPoster
from horde.worker.structured import breaks_strict_schema

__all__ = ["Job", "JobRunner", "UnusableJobError", "read_job"]

_MAX_REPLY_BYTES: Final = 1024 * 1024
"""The Horde takes no longer reply."""

_MAX_JOB_ID_CHARACTERS: Final = 128

_LAST_FAULT_SECONDS: Final = 3.0
"""Time to tell the Horde of a fault while the worker stops."""


class UnusableJobError(Exception):
    """A pop's answer holds no job that can be served; the message says why, without its text.

    Attributes:
        job_id: The job's id when it has one, so that it can be faulted.
    """

    def __init__(self, message: str, job_id: str | None) -> None:
        super().__init__(message)
        self.job_id = job_id


class _JobAbandonedError(Exception):
    """The worker stops and the job's time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it was popped.

    Attributes:
        id: The attempt's id.
        payload: What to generate, in the SDK's terms.
        live: The client wants the text while it is generated.
        pacing: How often to post.
    """

    id: str
    payload: ChatJobPayload = field(repr=False)
    live: bool
    pacing: ProgressPacing


@dataclass(slots=True)
class _Reply:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    finished: GenerationFinished | None = None

    def message(self) -> dict[str, Any]:
        """Return the reply as the SDK's builder takes it."""
        calls = self.finished.tool_calls if self.finished else ()
        content = "".join(self.content)
        message: dict[str, Any] = {"content": None if calls and not content else content}
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        return message


def read_job(answer: Mapping[str, Any], offer: WorkerOffer) -> Job | None:
    """Read a pop's answer.

    Returns:
        The job, or None when there was none.

    Raises:
        UnusableJobError: It is malformed, or needs what the worker did not declare.
    """
    job_id = answer.get("id")
    if job_id is None:
        return None
    if not isinstance(job_id, str) or not 0 < len(job_id) <= _MAX_JOB_ID_CHARACTERS:
        raise UnusableJobError("The Horde gave out a job without a usable id.", None)
    if answer.get("model") != offer.model:
        raise UnusableJobError("The Horde gave out a job for another model.", job_id)
    try:
        payload = ChatJobPayload.from_pop(answer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableJobError(f"The Horde gave out a malformed job ({type(error).__name__}).", job_id) from error
    _check_values(payload, job_id, offer)
    raw = answer["payload"]
    return Job(
        id=job_id,
        payload=payload,
        live=raw.get("stream_progress") is True,
        pacing=ProgressPacing.from_pop(answer.get("progress")),
    )


def _check_values(payload: ChatJobPayload, job_id: str, offer: WorkerOffer) -> None:
    """Refuse what the SDK reads without looking: wrong types, and values outside of what was declared."""
    messages = payload.messages
    if not messages or not all(isinstance(each, Mapping) for each in messages) or not are_plain_contents(messages):
        raise UnusableJobError("The Horde gave out a job with malformed messages.", job_id)
    samplings = (
        payload.temperature,
        payload.top_p,
        payload.frequency_penalty,
        payload.presence_penalty,
        payload.rep_pen,
        payload.min_p,
    )
    counts = [payload.max_length, payload.max_context_length, payload.top_k]
    counts += [] if payload.seed is None else [payload.seed]
    if not all(_is_number(value) for value in samplings) or not all(_is_integer(value) for value in counts):
        raise UnusableJobError("The Horde gave out a job with malformed sampling values.", job_id)
    if not 1 <= payload.max_length <= offer.limits.max_length:
        raise UnusableJobError("The Horde gave out a job for a longer reply than was declared.", job_id)
    if undeclared := payload.undeclared_features(offer.declaration):
        names = ", ".join(sorted(undeclared))
        raise UnusableJobError(f"The Horde gave out a job that needs what was not declared: {names}.", job_id)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class JobRunner:
    """Serves jobs one by one, any number at a time.

    Args:
        horde: Where they come from.
        backend: What generates.
        offer: What was declared.
        health: Told how each job went.
        activity: Told what happens.
        picture_origins: Where pictures may be fetched from beside the Horde.
    """

    def __init__(
        self,
        horde: HordeClient,
        backend: ChatBackend,
        offer: WorkerOffer,
        *,
        health: BackendHealth,
        activity: WorkerActivity,
        picture_origins: Iterable[str] = (),
    ) -> None:
        self._horde = horde
        self._backend = backend
        self._offer = offer
        self._health = health
        self._activity = activity
        self._pictures = PictureFetcher(horde.root, picture_origins)
        self._backend_lost = asyncio.Event()

    def lose_backend(self) -> None:
        """Fault every job that still generates: the backend is gone, also where its connections have not noticed."""
        self._backend_lost.set()

    async def run(self, job: Job, abandoned: asyncio.Event) -> JobOutcome:
        """Serve a job to its end and return what became of it.

        However this ends, the backend's connection is closed and every task of the job is over.

        Args:
            job: The job.
            abandoned: Set when the worker stops and cannot wait any longer: the job is faulted.
        """
        activity = self._activity.job_started(job.id)
        outcome, fault = JobOutcome.FAULTED, None
        try:
            outcome, fault = await self._run(job, activity, abandoned)
        except asyncio.CancelledError:
            outcome = JobOutcome.DROPPED
            raise
        finally:
            activity.ended(outcome, fault)
        return outcome

    async def _run(
        self, job: Job, activity: JobActivity, abandoned: asyncio.Event
    ) -> tuple[JobOutcome, ChatFaultReason | None]:
        outcome = JobOutcome.FAULTED
        fault: ChatFaultReason | None = None
        try:
            async with asyncio.timeout(CHAT_REQUEST_EXPIRY_SECONDS), asyncio.TaskGroup() as group:
                watching = group.create_task(_watch(abandoned), name=f"worker - job {job.id} watch")
                outcome, fault = await self._serve(job, activity, group)
                watching.cancel()
        except* BackendError as errors:
            fault = self._judge_failure(job, errors)
        except* TimeoutError:
            fault = ChatFaultReason.GENERATION_ERROR
            logger.warning("Job {} outlived its request.", job.id)
        except* PictureError as errors:
            # Nothing against the model server, which was not asked.
            fault = ChatFaultReason.GENERATION_ERROR
            logger.warning("Job {}: {}", job.id, _first_error(errors))
        except* _JobAbandonedError:
            fault = ChatFaultReason.GENERATION_ERROR
        except* JobCancelledError:
            fault = None
            outcome = JobOutcome.CANCELLED
            logger.info("Job {}: cancelled by the Horde; its generation was stopped and nothing is submitted.", job.id)
        if fault is not None:
            await self._fault(job.id, fault, stopping=abandoned.is_set())
        return outcome, fault

    async def fault_unusable(self, job_id: str) -> None:
        """Fault a job that cannot be served, so that another worker gets it at once."""
        await self._fault(job_id, ChatFaultReason.GENERATION_ERROR, stopping=True)

    async def _serve(
        self, job: Job, activity: JobActivity, group: asyncio.TaskGroup
    ) -> tuple[JobOutcome, ChatFaultReason | None]:
        poster = ProgressPoster(job.id, self._timed_posts(activity), job.pacing, live=job.live)
        posting = group.create_task(poster.run(), name=f"worker - job {job.id} progress")
        reply = await self._generate_watched(job, activity, poster)
        poster.close()
        message = reply.message()
        finished = reply.finished
        if finished is None:
            raise BackendError("The backend ended a reply without saying so.")
        self._health.note_reply()
        if await self._is_unfit(job, message, finished.finish_reason):
            return JobOutcome.FAULTED, ChatFaultReason.GENERATION_ERROR
        delivery, reward = await deliver_reply(
            self._horde,
            build_chat_reply_submit(
                job.id,
                self._offer.model,
                message,
                finished.finish_reason,
                finished.usage,
                native_finish_reason=finished.native_finish_reason,
            ),
        )
        # A post still on its way has nothing left to tell.
        posting.cancel()
        if delivery is Delivery.REFUSED:
            return JobOutcome.FAULTED, ChatFaultReason.REPLY_REFUSED
        if delivery is Delivery.TAKEN:
            activity.reply_taken(finished.usage, reward)
        logger.info(
            "Job {}: {} tokens in {:.1f} s, {} kudos, {}",
            job.id,
            finished.usage.completion_tokens,
            activity.seconds,
            reward,
            delivery,
        )
        return JobOutcome(delivery.value), None

    def _timed_posts(self, activity: JobActivity) -> PostProgress:
        async def post(job_id: str, seq: int | None, text: str, reasoning: str) -> ProgressVerdict:
            began = activity.seconds
            verdict = await self._horde.post_progress(job_id, seq, text, reasoning)
            activity.progress_posted(verdict, activity.seconds - began)
            return verdict

        return post

    async def _generate_watched(self, job: Job, activity: JobActivity, poster: ProgressPoster) -> _Reply:
        """Generate the reply, unless the backend is lost meanwhile; a whole reply is kept whatever happens to it."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch_backend(self._backend_lost), name=f"worker - job {job.id} backend")
            reply = await self._generate(job, activity, poster)
            watching.cancel()
        return reply

    async def _generate(self, job: Job, activity: JobActivity, poster: ProgressPoster) -> _Reply:
        reply = _Reply()
        limit = self._offer.prompt_limit(job.payload.max_length, job.payload.max_context_length)
        payload = replace(job.payload, messages=await self._pictures.fetch(job.payload.messages))
        async with aclosing(self._backend.generate(payload, prompt_limit=limit)) as events:
            async for event in events:
                match event:
                    case TextDelta(text):
                        activity.text_came()
                        reply.content.append(text)
                        poster.add(text=text)
                    case ReasoningDelta(text):
                        activity.text_came()
                        reply.reasoning.append(text)
                        poster.add(reasoning=text)
                    case GenerationFinished():
                        reply.finished = event
        return reply

    async def _is_unfit(self, job: Job, message: Mapping[str, Any], finish_reason: ChatFinishReason) -> bool:
        """Whether a reply must not be submitted: too large, or not what a strict schema asks for."""
        texts = [message["content"] or "", message.get("reasoning_content") or ""]
        texts += [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        if sum(len(text.encode()) for text in texts) > _MAX_REPLY_BYTES:
            logger.warning("Job {}: the reply is larger than the Horde takes.", job.id)
            return True
        if job.payload.response_format is None or message.get("tool_calls"):
            return False  # A format is for the final text (FMT-7).
        if finish_reason is ChatFinishReason.LENGTH:
            return False  # A reply cut at its limit says so; its client sees what is there.
        if await asyncio.to_thread(breaks_strict_schema, job.payload.response_format, texts[0]):
            logger.warning("Job {}: the reply does not satisfy the schema asked for.", job.id)
            return True
        return False

    def _judge_failure(self, job: Job, errors: ExceptionGroup[BackendError]) -> ChatFaultReason:
        error = _first_error(errors)
        logger.warning("Job {}: {}", job.id, error)
        self._activity.trouble = str(error)
        self._health.note_failure(error)
        return error.fault_reason

    async def _fault(self, job_id: str, reason: ChatFaultReason, *, stopping: bool) -> None:
        limit = _LAST_FAULT_SECONDS if stopping else CHAT_REQUEST_EXPIRY_SECONDS
        try:
            async with asyncio.timeout(limit):
                await deliver_fault(self._horde, job_id, self._offer.model, reason)
        except TimeoutError:
            logger.warning("Job {}: the Horde could not be told of its fault.", job_id)
        logger.info("Job {}: faulted, {}", job_id, reason.value)


def _first_error[Failure: Exception](errors: ExceptionGroup[Failure]) -> Failure:
    first = errors.exceptions[0]
    return _first_error(first) if isinstance(first, ExceptionGroup) else first


async def _watch(abandoned: asyncio.Event) -> None:
    await abandoned.wait()
    raise _JobAbandonedError


async def _watch_backend(lost: asyncio.Event) -> None:
    await lost.wait()
    raise BackendUnavailableError("The model server is gone.")
