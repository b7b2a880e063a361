"""Pictures of prompts, and the key that signs their URLs.

Both are new tables, so that processes of the version before go on beside them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables and make the key."""
    op.create_table(
        "chat_images",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("request_id", sa.Uuid(), sa.ForeignKey("chat_requests.id", ondelete="SET NULL")),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    op.create_index("chat_images_request_id_idx", "chat_images", ["request_id"])
    op.create_table(
        "horde_secrets",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("value", sa.LargeBinary(), nullable=False),
    )
    # Two random UUIDs hold 244 random bits from the server's strong source.
    op.execute(
        "INSERT INTO horde_secrets (name, value) VALUES "
        "('image_urls', sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))"
    )
