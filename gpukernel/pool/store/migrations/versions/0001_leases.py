"""Devices, leases and their slices: the shape of a database that knows no migrations yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("promised_bytes", sa.BigInteger, nullable=False),
        sa.Column("compute_capability", sa.String, nullable=False),
        sa.Column("multiprocessors", sa.Integer, nullable=False),
        sa.CheckConstraint(
            "promised_bytes >= 0 AND promised_bytes <= memory_bytes", name="never_promised_twice"
        ),
    )
    op.create_index("ix_devices_server", "devices", ["server"])
    op.create_table(
        "leases",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("person", sa.String, nullable=False),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("course", sa.String, nullable=False),
        sa.Column("description", sa.String, nullable=False),
        sa.Column("secret", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("ttl_seconds", sa.Float, nullable=False),
        sa.Column("ended", sa.Float, nullable=False),
        sa.Column("end_reason", sa.String, nullable=False),
        sa.CheckConstraint("state IN ('starting', 'live', 'ending', 'ended')", name="known_state"),
    )
    living = sa.text("state <> 'ended'")
    op.create_index(
        "one_living_lease_a_key",
        "leases",
        ["key"],
        unique=True,
        sqlite_where=living,
        postgresql_where=living,
    )
    op.create_table(
        "slices",
        sa.Column("lease_id", sa.String, sa.ForeignKey("leases.id"), primary_key=True),
        sa.Column("ordinal", sa.Integer, primary_key=True),
        sa.Column("device_id", sa.String, sa.ForeignKey("devices.id"), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("worker", sa.String, nullable=False),
        sa.Column("endpoints", sa.String, nullable=False),
        sa.Column("memory_used_bytes", sa.BigInteger, nullable=False),
        sa.Column("memory_peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("cuda_calls", sa.BigInteger, nullable=False),
        sa.Column("launches", sa.BigInteger, nullable=False),
        sa.Column("gpu_seconds", sa.Float, nullable=False),
        sa.Column("connections", sa.Integer, nullable=False),
        sa.Column("idle_seconds", sa.Float, nullable=False),
        sa.CheckConstraint("worker IN ('starting', 'ready', 'gone')", name="known_worker"),
    )
    op.create_index("ix_slices_device_id", "slices", ["device_id"])
