"""Know ceilings, the leases inside of them, and the tokens of servers whose slices lie inside of one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023_ceilings"
down_revision = "0021_failover"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("ceiling", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("leases", sa.Column("within", sa.String, nullable=False, server_default=""))
    inside = sa.text("state <> 'ended' AND within <> ''")
    op.create_index("leases_by_ceiling", "leases", ["within"], sqlite_where=inside, postgresql_where=inside)
    op.add_column("slices", sa.Column("reserve_bytes", sa.BigInteger, nullable=False, server_default="0"))
    # With its constraint a column is added on either database.
    op.execute(
        "ALTER TABLE slices ADD COLUMN lent_bytes BIGINT DEFAULT 0 NOT NULL "
        "CONSTRAINT lent_within_reserve CHECK (lent_bytes >= 0 AND lent_bytes <= reserve_bytes)"
    )
    op.add_column("slices", sa.Column("lent_by", sa.String, nullable=True))
    op.add_column("tokens", sa.Column("inside", sa.Boolean, nullable=False, server_default=sa.false()))
