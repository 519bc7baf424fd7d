"""Keep since when a worker has been idle, so that its idleness grows without being written."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018_idle_since"
down_revision = "0017_device_uuids"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slices", sa.Column("idle_since", sa.Float, nullable=True))
