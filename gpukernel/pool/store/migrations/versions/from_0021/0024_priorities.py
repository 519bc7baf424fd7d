"""Give requests and leases a priority class, and fair share a memory, which begins empty.

Leases of before are interactive, as nothing could come before them; those that engines have placed have no class.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024_priorities"
down_revision = "0023_ceilings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("priority", sa.String, nullable=False, server_default="interactive"))
    # With its constraint a column is added on either database; alembic would add the constraint by itself.
    op.execute(
        "ALTER TABLE leases ADD COLUMN priority VARCHAR DEFAULT 'interactive' NOT NULL "
        "CONSTRAINT known_priority CHECK (priority IN ('', 'interactive', 'batch', 'scavenger'))"
    )
    op.execute("UPDATE leases SET priority = '' WHERE decided_by <> 'pool'")
    op.add_column("ledger", sa.Column("half_life", sa.Float, nullable=False, server_default="604800"))
    op.add_column("quota_usage", sa.Column("recent", sa.Float, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("quota_usage", "recent")
    op.drop_column("ledger", "half_life")
    op.drop_column("leases", "priority")
    op.drop_column("requests", "priority")
