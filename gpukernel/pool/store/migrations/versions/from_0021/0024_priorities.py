"""Give requests and leases a priority class, fair share a memory, which begins empty, and leases a way to give way.

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

_INDICES = (
    ("leases_giving_way", ["gives_way"], "state <> 'ended' AND gives_way IS NOT NULL"),
    ("leases_given_up", ["gives_way_for", "gives_way"], "gives_way IS NOT NULL"),
    ("leases_by_class", ["priority", "epoch"], "state = 'live' AND gives_way IS NULL"),
)


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
    op.add_column("ledger", sa.Column("notice", sa.Float, nullable=False, server_default="60"))
    op.add_column("ledger", sa.Column("least_run", sa.Float, nullable=False, server_default="600"))
    op.add_column("leases", sa.Column("gives_way", sa.Float, nullable=True))
    op.add_column("leases", sa.Column("gives_way_to", sa.String, nullable=False, server_default=""))
    op.add_column("leases", sa.Column("gives_way_for", sa.String, nullable=False, server_default=""))
    op.add_column("requests", sa.Column("claims", sa.String, nullable=False, server_default=""))
    op.add_column("requests", sa.Column("claims_from", sa.Float, nullable=False, server_default="0"))
    for name, columns, condition in _INDICES:
        where = sa.text(condition)
        op.create_index(name, "leases", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name, _, _ in _INDICES:
        op.drop_index(name, "leases")
    op.drop_column("requests", "claims_from")
    op.drop_column("requests", "claims")
    op.drop_column("leases", "gives_way_for")
    op.drop_column("leases", "gives_way_to")
    op.drop_column("leases", "gives_way")
    op.drop_column("ledger", "least_run")
    op.drop_column("ledger", "notice")
    op.drop_column("quota_usage", "interactive_held")
    op.drop_column("quota_usage", "interactive_ceiling")
    op.drop_column("quotas", "interactive")
    op.drop_column("quota_usage", "recent")
    op.drop_column("ledger", "half_life")
    op.drop_column("leases", "priority")
    op.drop_column("requests", "priority")
