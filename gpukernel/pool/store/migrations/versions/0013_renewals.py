"""Tokens that were renewed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013_renewals"
down_revision = "0012_names"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("renewed", sa.Float, nullable=True))
