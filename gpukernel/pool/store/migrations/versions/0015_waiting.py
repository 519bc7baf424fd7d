"""Quotas of requests that wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015_waiting"
down_revision = "0014_fencing"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("quotas", sa.Column("waiting", sa.Integer, nullable=True))
