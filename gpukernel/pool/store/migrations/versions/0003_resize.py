"""Sizes that change while a lease lives, what was held when, and servers and devices that are taken out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slices", sa.Column("wanted_bytes", sa.BigInteger, nullable=True))
    op.add_column("slices", sa.Column("limit_bytes", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE slices SET limit_bytes = memory_bytes")
    op.add_column("leases", sa.Column("resize_refusal", sa.String, nullable=False, server_default=""))
    op.add_column(
        "servers", sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    op.add_column("servers", sa.Column("drain_until", sa.Float, nullable=True))
    op.add_column("devices", sa.Column("fault", sa.String, nullable=False, server_default=""))
    op.create_table(
        "spans",
        sa.Column("lease_id", sa.String, sa.ForeignKey("leases.id"), primary_key=True),
        sa.Column("begins", sa.Float, primary_key=True),
        sa.Column("ends", sa.Float, nullable=True),
        sa.Column("share", sa.BigInteger, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("spans_by_end", "spans", ["ends"])
    op.execute(
        "INSERT INTO spans (lease_id, begins, ends, share, memory_bytes) "
        "SELECT id, created, CASE WHEN state = 'ended' THEN ended END, share, memory_bytes FROM leases"
    )
