"""What applications sent, by day.

A new table alone: processes of the version before go on and delete records without counting them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "application_traffic",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("application", sa.Text(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("replies", sa.BigInteger(), nullable=False),
        sa.Column("charged", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "application", name="application_traffic_pkey"),
    )
