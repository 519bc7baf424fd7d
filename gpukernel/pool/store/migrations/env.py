"""Alembic's entry point; `gpukernel.pool.store.database` hands over the connection and owns the transaction around it."""

from __future__ import annotations

from alembic import context

from gpukernel.pool.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
