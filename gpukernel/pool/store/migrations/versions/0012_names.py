"""Rename tables and columns to the terms of the field; their rows stay."""

from __future__ import annotations

from alembic import op

revision = "0012_names"
down_revision = "0011_indices"
branch_labels = None
depends_on = None

TABLES = {"accounts": "quota_usage", "spans": "usage_log", "pins": "reservation_placements"}
COLUMNS = {"line_version": "queue_version", "rules_version": "policy_version"}  # of the ledger


def upgrade() -> None:
    for old, new in TABLES.items():
        op.rename_table(old, new)
    for old, new in COLUMNS.items():
        # Alembic would copy the table on SQLite; both databases can rename a column in place.
        op.execute(f"ALTER TABLE ledger RENAME COLUMN {old} TO {new}")
    op.drop_index("spans_by_end", "usage_log")
    op.create_index("usage_log_by_end", "usage_log", ["ends"])
