"""Instructors send messages to the holders of leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_messages"
down_revision = "0006_hub"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("message", sa.String, nullable=False, server_default=""))
