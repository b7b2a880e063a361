"""Which worker may serve which request, and why not (NAT-13, CNF-7); pure.

The same rule stands as SQL in :mod:`horde.native.db.eligibility_sql`, where pops and counts use it; a property test
holds the two together. Here it picks the held pop to wake and explains: the causes by which a worker was passed over,
and the gap that no online worker fills.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self
from uuid import UUID

from horde_sdk.generation_parameters.text.chat_policy import ChatServiceGap
from horde_sdk.worker.chat_declaration import IMAGE_PART_TRANSPORTS

__all__ = [
    "IMAGE_TRANSPORTS",
    "Fields",
    "RequestNeeds",
    "WorkerFacts",
    "is_eligible",
    "passed_over_causes",
    "service_gap",
]

IMAGE_TRANSPORTS: Final = frozenset(transport.value for transport in IMAGE_PART_TRANSPORTS)
"""The transports that carry every image part."""


class Fields(Protocol):
    """What has values by name: a row of the database, or a mapping."""

    def __getitem__(self, key: str, /) -> Any:  # noqa: ANN401 - a column of any type
        """Return a value."""


_MISSING_TRANSPORT: Final = "image_transports"
"""What a gap names for a worker that reads images and has no way to receive them (NAT-5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNeeds:
    """What a request asks of a worker.

    Attributes:
        models: The models it accepts.
        needs: Features and guarantees that have to be declared.
        needs_images: Whether its messages hold images.
        max_length: Reply length, tokens.
        max_context_length: Context length, tokens.
        tools_temperature: Its temperature when tools are forwarded, else None.
        only_workers: The workers it is restricted to, or None.
        ignore_workers: Workers it excludes.
        trusted_only: Only workers of trusted users.
        fast_only: Only workers measured at the Horde's speed limit or above.
        failed_workers: Workers that failed it: used again only when no other is eligible.
    """

    models: tuple[str, ...]
    needs: frozenset[str]
    max_length: int
    max_context_length: int
    needs_images: bool = False
    tools_temperature: float | None = None
    only_workers: frozenset[UUID] | None = None
    ignore_workers: frozenset[UUID] = field(default=frozenset())
    trusted_only: bool = False
    fast_only: bool = False
    failed_workers: frozenset[UUID] = field(default=frozenset())

    @classmethod
    def from_row(cls, row: Fields, models: Iterable[str]) -> Self:
        """Return what a request asks.

        Args:
            row: A row of ``chat_requests`` or ``chat_queue``, or :meth:`to_fields`' mapping with ids read.
            models: The models it accepts.
        """
        only = row["only_workers"]
        return cls(
            models=tuple(models),
            needs=frozenset(row["needs"]),
            needs_images=row["needs_images"],
            max_length=row["max_length"],
            max_context_length=row["max_context_length"],
            tools_temperature=row["tools_temperature"],
            only_workers=None if only is None else frozenset(only),
            ignore_workers=frozenset(row["ignore_workers"]),
            trusted_only=row["trusted_only"],
            fast_only=row["fast_only"],
            failed_workers=frozenset(row["failed_workers"]),
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the same as JSON has it, for other processes."""
        return {
            "models": self.models,
            "needs": sorted(self.needs),
            "needs_images": self.needs_images,
            "max_length": self.max_length,
            "max_context_length": self.max_context_length,
            "tools_temperature": self.tools_temperature,
            "only_workers": None if self.only_workers is None else sorted(map(str, self.only_workers)),
            "ignore_workers": sorted(map(str, self.ignore_workers)),
            "trusted_only": self.trusted_only,
            "fast_only": self.fast_only,
            "failed_workers": sorted(map(str, self.failed_workers)),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_fields` wrote.

        Raises:
            KeyError, TypeError, ValueError: It was written by something else.
        """
        ids = {
            key: None if fields[key] is None else [UUID(value) for value in fields[key]]
            for key in ("only_workers", "ignore_workers", "failed_workers")
        }
        return cls.from_row({**fields, **ids}, fields["models"])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What is known of a worker when it pops.

    Attributes:
        id: The worker's id.
        model_id: The model it serves chat jobs with, None when it takes none.
        features: Features and guarantees it declares.
        image_transports: How it receives images.
        max_length: Largest reply, tokens.
        max_context_length: Largest prompt, tokens.
        tools_max_temperature: The temperature it clamps to with tools, or None.
        trusted: Whether its owner is trusted.
        fast: Whether it was measured at the Horde's speed limit or above.
        maintenance: Whether it takes no jobs.
    """

    id: UUID
    model_id: str | None
    features: frozenset[str]
    max_length: int
    max_context_length: int
    image_transports: frozenset[str] = field(default=frozenset())
    tools_max_temperature: float | None = None
    trusted: bool = False
    fast: bool = False
    maintenance: bool = False


def _missing_declarations(worker: WorkerFacts, request: RequestNeeds) -> frozenset[str]:
    missing = request.needs - worker.features
    if request.needs_images and not worker.image_transports & IMAGE_TRANSPORTS:
        missing |= {_MISSING_TRANSPORT}
    return missing


def _exceeded_limits(worker: WorkerFacts, request: RequestNeeds) -> frozenset[str]:
    exceeded = set()
    if request.max_length > worker.max_length:
        exceeded.add("max_length")
    if request.max_context_length > worker.max_context_length:
        exceeded.add("max_context_length")
    cap = worker.tools_max_temperature
    if request.tools_temperature is not None and cap is not None and request.tools_temperature > cap:
        exceeded.add("tools_max_temperature")
    return frozenset(exceeded)


def _restrictions(worker: WorkerFacts, request: RequestNeeds) -> frozenset[str]:
    """Return the causes that lie in whom the request accepts and not in what the worker can do."""
    causes = set()
    if request.only_workers is not None and worker.id not in request.only_workers:
        causes.add("worker_id")
    if worker.id in request.ignore_workers:
        causes.add("worker_id")
    if request.trusted_only and not worker.trusted:
        causes.add("untrusted")
    if request.fast_only and not worker.fast:
        causes.add("performance")
    if worker.maintenance:
        causes.add("maintenance")
    return frozenset(causes)


def passed_over_causes(worker: WorkerFacts, request: RequestNeeds) -> frozenset[str]:
    """Return why a worker may not serve a request; empty when it may.

    ``models``, ``worker_id``, ``untrusted``, ``performance``, ``maintenance``, ``missing_declarations``, or the name
    of an exceeded limit. That a worker failed the request before is no cause: it may be the only one left.
    """
    if worker.model_id not in request.models:
        return frozenset({"models"})
    causes = _restrictions(worker, request) | _exceeded_limits(worker, request)
    if _missing_declarations(worker, request):
        causes |= {"missing_declarations"}
    return causes


def is_eligible(worker: WorkerFacts, request: RequestNeeds) -> bool:
    """Say whether a worker may serve a request; :func:`passed_over_causes` says why not."""
    return not passed_over_causes(worker, request)


def service_gap(workers: Iterable[WorkerFacts], request: RequestNeeds) -> ChatServiceGap | None:
    """Return what keeps the online workers of the models from serving a request, or None (NAT-4, NEW-6).

    Workers that the request's restrictions exclude are no part of the answer; where none is left there is no gap to
    name, only nobody. A declaration is missing when no worker declares it, a limit exceeded when it is for all; when
    each worker lacks something else, the worker that lacks least speaks for them.

    Args:
        workers: The online workers; those of other models are ignored.
        request: What the request asks.
    """
    candidates = [
        worker for worker in workers if worker.model_id in request.models and not _restrictions(worker, request)
    ]
    gaps = [(_missing_declarations(worker, request), _exceeded_limits(worker, request)) for worker in candidates]
    if not gaps or any(not missing and not exceeded for missing, exceeded in gaps):
        return None
    missing = _common(missing for missing, _ in gaps)
    exceeded = _common(exceeded for _, exceeded in gaps)
    if not missing and not exceeded:
        missing, exceeded = min(gaps, key=lambda gap: (len(gap[0]) + len(gap[1]), sorted(gap[0]), sorted(gap[1])))
    return ChatServiceGap(
        missing_declarations=tuple(sorted(missing)),
        exceeded_limits=tuple(sorted(exceeded)),
    )


def _common(sets: Iterable[Collection[str]]) -> frozenset[str]:
    return frozenset.intersection(*map(frozenset, sets))
