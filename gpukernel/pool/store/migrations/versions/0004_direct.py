"""Direct mode: which machines allow it, who asks for it, and which leases have it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_direct"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("servers", sa.Column("direct_machine", sa.String, nullable=False, server_default=""))
    for table in ("requests", "leases"):
        op.add_column(table, sa.Column("mode", sa.String, nullable=False, server_default="remote"))
        op.add_column(table, sa.Column("uid", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("requests", sa.Column("machine", sa.String, nullable=False, server_default=""))
    # Before, only the slices told: by where their programs find them.
    op.execute(
        "UPDATE leases SET mode = 'direct' WHERE id IN "
        "(SELECT lease_id FROM slices WHERE substr(endpoints, 1, 7) = 'direct:')"
    )
