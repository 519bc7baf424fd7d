"""Know what supplies bring when somebody waits for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025_announced"
down_revision = "0024_priorities"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("announced", sa.String, nullable=False, server_default=""))
    some = sa.text("announced <> ''")
    op.create_index("tokens_of_supplies", "tokens", ["id"], sqlite_where=some, postgresql_where=some)


def downgrade() -> None:
    op.drop_index("tokens_of_supplies", "tokens")
    op.drop_column("tokens", "announced")
