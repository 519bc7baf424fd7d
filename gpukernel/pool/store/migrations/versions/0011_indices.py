"""Indices that grow with what is held, not with what ever was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_indices"
down_revision = "0010_certificates"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite took it for a worker's slice, and read all that its device ever had.
    op.drop_index("ix_slices_device_id", "slices")
    condition = sa.text("state = 'live' AND idle_limit > 0")
    op.create_index(
        "leases_by_idleness", "leases", ["idle_limit"], sqlite_where=condition, postgresql_where=condition
    )
