"""Add what confines the workers of each GPU server, as its agent says."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016_confinement"
down_revision = "0015_waiting"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("servers", sa.Column("confinement", sa.String, nullable=False, server_default="[]"))
