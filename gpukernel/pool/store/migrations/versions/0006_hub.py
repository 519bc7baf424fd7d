"""Tokens of one server, groups of people, and what courses offer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_hub"
down_revision = "0005_filter"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("courses", sa.Column("profile", sa.String, nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("course", sa.String, nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("server", sa.String, nullable=False, server_default=""))
    op.create_table(
        "groups",
        sa.Column("person", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
    )
