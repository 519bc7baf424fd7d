"""Capacity that a course owns at certain hours."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_reservations"
down_revision = "0008_messages"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ledger", sa.Column("timezone", sa.String, nullable=False, server_default=""))
    op.create_table(
        "reservations",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("course", sa.String, sa.ForeignKey("courses.name"), nullable=False),
        sa.Column("days", sa.String, nullable=False),
        sa.Column("on_day", sa.String, nullable=False),
        sa.Column("begins", sa.Integer, nullable=False),
        sa.Column("ends", sa.Integer, nullable=False),
        sa.Column("devices", sa.Float, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("preempt", sa.Boolean, nullable=False),
        sa.CheckConstraint("begins >= 0 AND begins < ends AND ends <= 1440", name="ends_after_it_begins"),
        sa.CheckConstraint("devices > 0", name="some_capacity"),
    )
    op.create_table(
        "pins",
        sa.Column(
            "reservation", sa.String, sa.ForeignKey("reservations.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("device", sa.String, primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )
