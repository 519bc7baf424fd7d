"""Say with which token another was made, so that both can be revoked at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028_made_with"
down_revision = "0027_fences"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("made_with", sa.String, nullable=False, server_default=""))
    some = sa.text("made_with <> ''")
    op.create_index("tokens_made", "tokens", ["made_with"], sqlite_where=some, postgresql_where=some)


def downgrade() -> None:
    op.drop_index("tokens_made", "tokens")
    op.drop_column("tokens", "made_with")
