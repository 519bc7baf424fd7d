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

_HELD = """UPDATE quota_usage SET interactive_held = COALESCE((
    SELECT CAST(SUM(leases.share) AS BIGINT) FROM leases
    JOIN usage_log ON usage_log.lease_id = leases.id AND usage_log.ends IS NULL
    WHERE leases.priority = 'interactive' AND (
        quota_usage.kind = 'pool'
        OR (quota_usage.kind = 'course' AND leases.course = quota_usage.course)
        OR (quota_usage.kind = 'member' AND leases.course = quota_usage.course AND leases.person = quota_usage.person)
        OR (quota_usage.kind = 'person' AND leases.person = quota_usage.person)
    )), 0)"""


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
    op.add_column("quotas", sa.Column("interactive", sa.Float, nullable=True))
    op.add_column("quota_usage", sa.Column("interactive_ceiling", sa.BigInteger, nullable=True))
    op.execute(
        "ALTER TABLE quota_usage ADD COLUMN interactive_held BIGINT DEFAULT 0 NOT NULL "
        "CONSTRAINT interactive_within_quota CHECK (interactive_held >= 0 AND "
        "(interactive_ceiling IS NULL OR interactive_held <= interactive_ceiling))"
    )
    op.execute(_HELD)


def downgrade() -> None:
    op.drop_column("quota_usage", "interactive_held")
    op.drop_column("quota_usage", "interactive_ceiling")
    op.drop_column("quotas", "interactive")
    op.drop_column("quota_usage", "recent")
    op.drop_column("ledger", "half_life")
    op.drop_column("leases", "priority")
    op.drop_column("requests", "priority")
