"""Tokens with client certificates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_certificates"
down_revision = "0009_reservations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("certificate_expires", sa.Float, nullable=True))
