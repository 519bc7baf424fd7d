"""Log what each transaction changes for other pools, and keep signs of life a pool instead of a server or a request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019_changes"
down_revision = "0018_idle_since"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "changes",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("pool", sa.String, nullable=False),
        sa.Column("what", sa.String, nullable=False),
    )
    op.create_table(
        "pools",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("seen", sa.Float, nullable=False),
    )
    op.add_column("servers", sa.Column("quiet", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.drop_column("servers", "seen")
