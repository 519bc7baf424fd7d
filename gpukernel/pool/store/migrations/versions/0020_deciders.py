"""Say who decides over each device, the pool or an engine, and bind slices to that while their workers may live.

SQLite adds no constraint to a table that exists, so there ``slices`` is made anew with its rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020_deciders"
down_revision = "0019_changes"
branch_labels = None
depends_on = None

_KNOWN = "IN ('pool', 'kubernetes', 'slurm')"
_LIVING = "state <> 'ended' AND state <> 'ending'"
_IN_USE = "worker <> 'gone'"
_RULE = "worker = 'gone' OR decided_by IS NOT NULL"


def upgrade() -> None:
    _devices()
    _leases()
    if op.get_bind().dialect.name == "sqlite":
        _slices_anew()
    else:
        op.add_column("slices", sa.Column("decided_by", sa.String, nullable=True, server_default="pool"))
        op.execute("UPDATE slices SET decided_by = NULL WHERE worker = 'gone'")
        op.create_check_constraint("decided_while_in_use", "slices", _RULE)
        op.create_foreign_key(
            "one_decider_a_device", "slices", "devices", ["device_id", "decided_by"], ["id", "decided_by"]
        )


def _devices() -> None:
    # With its constraint a column is added on either database; alembic would add the constraint by itself.
    op.execute(
        "ALTER TABLE devices ADD COLUMN decided_by VARCHAR DEFAULT 'pool' NOT NULL "
        f"CONSTRAINT known_decider CHECK (decided_by {_KNOWN})"
    )
    op.execute(
        "ALTER TABLE devices ADD COLUMN next_decider VARCHAR DEFAULT '' NOT NULL "
        "CONSTRAINT known_next_decider CHECK (next_decider IN ('', 'pool', 'kubernetes', 'slurm')) "
        "CONSTRAINT the_pools_to_offer CHECK (NOT available OR (decided_by = 'pool' AND next_decider = ''))"
    )
    op.create_index("one_decider_a_device", "devices", ["id", "decided_by"], unique=True)
    waiting = sa.text("next_decider <> ''")
    op.create_index("devices_to_hand_over", "devices", ["id"], sqlite_where=waiting, postgresql_where=waiting)


def _leases() -> None:
    op.execute(
        "ALTER TABLE leases ADD COLUMN decided_by VARCHAR DEFAULT 'pool' NOT NULL "
        f"CONSTRAINT known_decider CHECK (decided_by {_KNOWN})"
    )
    op.drop_index("one_living_lease_a_key", "leases")
    op.create_index(
        "one_living_lease_a_key",
        "leases",
        ["decided_by", "key"],
        unique=True,
        sqlite_where=sa.text(_LIVING),
        postgresql_where=sa.text(_LIVING),
    )


def _slices_anew() -> None:
    columns = (
        sa.Column("lease_id", sa.String, sa.ForeignKey("leases.id"), primary_key=True),
        sa.Column("ordinal", sa.Integer, primary_key=True),
        sa.Column("device_id", sa.String, sa.ForeignKey("devices.id"), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("wanted_bytes", sa.BigInteger, nullable=True),
        sa.Column("limit_bytes", sa.BigInteger, nullable=False, server_default="0"),
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
        sa.Column("idle_since", sa.Float, nullable=True),
        sa.Column("confirmed", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("fenced_until", sa.Float, nullable=True),
    )
    names = ", ".join(column.name for column in columns)
    op.create_table(
        "slices_anew",
        *columns,
        sa.Column("decided_by", sa.String, nullable=True, server_default="pool"),
        sa.CheckConstraint("worker IN ('starting', 'ready', 'gone')", name="known_worker"),
        sa.CheckConstraint(_RULE, name="decided_while_in_use"),
        sa.ForeignKeyConstraint(
            ["device_id", "decided_by"], ["devices.id", "devices.decided_by"], name="one_decider_a_device"
        ),
    )
    op.execute(
        f"INSERT INTO slices_anew ({names}, decided_by) "
        f"SELECT {names}, CASE WHEN worker = 'gone' THEN NULL ELSE 'pool' END FROM slices"
    )
    op.drop_table("slices")
    op.rename_table("slices_anew", "slices")
    in_use = sa.text(_IN_USE)
    op.create_index("slices_in_use", "slices", ["device_id", "lease_id"], sqlite_where=in_use)
