"""Compiled SQL for hot paths, without SQLAlchemy's work on each execution, which is ten times SQLite's.

A `CompiledSql` is written in SQLAlchemy's language, compiled once for each kind of database, and given to the driver as it is.
Grants, renewals, heartbeats and the clock's tick use it; everything else goes through SQLAlchemy, in the same transactions.

PostgreSQL is a network away, and each statement that is waited for is a trip.  In a transaction of `begin_later` those that nobody needs
an answer of go with the next one, in libpq's pipeline mode: ``BEGIN``, what is written `CompiledSql.soon`, and ``COMMIT``.
"""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa

__all__ = ["WROTE", "CompiledSql", "begin_later", "commit", "forget_queued", "rows_of", "send_queued"]

WROTE = "gpukernel wrote"
"""A key in a connection's `info`, true once something was written through it."""

_QUEUED = "gpukernel queued"
"""A key in a connection's `info`: the statements of its transaction that are not sent yet, with their parameters."""

_BEGIN: tuple[str, Any] = ("BEGIN", None)
_COMMIT: tuple[str, Any] = ("COMMIT", None)


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
        return self._fetched(self._execute(db, values))

    def _fetched(self, cursor: Any) -> list[Any]:
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

    def soon(self, db: sa.Connection, *many: Mapping[str, Any]) -> None:
        """Execute with the values of each of `many`, before the next statement: an error is raised there, or by `send_queued`."""
        if (queue := db.info.get(_QUEUED)) is None:
            self.each(db, many)
            return
        for values in many:
            known, given = self._translated(db, values)
            queue.append((known.text, known.values(given)))
            db.info[WROTE] = True

    def _translated(
        self, db: sa.Connection, values: Mapping[str, Any]
    ) -> tuple[_Translated, Mapping[str, Any]]:
        if lists := {name: _padded(value) for name, value in values.items() if isinstance(value, list)}:
            values = {**values, **lists}
        key = db.dialect.name, *map(len, lists.values()), *(values if self._what.is_insert else ())
        if (known := self._known.get(key)) is None:
            known = self._known[key] = _Translated(self._what, db.dialect, values)
        return known, values

    def _execute(self, db: sa.Connection, first: Mapping[str, Any], *more: Mapping[str, Any]) -> Any:
        known, first = self._translated(db, first)
        if self._writes:
            db.info[WROTE] = True
        if more:
            return _send(db, (known.text, [known.values(one) for one in (first, *more)]), many=True)[0]
        return _send(db, (known.text, known.values(first)))[0]


# --- what is sent together ---


def rows_of(db: sa.Connection, *asked: tuple[CompiledSql, Mapping[str, Any]]) -> list[list[Any]]:
    """Return what several queries find, each with its values, in one trip."""
    together = []
    for query, values in asked:
        known, given = query._translated(db, values)
        together.append((known.text, known.values(given)))
    cursors = _send(db, *together)
    return [query._fetched(cursor) for (query, _), cursor in zip(asked, cursors, strict=True)]


def begin_later(db: sa.Connection) -> None:
    """Begin a transaction with its first statement, on a connection to PostgreSQL that commits each statement by itself otherwise."""
    db.info[_QUEUED] = [_BEGIN]


def send_queued(db: sa.Connection) -> None:
    """Have everything executed that is queued."""
    if db.info.get(_QUEUED):
        _send(db)


def commit(db: sa.Connection) -> None:
    """Commit a transaction of `begin_later` together with what is queued; one without a statement does not reach the database."""
    queue = db.info[_QUEUED]
    if queue != [_BEGIN]:
        queue.append(_COMMIT)
        _send(db)


def forget_queued(db: sa.Connection) -> None:
    """Send nothing of what is queued, since the transaction is over."""
    db.info.pop(_QUEUED, None)


def _send(db: sa.Connection, *asked: tuple[str, Any], many: bool = False) -> list[Any]:
    """Execute what is queued and then these statements, in one trip; return the cursors of these."""
    cursors: list[Any] = [db.connection.cursor() for _ in asked]
    queue = db.info.get(_QUEUED)
    text = ""
    try:
        with contextlib.ExitStack() as pipeline:
            driver: Any = db.connection.dbapi_connection
            if (queue or len(asked) > 1) and hasattr(driver, "pipeline"):
                pipeline.enter_context(driver.pipeline())
            if queue:
                db.info[_QUEUED] = []
            for text, values in queue or ():
                driver.execute(text, values)
            for cursor, (text, values) in zip(cursors, asked, strict=True):
                (cursor.executemany if many else cursor.execute)(text, values)
    except db.dialect.loaded_dbapi.Error as error:
        lost = db.dialect.is_disconnect(error, db.connection.dbapi_connection, None)
        if lost:
            db.invalidate(error)
        kind = db.dialect.loaded_dbapi.Error
        raise sa.exc.DBAPIError.instance(text, None, error, kind, True, lost, db.dialect) from error
    return cursors


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
