"""Requests may name the GPU servers that they want."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_filter"
down_revision = "0004_direct"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("on_server", sa.String, nullable=False, server_default=""))
