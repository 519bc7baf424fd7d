"""Name devices by their UUIDs, and let a request ask for one device.

Rows of before have no UUID; they get it with the first report of a server's agent that tells it (`gpukernel.pool.store.device_reports`).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017_device_uuids"
down_revision = "0016_confinement"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("uuid", sa.String, nullable=False, server_default=""))
    op.create_index("ix_devices_uuid", "devices", ["uuid"])
    op.create_index(
        "one_device_a_number",
        "devices",
        ["server", "index"],
        unique=True,
        sqlite_where=sa.text("available"),
        postgresql_where=sa.text("available"),
    )
    op.add_column("requests", sa.Column("on_device", sa.String, nullable=False, server_default=""))
