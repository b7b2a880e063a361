"""Make the tables of users and their kudos, of workers and models, and of chat requests."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_APPEND_ONLY_LEDGER = (
    """
    CREATE FUNCTION refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'the ledger is append-only';
    END $$
    """,
    """
    CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()
    """,
)

_FIRST_ROWS = (
    # The anonymous user: its key is public and stored nowhere.
    "INSERT INTO users (id, name) VALUES (0, 'Anonymous')",
    "INSERT INTO accounts (id, kind, user_id) VALUES (0, 'user', 0), (1, 'held', 0)",
    # The Horde's own purse is eight accounts, so that settlements of the anonymous user do not queue for one row.
    "INSERT INTO accounts (id, kind) SELECT -shard, 'horde' FROM generate_series(1, 8) shard",
    "INSERT INTO horde_state DEFAULT VALUES",
)


def upgrade() -> None:
    """Make everything."""
    _create_users()
    _create_accounts()
    _create_ledger()
    _create_models()
    _create_workers()
    _create_chat_requests()
    _create_chat_payloads()
    _create_chat_queue()
    _create_chat_jobs()
    _create_chat_replies()
    _create_chat_operations()
    _create_horde_state()
    for statement in (*_APPEND_ONLY_LEDGER, *_FIRST_ROWS):
        op.execute(statement)


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("api_key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("trusted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("moderator", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="users_pkey"),
        sa.UniqueConstraint("api_key_hash", name="users_api_key_hash_key"),
        sa.UniqueConstraint("name", name="users_name_key"),
    )


def _create_accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("balance", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("(user_id IS NULL) = (kind = 'horde')", name=op.f("accounts_owner_check")),
        sa.CheckConstraint("kind <> 'held' OR balance >= 0", name=op.f("accounts_held_check")),
        sa.CheckConstraint("kind IN ('user', 'held', 'horde')", name=op.f("accounts_kind_check")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="accounts_user_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="accounts_pkey"),
    )


def _create_ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("source", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=True),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("kind IN ('grant', 'hold', 'release', 'charge')", name=op.f("ledger_kind_check")),
        sa.CheckConstraint("amount > 0", name=op.f("ledger_amount_check")),
        sa.ForeignKeyConstraint(["source"], ["accounts.id"], name="ledger_source_fkey"),
        sa.ForeignKeyConstraint(["target"], ["accounts.id"], name="ledger_target_fkey"),
        sa.PrimaryKeyConstraint("id", name="ledger_pkey"),
    )
    op.create_index(
        "ledger_once_idx",
        "ledger",
        ["request_id", "kind"],
        unique=True,
        postgresql_where=sa.text("request_id IS NOT NULL"),
    )
    op.create_index("ledger_source_idx", "ledger", ["source"], unique=False)
    op.create_index("ledger_target_idx", "ledger", ["target"], unique=False)


def _create_models() -> None:
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("parameters_billions", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name="models_pkey"),
    )


def _create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.BigInteger(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("features", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("image_transports", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("max_length", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_context_length", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("tools_max_temperature", sa.Double(), nullable=True),
        sa.Column("threads", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("bridge_agent", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("maintenance", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("tokens_per_second", sa.Double(), nullable=True),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="workers_owner_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="workers_pkey"),
        sa.UniqueConstraint("name", name="workers_name_key"),
    )
    op.create_index("workers_model_id_idx", "workers", ["model_id"], unique=False)
    op.create_index("workers_owner_id_idx", "workers", ["owner_id"], unique=False)


def _create_chat_requests() -> None:
    op.create_table(
        "chat_requests",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'waiting'"), nullable=False),
        sa.Column("models", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("needs", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("needs_images", sa.Boolean(), nullable=False),
        sa.Column("max_length", sa.Integer(), nullable=False),
        sa.Column("max_context_length", sa.Integer(), nullable=False),
        sa.Column("tools_temperature", sa.Double(), nullable=True),
        sa.Column("only_workers", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("ignore_workers", sa.ARRAY(sa.Uuid()), server_default=sa.text("'{}'::uuid[]"), nullable=False),
        sa.Column("trusted_only", sa.Boolean(), nullable=False),
        sa.Column("fast_only", sa.Boolean(), nullable=False),
        sa.Column("failed_workers", sa.ARRAY(sa.Uuid()), server_default=sa.text("'{}'::uuid[]"), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("strict", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("image_count", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("restarted", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("estimate", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("charged", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("adjustments", sa.LargeBinary(), nullable=True),
        sa.Column("client_agent", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("fault_rc", sa.Text(), nullable=True),
        sa.Column("fault_message", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(job_id IS NOT NULL) = (state IN ('processing', 'replied'))", name=op.f("chat_requests_job_check")
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'processing', 'replied', 'faulted', 'cancelled', 'expired')",
            name=op.f("chat_requests_state_check"),
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="chat_requests_user_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="chat_requests_pkey"),
    )
    op.create_index("chat_requests_expires_at_idx", "chat_requests", ["expires_at"], unique=False)
    op.create_index(
        "chat_requests_open_idx",
        "chat_requests",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('waiting', 'processing')"),
    )


def _create_chat_payloads() -> None:
    op.create_table(
        "chat_payloads",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["chat_requests.id"], name="chat_payloads_request_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name="chat_payloads_pkey"),
    )


def _create_chat_queue() -> None:
    op.create_table(
        "chat_queue",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("needs", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("needs_images", sa.Boolean(), nullable=False),
        sa.Column("max_length", sa.Integer(), nullable=False),
        sa.Column("max_context_length", sa.Integer(), nullable=False),
        sa.Column("tools_temperature", sa.Double(), nullable=True),
        sa.Column("only_workers", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("ignore_workers", sa.ARRAY(sa.Uuid()), server_default=sa.text("'{}'::uuid[]"), nullable=False),
        sa.Column("trusted_only", sa.Boolean(), nullable=False),
        sa.Column("fast_only", sa.Boolean(), nullable=False),
        sa.Column("failed_workers", sa.ARRAY(sa.Uuid()), server_default=sa.text("'{}'::uuid[]"), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["chat_requests.id"], name="chat_queue_request_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", "model", name="chat_queue_pkey"),
    )
    op.create_index(
        "chat_queue_order_idx", "chat_queue", ["model", sa.literal_column("priority DESC"), "seq"], unique=False
    )


def _create_chat_jobs() -> None:
    op.create_table(
        "chat_jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'processing'"), nullable=False),
        sa.Column("pop_id", sa.Uuid(), nullable=True),
        sa.Column("popped_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("posted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("streamed_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("streamed_ascii", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("streamed_wide", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("stream_broken", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint(
            "state IN ('processing', 'replied', 'faulted', 'refused', 'lease_expired', 'cancelled', 'expired', "
            "'released')",
            name=op.f("chat_jobs_state_check"),
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="chat_jobs_owner_id_fkey"),
        sa.ForeignKeyConstraint(
            ["request_id"], ["chat_requests.id"], name="chat_jobs_request_id_fkey", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="chat_jobs_worker_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="chat_jobs_pkey"),
        sa.UniqueConstraint("worker_id", "pop_id", name="chat_jobs_worker_id_pop_id_key"),
    )
    op.create_index(
        "chat_jobs_deadline_idx",
        "chat_jobs",
        ["deadline_at"],
        unique=False,
        postgresql_where=sa.text("state = 'processing'"),
    )
    op.create_index("chat_jobs_request_id_idx", "chat_jobs", ["request_id"], unique=False)
    op.create_index(
        "chat_jobs_running_idx",
        "chat_jobs",
        ["worker_id"],
        unique=False,
        postgresql_where=sa.text("state = 'processing'"),
    )


def _create_chat_replies() -> None:
    op.create_table(
        "chat_replies",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("message", sa.LargeBinary(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("native_finish_reason", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["chat_jobs.id"], name="chat_replies_job_id_fkey", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["request_id"], ["chat_requests.id"], name="chat_replies_request_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name="chat_replies_pkey"),
        sa.UniqueConstraint("job_id", name="chat_replies_job_id_key"),
    )


def _create_chat_operations() -> None:
    op.create_table(
        "chat_operations",
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("operation_key", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=True),
        sa.Column("body_digest", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(request_id IS NULL) = (body_digest IS NULL)", name=op.f("chat_operations_tombstone_check")
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["chat_requests.id"], name="chat_operations_request_id_fkey", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="chat_operations_user_id_fkey"),
        sa.PrimaryKeyConstraint("user_id", "operation_key", name="chat_operations_pkey"),
        sa.UniqueConstraint("request_id", name="chat_operations_request_id_key"),
    )
    op.create_index(
        "chat_operations_tombstone_idx",
        "chat_operations",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("request_id IS NULL"),
    )


def _create_horde_state() -> None:
    op.create_table(
        "horde_state",
        sa.Column("id", sa.SmallInteger(), server_default=sa.text("1"), autoincrement=False, nullable=False),
        sa.Column("swept_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("horde_state_single_check")),
        sa.PrimaryKeyConstraint("id", name="horde_state_pkey"),
    )
