"""Brings a reply or a fault to the Horde, through any outage of it, and no longer than the job lives."""

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from horde_sdk.worker.chat_declaration import ChatFaultReason, build_chat_fault_submit
from loguru import logger

from horde.worker.backoff import Backoff
from horde.worker.horde_client import HordeAnswer, HordeAwayError, HordeClient

__all__ = ["Delivery", "Reward", "deliver_fault", "deliver_reply"]

_FIRST_RETRY_SECONDS: Final = 0.25
_LAST_RETRY_SECONDS: Final = 15.0


class Delivery(StrEnum):
    """What became of a submit."""

    TAKEN = "taken"
    """The Horde has it; this copy or an earlier one."""
    REFUSED = "refused"
    """The Horde looked at it and does not want it."""
    ENDED = "ended"
    """The attempt had ended: swept, cancelled or expired."""


type Reward = float


async def deliver_reply(horde: HordeClient, body: Mapping[str, Any]) -> tuple[Delivery, Reward]:
    """Submit a reply until the Horde has answered; the caller bounds the time.

    Returns:
        What became of it, and the kudos earned.
    """
    answer = await _submit(horde, body)
    if answer.ok:
        reward = answer.body.get("reward")
        return Delivery.TAKEN, float(reward) if isinstance(reward, int | float) else 0.0
    if answer.status == HTTPStatus.CONFLICT:
        return Delivery.TAKEN, 0.0
    if answer.status == HTTPStatus.NOT_FOUND:
        return Delivery.ENDED, 0.0
    logger.warning("The Horde refused a reply ({}): {}", answer.rc or answer.status, answer.message)
    return Delivery.REFUSED, 0.0


async def deliver_fault(horde: HordeClient, job_id: str, model: str, reason: ChatFaultReason) -> Delivery:
    """Submit a fault until the Horde has answered; the caller bounds the time."""
    answer = await _submit(horde, build_chat_fault_submit(job_id, model, reason))
    if answer.ok or answer.status == HTTPStatus.CONFLICT:
        return Delivery.TAKEN
    return Delivery.ENDED if answer.status == HTTPStatus.NOT_FOUND else Delivery.REFUSED


async def _submit(horde: HordeClient, body: Mapping[str, Any]) -> HordeAnswer:
    backoff = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
    told = False
    while True:
        try:
            answer = await horde.submit(body)
        except HordeAwayError as error:
            retry_after = error.retry_after
            reason = str(error)
        else:
            if answer.ok or answer.rc is not None or answer.status == HTTPStatus.BAD_REQUEST:
                return answer
            # A refusal without a code, other than a failed validation, says nothing about what happened.
            retry_after = None
            reason = f"it answered HTTP {answer.status} without a code"
        if not told:
            told = True
            logger.warning("A submit did not reach the Horde ({}); it is kept and sent again.", reason)
        await asyncio.sleep(backoff.next_delay(at_least=retry_after))
