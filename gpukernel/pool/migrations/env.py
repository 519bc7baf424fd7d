"""Alembic's entry; `gpukernel.pool.database` hands over the connection, and the transaction around it is its own."""

from __future__ import annotations

from alembic import context

from gpukernel.pool.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
