"""Progress posts: the lease first, then the stream (NAT-9, WRK-1, WRK-5)."""

from typing import Final
from uuid import UUID

from horde.chat_contract import estimate_text_tokens
from horde.native.db import queries, reads
from horde.native.db.engine import afterwards
from horde.native.eligibility import Fields
from horde.native.errors import RefusalError, ReturnCode
from horde.native.publish import DeltaEntry
from horde.native.state import NativeState
from horde.native.users import User
from horde.native.wire import ProgressBody

__all__ = ["MAX_POST_BYTES", "record_progress", "streamed_tokens", "text_sizes"]

MAX_POST_BYTES = 64 * 1024
"""The most UTF-8 bytes of text and reasoning of one post."""

_MAX_STREAMED_BYTES: Final = 1024 * 1024
"""The most UTF-8 bytes of text and reasoning that one attempt streams; as much as a whole reply takes."""

_POSTS_WITHIN: Final = _MAX_STREAMED_BYTES // MAX_POST_BYTES
"""So many posts cannot be over it."""

_ASCII_BYTES: Final = bytes(range(128))


def text_sizes(*texts: str) -> tuple[int, int]:
    """Return the ASCII bytes and the other bytes of texts; the token estimate of a sum follows from their sums."""
    ascii_bytes = wide_bytes = 0
    for text in texts:
        data = text.encode()
        wide = 0 if data.isascii() else len(data.translate(None, _ASCII_BYTES))
        ascii_bytes += len(data) - wide
        wide_bytes += wide
    return ascii_bytes, wide_bytes


async def record_progress(state: NativeState, user: User, body: ProgressBody) -> bool:
    """Renew a job's lease and append what it wrote; False tells the worker to stop: the job is not running any more.

    Args:
        state: The process's parts.
        user: Whose key it is; only the worker's owner may post.
        body: The post.

    Raises:
        RefusalError: ``NotOwner``, or ``BadRequest`` for a post over :data:`MAX_POST_BYTES`.
    """
    ascii_bytes, wide_bytes = text_sizes(body.text, body.reasoning)
    if ascii_bytes + wide_bytes > MAX_POST_BYTES:
        raise RefusalError(ReturnCode.BAD_REQUEST, f"A progress post may take at most {MAX_POST_BYTES} bytes.")
    seq = body.seq if body.text or body.reasoning else None
    row = await state.pool.fetchrow(
        queries.RECORD_PROGRESS,
        body.id,
        user.id,
        state.settings.lease_seconds,
        seq,
        ascii_bytes,
        wide_bytes,
    )
    if row is None:
        await _refuse_strangers(state, user, body.id)
        return False
    if seq is not None and row["stream"] and not row["stream_broken"]:
        await _append(state, body, seq, row, (ascii_bytes, wide_bytes))
    return True


async def _refuse_strangers(state: NativeState, user: User, job_id: UUID) -> None:
    owner = await state.pool.fetchval(queries.READ_JOB_OWNER, job_id)
    if owner is not None and owner != user.id:
        raise RefusalError(ReturnCode.NOT_OWNER)


async def _append(state: NativeState, body: ProgressBody, seq: int, row: Fields, sizes: tuple[int, int]) -> None:
    """Append an entry; when the stream refuses it or has enough, nothing more of this attempt is streamed."""
    entry = DeltaEntry(
        request_id=row["request_id"],
        gen=body.id,
        seq=seq,
        text=body.text,
        reasoning=body.reasoning,
        worker=row["worker_id"],
        model=row["model"],
    )
    has_room = seq <= _POSTS_WITHIN or await _has_room(state, body.id)
    if has_room and await state.publisher.append_delta(entry):
        return
    counted = sizes if seq == row["last_seq"] + 1 else (0, 0)
    # The lease is renewed: an answer that says otherwise would cost the worker its attempt.
    with afterwards("marking a stream as broken"):
        await state.pool.execute(queries.MARK_STREAM_BROKEN, body.id, *counted)


async def _has_room(state: NativeState, job_id: UUID) -> bool:
    """Return whether an attempt's stream is within its bound, the post at hand included."""
    streamed = await state.pool.fetchval(reads.READ_STREAMED_BYTES, job_id)
    return streamed is not None and int(streamed) <= _MAX_STREAMED_BYTES


def streamed_tokens(ascii_bytes: int, wide_bytes: int) -> int:
    """Return the estimated tokens of what was streamed, by the one estimate of the contract."""
    return wide_bytes + estimate_text_tokens("x" * ascii_bytes)
