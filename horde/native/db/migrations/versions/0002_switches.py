"""What an administrator switches: users, models, chat admission, maintenance of workers and of the whole Horde.

Every column has a default, so that processes of the version before go on over the new tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("users", sa.Column("disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("models", sa.Column("admits", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("workers", sa.Column("maintenance_message", sa.Text(), nullable=True))
    op.add_column(
        "horde_state", sa.Column("maintenance", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column("horde_state", sa.Column("maintenance_message", sa.Text(), nullable=True))
    op.add_column("horde_state", sa.Column("admits", sa.Boolean(), server_default=sa.text("true"), nullable=False))
