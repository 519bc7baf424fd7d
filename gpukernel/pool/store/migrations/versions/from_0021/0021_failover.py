"""Know which pool was asked for a lease last, and where each pool is reached."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021_failover"
down_revision = "0020_deciders"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("caller", sa.String, nullable=False, server_default=""))
    op.add_column("pools", sa.Column("address", sa.String, nullable=False, server_default=""))
