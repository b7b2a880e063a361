"""The tables of the Horde, as SQLAlchemy Core knows them; migrations make them, named statements use them.

The row of ``chat_requests`` is the one lock of a request: every transition locks it first, then the job, then accounts
in the order of their ids. Amounts are whole hundredths of a kudos, so that sums are exact. Texts of users and workers
are JSON bytes, because a JSON text may hold U+0000 and PostgreSQL's ``text`` may not.
"""

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

__all__ = [
    "accounts",
    "application_traffic",
    "chat_images",
    "chat_jobs",
    "chat_operations",
    "chat_payloads",
    "chat_queue",
    "chat_replies",
    "chat_requests",
    "horde_secrets",
    "horde_state",
    "ledger",
    "metadata",
    "models",
    "users",
    "workers",
]

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    },
)

_NOW = text("now()")
_FALSE = text("false")
_TRUE = text("true")
_ZERO = text("0")
_EMPTY_TEXTS = text("'{}'::text[]")
_EMPTY_IDS = text("'{}'::uuid[]")


def _moment(name: str, *, nullable: bool = False, default: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=_NOW if default else None)


def _needs_columns() -> list[Column[Any]]:
    """Return the columns that eligibility reads, the same on a request and on its rows of the queue."""
    return [
        Column("needs", ARRAY(Text), nullable=False),
        Column("needs_images", Boolean, nullable=False),
        Column("max_length", Integer, nullable=False),
        Column("max_context_length", Integer, nullable=False),
        Column("tools_temperature", Double),
        Column("only_workers", ARRAY(Uuid)),
        Column("ignore_workers", ARRAY(Uuid), nullable=False, server_default=_EMPTY_IDS),
        Column("trusted_only", Boolean, nullable=False),
        Column("fast_only", Boolean, nullable=False),
        Column("failed_workers", ARRAY(Uuid), nullable=False, server_default=_EMPTY_IDS),
    ]


users = Table(
    "users",
    metadata,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("api_key_hash", LargeBinary, unique=True),
    Column("trusted", Boolean, nullable=False, server_default=_FALSE),
    Column("moderator", Boolean, nullable=False, server_default=_FALSE),
    _moment("created_at", default=True),
    Column("disabled", Boolean, nullable=False, server_default=_FALSE),
)
"""Whoever submits requests or owns workers; a key is kept as its SHA-256 alone. User 0 is the anonymous user."""

accounts = Table(
    "accounts",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("user_id", ForeignKey("users.id")),
    Column("balance", BigInteger, nullable=False, server_default=_ZERO),
    CheckConstraint("kind IN ('user', 'held', 'horde')", name="kind"),
    CheckConstraint("kind <> 'held' OR balance >= 0", name="held"),
    CheckConstraint("(user_id IS NULL) = (kind = 'horde')", name="owner"),
)
"""A balance each: what a user can spend, what is held of it for running requests, and the Horde's own purse."""

ledger = Table(
    "ledger",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("source", ForeignKey("accounts.id"), nullable=False),
    Column("target", ForeignKey("accounts.id"), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("request_id", Uuid),
    Column("job_id", Uuid),
    _moment("created_at", default=True),
    CheckConstraint("kind IN ('grant', 'hold', 'release', 'charge')", name="kind"),
    CheckConstraint("amount > 0", name="amount"),
    Index("ledger_source_idx", "source"),
    Index("ledger_target_idx", "target"),
    Index("ledger_once_idx", "request_id", "kind", unique=True, postgresql_where=text("request_id IS NOT NULL")),
)
"""Every movement of kudos: a row takes from one account what it gives to another, so that all rows sum to zero. Rows
are never changed (a trigger refuses it), and a request is held, released and charged at most once (an index does)."""

models = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("parameters_billions", Double),
    _moment("created_at", default=True),
    Column("admits", Boolean, nullable=False, server_default=_TRUE),
)
"""The models the Horde knows: added by hand, or by the first worker that declares one."""

workers = Table(
    "workers",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("uuidv7()")),
    Column("name", Text, nullable=False, unique=True),
    Column("owner_id", ForeignKey("users.id"), nullable=False, index=True),
    Column("model_id", Text, index=True),
    Column("features", ARRAY(Text), nullable=False, server_default=_EMPTY_TEXTS),
    Column("image_transports", ARRAY(Text), nullable=False, server_default=_EMPTY_TEXTS),
    Column("max_length", Integer, nullable=False, server_default=_ZERO),
    Column("max_context_length", Integer, nullable=False, server_default=_ZERO),
    Column("tools_max_temperature", Double),
    Column("threads", Integer, nullable=False, server_default=text("1")),
    Column("bridge_agent", Text, nullable=False, server_default=text("''")),
    Column("maintenance", Boolean, nullable=False, server_default=_FALSE),
    Column("tokens_per_second", Double),
    _moment("last_seen_at", default=True),
    _moment("created_at", default=True),
    Column("maintenance_message", Text),
)
"""A worker and what it declared on its last pop; ``model_id`` is null when it takes no chat jobs."""

chat_requests = Table(
    "chat_requests",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("uuidv7()")),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    Column("state", Text, nullable=False, server_default=text("'waiting'")),
    Column("models", ARRAY(Text), nullable=False),
    *_needs_columns(),
    Column("stream", Boolean, nullable=False),
    Column("strict", Boolean, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("image_count", SmallInteger, nullable=False, server_default=_ZERO),
    Column("attempts", SmallInteger, nullable=False, server_default=_ZERO),
    Column("restarted", SmallInteger, nullable=False, server_default=_ZERO),
    Column("estimate", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False, server_default=_ZERO),
    Column("charged", BigInteger, nullable=False, server_default=_ZERO),
    Column("adjustments", LargeBinary),
    Column("client_agent", Text, nullable=False, server_default=text("''")),
    Column("fault_rc", Text),
    Column("fault_message", Text),
    Column("job_id", Uuid),
    _moment("created_at", default=True),
    _moment("expires_at"),
    _moment("ended_at", nullable=True),
    CheckConstraint("state IN ('waiting', 'processing', 'replied', 'faulted', 'cancelled', 'expired')", name="state"),
    CheckConstraint("(job_id IS NOT NULL) = (state IN ('processing', 'replied'))", name="job"),
    Index("chat_requests_open_idx", "expires_at", postgresql_where=text("state IN ('waiting', 'processing')")),
    Index("chat_requests_expires_at_idx", "expires_at"),
)
"""A request and where it is in its life (:mod:`horde.native.lifecycle`); ``job_id`` is the attempt that counts."""

chat_payloads = Table(
    "chat_payloads",
    metadata,
    Column("request_id", ForeignKey("chat_requests.id", ondelete="CASCADE"), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""What the worker receives, apart from the request so that a transition does not copy it."""

chat_queue = Table(
    "chat_queue",
    metadata,
    Column("request_id", ForeignKey("chat_requests.id", ondelete="CASCADE"), nullable=False),
    Column("model", Text, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    *_needs_columns(),
    PrimaryKeyConstraint("request_id", "model"),
    Index("chat_queue_order_idx", "model", text("priority DESC"), "seq"),
)
"""Who waits for which model, in the order of service: a row for each model of each waiting request."""

chat_jobs = Table(
    "chat_jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("request_id", ForeignKey("chat_requests.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("worker_id", ForeignKey("workers.id"), nullable=False),
    Column("owner_id", ForeignKey("users.id"), nullable=False),
    Column("model", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'processing'")),
    Column("pop_id", Uuid),
    _moment("popped_at", default=True),
    _moment("deadline_at"),
    _moment("ended_at", nullable=True),
    Column("posted", Boolean, nullable=False, server_default=_FALSE),
    Column("streamed_seq", Integer, nullable=False, server_default=_ZERO),
    Column("streamed_ascii", Integer, nullable=False, server_default=_ZERO),
    Column("streamed_wide", Integer, nullable=False, server_default=_ZERO),
    Column("stream_broken", Boolean, nullable=False, server_default=_FALSE),
    CheckConstraint(
        "state IN ('processing', 'replied', 'faulted', 'refused', 'lease_expired', 'cancelled', 'expired', 'released')",
        name="state",
    ),
    UniqueConstraint("worker_id", "pop_id"),
    Index("chat_jobs_deadline_idx", "deadline_at", postgresql_where=text("state = 'processing'")),
    Index("chat_jobs_running_idx", "worker_id", postgresql_where=text("state = 'processing'")),
)
"""An attempt each: one pop, one job id."""

chat_replies = Table(
    "chat_replies",
    metadata,
    Column("request_id", ForeignKey("chat_requests.id", ondelete="CASCADE"), primary_key=True),
    Column("job_id", ForeignKey("chat_jobs.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("message", LargeBinary, nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("native_finish_reason", Text),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
)
"""The reply of a request."""

chat_operations = Table(
    "chat_operations",
    metadata,
    Column("user_id", ForeignKey("users.id"), nullable=False),
    Column("operation_key", Uuid, nullable=False),
    Column("request_id", ForeignKey("chat_requests.id", ondelete="CASCADE"), unique=True),
    Column("body_digest", LargeBinary),
    _moment("created_at", default=True),
    PrimaryKeyConstraint("user_id", "operation_key"),
    CheckConstraint("(request_id IS NULL) = (body_digest IS NULL)", name="tombstone"),
    Index("chat_operations_tombstone_idx", "created_at", postgresql_where=text("request_id IS NULL")),
)
"""The claim of an operation key: the request it made, or the tombstone of a cancel that came first."""

application_traffic = Table(
    "application_traffic",
    metadata,
    Column("day", Date, nullable=False),
    Column("application", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("replies", BigInteger, nullable=False),
    Column("charged", BigInteger, nullable=False),
    PrimaryKeyConstraint("day", "application"),
)
"""What applications sent by UTC day, of the requests whose records are deleted (:mod:`horde.native.db.traffic`)."""

chat_images = Table(
    "chat_images",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("request_id", ForeignKey("chat_requests.id", ondelete="SET NULL"), index=True),
    _moment("created_at", default=True),
)
"""A stored picture: written before its object is, given to its request by the submit, and deleted after its object."""

horde_secrets = Table(
    "horde_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
"""Random keys that the processes of a Horde share; made by the migration, never shown."""

horde_state = Table(
    "horde_state",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False, server_default=text("1")),
    _moment("swept_at", default=True),
    Column("maintenance", Boolean, nullable=False, server_default=_FALSE),
    Column("maintenance_message", Text),
    Column("admits", Boolean, nullable=False, server_default=_TRUE),
    CheckConstraint("id = 1", name="single"),
)
"""One row: when the sweeper last ran, and the switches of the whole Horde."""
