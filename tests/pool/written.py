"""The number of rows that a pool changes."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from tests.pool.world import World

__all__ = ["Written"]


class Written:
    """Counts the rows that statements change, whichever way they go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: World) -> None:
        self.rows = 0
        execute = CompiledSql._execute

        def counted(query: CompiledSql, *arguments: Any) -> Any:
            cursor = execute(query, *arguments)
            if not query._what.is_select:
                self.rows += cursor.rowcount
            return cursor

        def after(_db: Any, cursor: Any, statement: str, *_: Any) -> None:
            if statement.split()[0].upper() in ("INSERT", "UPDATE", "DELETE"):
                self.rows += cursor.rowcount

        monkeypatch.setattr(CompiledSql, "_execute", counted)
        sa.event.listen(world.store.engine, "after_cursor_execute", after)
        self._queued: list[Any] = []  # cursors, which know their rows once all that went together is over
        if world.store.shared:
            self._count_queued(monkeypatch)

    def _count_queued(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import psycopg

        execute = psycopg.Connection.execute

        def queued(connection: Any, statement: str, *arguments: Any) -> Any:
            cursor = execute(connection, statement, *arguments)
            if str(statement).split()[0].upper() in ("INSERT", "UPDATE", "DELETE"):
                self._queued.append(cursor)
            return cursor

        monkeypatch.setattr(psycopg.Connection, "execute", queued)

    def since(self) -> int:
        """Return the rows that were changed since the last call."""
        rows, self.rows = self.rows + sum(cursor.rowcount for cursor in self._queued), 0
        self._queued.clear()
        return rows
