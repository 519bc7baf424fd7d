"""Find the tokens of a person's single-user servers without looking at those that were ever made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026_tokens_of_servers"
down_revision = "0025_announced"
branch_labels = None
depends_on = None

INDICES = {
    "tokens_of_servers": (["person", "created"], "server <> ''"),
    "open_servers": (["person", "server"], "server <> '' AND revoked IS NULL"),
}


def upgrade() -> None:
    for name, (columns, condition) in INDICES.items():
        some = sa.text(condition)
        op.create_index(name, "tokens", columns, sqlite_where=some, postgresql_where=some)


def downgrade() -> None:
    for name in INDICES:
        op.drop_index(name, "tokens")
