"""Find the workers whose fences are over without looking at every slice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027_fences"
down_revision = "0026_tokens_of_servers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    some = sa.text("fenced_until IS NOT NULL")
    op.create_index("slices_fenced", "slices", ["fenced_until"], sqlite_where=some, postgresql_where=some)


def downgrade() -> None:
    op.drop_index("slices_fenced", "slices")
