"""Compiled SQL for hot paths, without SQLAlchemy's work on each execution, which is ten times SQLite's.

A `CompiledSql` is written in SQLAlchemy's language, compiled once for each kind of database, and given to the driver as it is.
Grants, renewals, heartbeats and the clock's tick use it; everything else goes through SQLAlchemy, in the same transactions.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa

__all__ = ["WROTE", "CompiledSql"]

WROTE = "gpukernel wrote"
"""A key in a connection's `info`, true once something was written through it."""


class CompiledSql:
    """One query, as SQLAlchemy has it.

    Its parameters are given by name: lists for those that expand; of an insert any columns, and the others have their defaults.  Errors
    of the database are those of SQLAlchemy.
    """

    def __init__(self, what: Any) -> None:
        self._what = what
        self._known: dict[tuple[Any, ...], _Translated] = {}  # by kind of database, lengths of lists, columns
        self._row: Any = None
        self._writes = not (what.is_select or (what.is_text and what.text.startswith("SELECT")))

    def rows(self, db: sa.Connection, **values: Any) -> list[Any]:
        """Return what is found or returned, as named tuples."""
        cursor = self._execute(db, values)
        if self._row is None:
            row: Any = namedtuple("Row", [column[0] for column in cursor.description])  # type: ignore[misc]
            self._row = row._make
        return [self._row(row) for row in cursor.fetchall()]

    def first(self, db: sa.Connection, **values: Any) -> Any:
        """Return the first row, or None."""
        return next(iter(self.rows(db, **values)), None)

    def run(self, db: sa.Connection, **values: Any) -> int:
        """Execute; return how many rows changed."""
        return int(self._execute(db, values).rowcount)

    def each(self, db: sa.Connection, many: Sequence[Mapping[str, Any]]) -> int:
        """Execute with the values of each of `many`; return how many rows changed."""
        return int(self._execute(db, *many).rowcount) if many else 0

    def _execute(self, db: sa.Connection, first: Mapping[str, Any], *more: Mapping[str, Any]) -> Any:
        if lists := {name: _padded(value) for name, value in first.items() if isinstance(value, list)}:
            first = {**first, **lists}
        key = db.dialect.name, *map(len, lists.values()), *(first if self._what.is_insert else ())
        if (known := self._known.get(key)) is None:
            known = self._known[key] = _Translated(self._what, db.dialect, first)
        cursor: Any = db.connection.cursor()
        if self._writes:
            db.info[WROTE] = True
        try:
            if more:
                cursor.executemany(known.text, [known.values(one) for one in (first, *more)])
            else:
                cursor.execute(known.text, known.values(first))
        except db.dialect.loaded_dbapi.Error as error:
            lost = db.dialect.is_disconnect(error, db.connection.dbapi_connection, cursor)
            if lost:
                db.invalidate(error)
            kind = db.dialect.loaded_dbapi.Error
            raise sa.exc.DBAPIError.instance(known.text, None, error, kind, True, lost, db.dialect) from error
        return cursor


def _padded(values: list[Any]) -> list[Any]:
    """Pad a list to a power of two, so that few lengths are translated."""
    return values + values[-1:] * ((1 << (len(values) - 1).bit_length()) - len(values)) if values else []


class _Translated:
    """A query in the words of one kind of database, for lists of certain lengths."""

    def __init__(self, what: Any, dialect: sa.Dialect, example: Mapping[str, Any]) -> None:
        compiled = what.compile(dialect=dialect, column_keys=list(example) if what.is_insert else None)
        state = compiled.construct_expanded_state(example)
        self.text: str = state.statement
        self._order = state.positiontup
        self._lists = {n: parts for n, parts in state.parameter_expansion.items() if n in example}
        # Values in the SQL itself, and defaults of columns.
        self._fixed = {name: value for name, value in state.parameters.items() if name not in example}
        self._fixed |= {c.key: c.default.arg for c in compiled.insert_prefetch}
        for part in chain.from_iterable(self._lists.values()):
            del self._fixed[part]

    def values(self, given: Mapping[str, Any]) -> Any:
        """Return the parameters as the driver wants them."""
        every = {**self._fixed, **given}
        for name, parts in self._lists.items():
            every.update(zip(parts, every.pop(name), strict=True))
        return every if self._order is None else [every[name] for name in self._order]
