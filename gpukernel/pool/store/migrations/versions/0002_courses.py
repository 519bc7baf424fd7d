"""Courses, quotas with their running totals, the queue, tokens and the audit table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _living_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    _ledger()
    _leases()
    _rules()
    _line_and_doors()
    _fill_in_what_is_held()


def _ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("epoch", "ticket", "line_version", "devices_version", "rules_version")
        ),
        sa.Column("term_begins", sa.Float, nullable=False, server_default="0"),
        sa.CheckConstraint("id = 1", name="one_ledger"),
    )
    op.execute(
        "INSERT INTO ledger (id, epoch, ticket, line_version, devices_version, rules_version) "
        "SELECT 1, coalesce(max(epoch), 0), 0, 1, 1, 1 FROM leases"
    )
    op.create_table(
        "servers",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("pool", sa.String, nullable=False, server_default=""),
        sa.Column("seen", sa.Float, nullable=False, server_default="0"),
        sa.Column("away_since", sa.Float, nullable=True),
    )
    op.execute("INSERT INTO servers (name) SELECT DISTINCT server FROM devices")
    op.add_column(
        "devices", sa.Column("available", sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    op.create_index(
        "devices_by_room", "devices", ["name", "memory_bytes", "available", "promised_bytes", "id"]
    )


def _leases() -> None:
    for column in (
        sa.Column("role", sa.String, nullable=False, server_default=""),
        sa.Column("until", sa.Float, nullable=True),
        sa.Column("idle_limit", sa.Float, nullable=False, server_default="0"),
        sa.Column("notice", sa.String, nullable=False, server_default=""),
        sa.Column("share", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False, server_default="0"),
    ):
        op.add_column("leases", column)
    _living_index("leases_by_expiry", "leases", ["expires"], "state <> 'ended'")
    _living_index("leases_by_end", "leases", ["until"], "state <> 'ended' AND until IS NOT NULL")
    op.create_index("leases_by_epoch", "leases", ["epoch"])
    _living_index("slices_in_use", "slices", ["device_id", "lease_id"], "worker <> 'gone'")


def _rules() -> None:
    op.create_table(
        "courses",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("title", sa.String, nullable=False, server_default=""),
        sa.Column("weight", sa.Float, nullable=False, server_default="1"),
        sa.CheckConstraint("weight > 0", name="some_weight"),
    )
    op.create_table(
        "members",
        sa.Column("course", sa.String, sa.ForeignKey("courses.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("person", sa.String, primary_key=True),
        sa.Column("role", sa.String, nullable=False),
        sa.CheckConstraint("role IN ('student', 'instructor')", name="known_role"),
    )
    op.create_table(
        "quotas",
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("course", sa.String, primary_key=True),
        sa.Column("person", sa.String, primary_key=True),
        sa.Column("devices", sa.Float, nullable=True),
        sa.Column("memory_mib", sa.BigInteger, nullable=True),
        sa.Column("leases", sa.Integer, nullable=True),
        *(
            sa.Column(name, sa.Float, nullable=True)
            for name in (
                "hours_day",
                "hours_week",
                "hours_term",
                "longest_seconds",
                "largest_slice",
                "idle_seconds",
            )
        ),
        sa.CheckConstraint(
            "kind IN ('pool', 'course', 'student', 'instructor', 'person')", name="known_kind"
        ),
    )
    op.create_table(
        "accounts",
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("course", sa.String, primary_key=True),
        sa.Column("person", sa.String, primary_key=True),
        *(
            sa.Column(f"{what}_held", sa.BigInteger, nullable=False, server_default="0")
            for what in ("share", "memory", "leases")
        ),
        *(
            sa.Column(f"{what}_ceiling", sa.BigInteger, nullable=True)
            for what in ("share", "memory", "leases")
        ),
        *(
            sa.Column(name, sa.Float, nullable=False, server_default="0")
            for name in ("settled", "spent_day", "spent_week", "spent_term")
        ),
        *(
            sa.CheckConstraint(
                f"{what}_held >= 0 AND ({what}_ceiling IS NULL OR {what}_held <= {what}_ceiling)",
                name=f"{what}_within_quota",
            )
            for what in ("share", "memory", "leases")
        ),
    )


def _line_and_doors() -> None:
    op.create_table(
        "requests",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("ticket", sa.BigInteger, nullable=False, unique=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("person", "server", "course", "role", "description")
        ),
        sa.Column("share", sa.Float, nullable=True),
        sa.Column("memory_bytes", sa.BigInteger, nullable=True),
        sa.Column("devices", sa.Integer, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("ttl_seconds", sa.Float, nullable=False),
        sa.Column("longest_seconds", sa.Float, nullable=False, server_default="0"),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("pool", sa.String, nullable=False),
        sa.Column("seen", sa.Float, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("hash", "name", "person", "scope")),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=True),
        sa.Column("revoked", sa.Float, nullable=True),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Float, nullable=False),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("who", "action", "subject", "before", "after")
        ),
    )
    op.create_index("ix_audit_time", "audit", ["time"])


def _fill_in_what_is_held() -> None:
    """Leases of the old shape go on living: their figures are what their slices say."""
    op.execute(
        "UPDATE leases SET "
        "share = (SELECT coalesce(sum(round(weight * 1000000)), 0) FROM slices WHERE lease_id = leases.id), "
        "memory_bytes = (SELECT coalesce(sum(memory_bytes), 0) FROM slices WHERE lease_id = leases.id)"
    )
    for kind, course, person, where in (
        ("'pool'", "''", "''", "true"),
        ("'course'", "course", "''", "true"),
        ("'member'", "course", "person", "course <> ''"),
        ("'person'", "''", "person", "true"),
    ):
        by = ", ".join(name for name in (course, person) if name != "''")
        # Sums of nothing are one row, which HAVING would leave out: without GROUP BY, from SQLite 3.39 on only.
        op.execute(
            "INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled) "
            "SELECT * FROM ("
            f"SELECT {kind} AS k, {course} AS c, {person} AS p, sum(share) AS s, sum(memory_bytes) AS m, count(*) AS n, max(created) AS t "
            f"FROM leases WHERE state <> 'ended' AND {where} "
            + (f"GROUP BY {by}" if by else "")
            + ") AS held WHERE n > 0"
        )
