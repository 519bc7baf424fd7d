"""Bind servers to credentials and machines, fence what their workers may hold, and keep a clock that no step of the machine's moves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014_fencing"
down_revision = "0013_renewals"
branch_labels = None
depends_on = None

_LIVING = "state <> 'ended' AND state <> 'ending'"
_BOUND = "substr(credential, 1, 6) = 'token '"


def upgrade() -> None:
    for name in ("credential", "machine", "place", "instance"):
        op.add_column("servers", sa.Column(name, sa.String, nullable=False, server_default=""))
    op.add_column("servers", sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("servers", sa.Column("heard", sa.Float, nullable=False, server_default="0"))
    # Agents of before stop no worker by themselves.
    op.add_column("servers", sa.Column("fenced_until", sa.Float, nullable=False, server_default="1e18"))
    op.add_column(
        "servers", sa.Column("settling", sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    op.add_column(
        "servers", sa.Column("forgotten", sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    op.create_index(
        "one_server_a_token",
        "servers",
        ["credential"],
        unique=True,
        sqlite_where=sa.text(_BOUND),
        postgresql_where=sa.text(_BOUND),
    )
    op.add_column(
        "slices", sa.Column("confirmed", sa.Boolean, nullable=False, server_default=sa.text("true"))
    )
    op.add_column("slices", sa.Column("fenced_until", sa.Float, nullable=True))
    op.add_column("leases", sa.Column("span", sa.Float, nullable=True))
    op.execute("UPDATE leases SET span = until - created WHERE until IS NOT NULL")
    # What has ended uses nothing of a quota, and its key may be used again.
    op.drop_index("one_living_lease_a_key", "leases")
    op.create_index(
        "one_living_lease_a_key",
        "leases",
        ["key"],
        unique=True,
        sqlite_where=sa.text(_LIVING),
        postgresql_where=sa.text(_LIVING),
    )
    op.create_table(
        "clock",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("steady", sa.Float, nullable=False),
        sa.Column("wall", sa.Float, nullable=False),
        sa.Column("boot", sa.String, nullable=False),
        sa.Column("since_boot", sa.Float, nullable=False),
        sa.CheckConstraint("id = 1", name="one_clock"),
    )
    op.execute("INSERT INTO clock (id, steady, wall, boot, since_boot) VALUES (1, 0, 0, '', 0)")
