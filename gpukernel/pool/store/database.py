"""The pool's database: SQLite or PostgreSQL, migrated to the newest schema when a pool starts.

Guarantees
----------
* A crash between two transactions leaves a state that the next start can continue from.
* Whoever changes what is promised holds the ledger's one row locked (`Database.deciding`): pools that share a database decide one
  after the other.
* On PostgreSQL nobody outside hears of a commit before it is on disk (`gpukernel.pool.store.connection.commits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import alembic.command
import alembic.config
import alembic.util
import sqlalchemy as sa

from gpukernel.common.errors import PoolError
from gpukernel.pool.store.changes import ChangeLog
from gpukernel.pool.store.clock import Clock, boot_identity
from gpukernel.pool.store.connection.commits import Commits
from gpukernel.pool.store.connection.compiled_sql import (
    WROTE,
    CompiledSql,
    begin_later,
    commit,
    forget_queued,
    send_queued,
)
from gpukernel.pool.store.connection.frozen import FrozenPools
from gpukernel.pool.store.counters import Counters
from gpukernel.pool.store.schema import ledger

__all__ = [
    "NEWEST",
    "Conflict",
    "Database",
    "database_url",
    "driver_options",
    "is_away",
    "open_database",
    "sentence_of_database",
]

OLDEST_SQLITE = (3, 35)
"""The first with ``ALTER TABLE … DROP COLUMN``, which migrations use: Debian 12 has it, Debian 11 does not."""

NEWEST = "0028_made_with"  # the last of the migrations; a test compares
_FIRST = "0001"  # the shape of databases that were made before there were migrations
_LEDGER = CompiledSql(sa.select(ledger).with_for_update())
_EPOCH = CompiledSql(ledger.update().values(epoch=sa.bindparam("new")))
_VERSIONS = CompiledSql(sa.select(ledger.c.policy_version, ledger.c.devices_version, ledger.c.queue_version))
T = TypeVar("T")

_READERS = 2  # threads in which long answers are read

_MIGRATION_LOCK = 0x6770756B  # PostgreSQL's advisory locks are numbers; this one is ours


_PATIENCE = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
    "fallback_application_name": "gpukernel-pool",
}
"""Options of libpq where the address has none of its own: a server whose machine is gone is given up within ten seconds."""


_IDLE = "SET idle_in_transaction_session_timeout = '5s'"
"""A pool that stands still in the middle of a decision, as its machine may, gives the ledger's lock up after this time."""

_LOCK_WAIT = "SET lock_timeout = '6s'"
"""The longest wait for a lock.  After it the database is taken for away: PostgreSQL's own process that has the lock may stand still, too.
Where only its client does, a pool, PostgreSQL or another pool's `FrozenPools` ends it before."""

_MAY_IDLE = sa.text("SET LOCAL idle_in_transaction_session_timeout = 0")
_MAY_COMPUTE = sa.text("SET LOCAL idle_in_transaction_session_timeout = '10min'")
"""The longest pause of a migration between two statements: with many rows on a busy machine it computes for a while."""

_NO_POOL = sa.text("SET LOCAL application_name = 'gpukernel-migration'")
"""Keeps pools that wait for a lock of a migration from ending it while it computes."""

_MAY_WAIT = sa.text("SET LOCAL lock_timeout = 0")
_WAIT_LITTLE = sa.text("SELECT set_config('lock_timeout', '100ms', true)")
_LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE


def is_away(error: sa.exc.DBAPIError) -> bool:
    """Return whether an error says that the database does not answer now; the same may succeed in a moment."""
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)


def sentence_of_database(error: sa.exc.DBAPIError) -> str:
    """Return what the database's driver says of an error, in one line."""
    return " ".join(str(error.orig).split())


def driver_options(engine: sa.Engine) -> dict[str, Any]:
    """Return what psycopg connects to an engine's database with."""
    _, options = engine.dialect.create_connect_args(engine.url)
    return {**_PATIENCE, **options}


def database_url(state: Path) -> str:
    """Return ``GPUKERNEL_DATABASE``, else the first line of ``GPUKERNEL_DATABASE_FILE``, else the SQLite file of a state directory.

    The SQLite file is made readable by its owner only.

    Raises
    ------
    PoolError
        When both variables are set, or the file named cannot be read or is empty.
    """
    chosen, named = os.environ.get("GPUKERNEL_DATABASE"), os.environ.get("GPUKERNEL_DATABASE_FILE")
    if chosen and named:
        raise PoolError("GPUKERNEL_DATABASE and GPUKERNEL_DATABASE_FILE exclude each other: name one.")
    if named:
        try:
            chosen = Path(named).read_text().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise PoolError(f"GPUKERNEL_DATABASE_FILE names {named}, which cannot be read: {why}.") from None
        if not chosen:
            raise PoolError(
                f"GPUKERNEL_DATABASE_FILE names {named}, whose first line is empty; write postgresql://user:password@host/name there."
            )
    if chosen:
        return chosen
    path = state / "pool.db"
    path.touch(mode=0o600)
    path.chmod(0o600)
    return f"sqlite:///{path}"


def open_database(url: str) -> sa.Engine:
    """Return an engine on the database at `url`, whose tables have the newest schema.

    Parameters
    ----------
    url
        ``sqlite:////var/lib/gpukernel/pool.db`` or ``postgresql://user@host/name``.

    Raises
    ------
    PoolError
        When the database cannot be reached, its driver is missing, or a newer gpukernel has changed its shape.
    """
    for plain in ("postgresql://", "postgres://"):
        if url.startswith(plain):
            url = "postgresql+psycopg://" + url.removeprefix(plain)
    try:
        # An error's text goes to the log; what was written, secrets among it, must not.
        engine = sa.create_engine(url, hide_parameters=True)
    except ModuleNotFoundError:
        raise PoolError("PostgreSQL needs its driver: pip install 'gpukernel[postgres]'.") from None
    except sa.exc.ArgumentError:
        raise PoolError(
            f"“{url.partition(':')[0][:20]}:…” is no database; write postgresql://user@host/name or sqlite:////path/pool.db."
        ) from None
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "before_cursor_execute", _note_writing)
        sa.event.listen(engine, "do_connect", _patience)
        sa.event.listen(engine, "connect", _postgresql_settings)
    if engine.dialect.name == "sqlite":
        has = engine.dialect.dbapi.sqlite_version_info  # type: ignore[union-attr]
        if has < OLDEST_SQLITE:
            raise PoolError(
                f"The pool needs SQLite {_version(OLDEST_SQLITE)} or newer, and this Python has {_version(has)}: "
                "use a Python that brings a newer one, or a PostgreSQL database (GPUKERNEL_DATABASE)."
            )
        sa.event.listen(engine, "connect", _sqlite_settings)
        sa.event.listen(engine, "begin", _sqlite_begin)
    try:
        _upgrade(engine)
    except sa.exc.OperationalError as error:
        engine.dispose()
        raise PoolError(f"The database cannot be used: {' '.join(str(error.orig).split())}.") from None
    except alembic.util.CommandError:
        engine.dispose()
        raise PoolError(
            "The database was changed by a newer gpukernel; install that one again, or restore a copy."
        ) from None
    return engine


def _upgrade(engine: sa.Engine) -> None:
    """Migrate in one transaction: a pool that is killed in the middle has changed nothing."""
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("recursive_version_locations", "true")  # a folder of `versions` has twenty files
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(_MAY_WAIT)  # for another pool that migrates
            connection.execute(_MAY_COMPUTE)
            connection.execute(_NO_POOL)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        config.attributes["connection"] = connection
        tables = set(sa.inspect(connection).get_table_names())
        if "alembic_version" in tables:
            now = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all()
            if list(now) == [NEWEST]:
                return
        elif "leases" in tables:
            alembic.command.stamp(config, _FIRST)
        alembic.command.upgrade(config, "head")


def _patience(_dialect: Any, _record: Any, _arguments: list[Any], options: dict[str, Any]) -> None:
    for name, value in _PATIENCE.items():
        options.setdefault(name, value)


def _postgresql_settings(connection: Any, _: object) -> None:
    connection.execute(_IDLE)
    connection.execute(_LOCK_WAIT)
    connection.commit()


def _version(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _sqlite_settings(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says so, with `_sqlite_begin`
    cursor = connection.cursor()
    # What was committed outlives a killed process; the machine's crash may cost the last moments, but breaks nothing.
    # `Database.write_back` empties the log; only one that has become very long does a commit write back itself.
    settings = ("journal_mode=WAL", "synchronous=NORMAL", "wal_autocheckpoint=16000")
    for pragma in (*settings, "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _note_writing(connection: sa.Connection, _: object, statement: str, *__: object) -> None:
    send_queued(connection)
    if not statement.startswith("SELECT"):
        connection.info[WROTE] = True


def _sqlite_begin(connection: sa.Connection) -> None:
    # Who begins by reading and then writes would otherwise meet somebody else's writing in between.
    reads_only = connection.get_execution_options().get("reads_only", False)
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN" if reads_only else "BEGIN IMMEDIATE")


class Conflict(Exception):
    """The database refused a grant: its books have no room for it, or its key has a lease.

    Attributes
    ----------
    constraint
        The name of the constraint that refused it, or what the database says where it names none.
    """

    def __init__(self, error: sa.exc.IntegrityError) -> None:
        # PostgreSQL's further lines show the row, and a lease's has its secret.
        sentence = str(error.orig).partition("\n")[0]
        super().__init__(sentence)
        named = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
        self.constraint: str = named or sentence.partition(": ")[2] or sentence


class Database:
    """The open database of one pool process.

    Parameters
    ----------
    url
        As `open_database` takes it, for example ``sqlite:////var/lib/gpukernel/pool.db``.

    Attributes
    ----------
    engine
        SQLAlchemy's engine.
    reader
        The same engine for transactions that only read: on SQLite they take no write lock.
    shared
        Whether other pool processes may use the same database.
    decides
        Whether a transaction is under way that holds the ledger's lock.
    clock
        The pool's times.
    changes
        The change log.
    commits
        Which commits are on disk.
    frozen_pools
        Those of other pools that stand still with locks; looked for once it is told to `watch`.
    on_renewed
        Called before the first transaction through a new connection: what was read before may not be there any more.
    renewals
        The number of those times: at each, commits may be lost.
    """

    def __init__(self, url: str) -> None:
        self.clock = Clock(self, boot=boot_identity())
        self.changes = ChangeLog(self)
        self.engine = open_database(url)
        self.reader = self.engine.execution_options(reads_only=True)
        # One connection stays open: another one's cache is empty after every change, and fetching it from the engine costs as
        # much as executing compiled SQL.
        self._db = self.engine.connect()
        self._under_way = False  # a transaction on it
        self._reads = False  # without one
        self._driver: object = None  # the driver's connection behind it
        self._awaited = False
        self.decides = False
        self._epoch = 0  # the ledger's, where its lock is held
        self._held = False  # the ledger, by somebody who did not give it up in time
        self.shared = self.engine.dialect.name != "sqlite"
        self.counters = Counters()
        self.commits = Commits(
            lambda: self.engine.connect().execution_options(isolation_level="AUTOCOMMIT"), self.counters
        )
        self.frozen_pools = FrozenPools(self.engine.connect)
        self.on_renewed: list[Callable[[], None]] = []
        self.renewals = 0
        self._readers = ThreadPoolExecutor(_READERS, "gpukernel-read")

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in a thread, in a transaction of its own that only reads: answers that may be long hold no decision up."""

        def there() -> T:
            with self.reader.connect() as db:
                if self.shared:
                    db.execute(_MAY_IDLE)  # an answer that is long to make holds no lock
                return work(db)

        return await asyncio.get_running_loop().run_in_executor(self._readers, there)

    def write_back(self) -> None:
        """Checkpoint SQLite's write-ahead log; call it in a thread, since the disk may take longer than many decisions."""
        if not self.shared:
            with contextlib.closing(self.engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close every connection."""
        self._readers.shutdown(cancel_futures=True)
        self.changes.close()
        self.commits.close()
        self.frozen_pools.close()
        self._db.close()
        self.engine.dispose()

    @contextlib.contextmanager
    def transaction(self, *, awaited: bool = True) -> Iterator[sa.Connection]:
        """Open a transaction, or join the one that is under way.

        Without `awaited` nobody waits until what it wrote is on disk: losing it costs nothing but time.
        """
        if self._under_way:
            before = self._db.info.pop(WROTE, False)
            try:
                yield self._db
            finally:
                if not self._db.invalidated:  # else nothing of it lasts, and what broke it is what is raised
                    wrote = self._db.info.get(WROTE, False)
                    self._awaited |= awaited and wrote
                    self._db.info[WROTE] = before or wrote
            return
        try:
            if self.shared:
                self._connected()
            with self._db.begin():
                self._under_way, self._awaited = True, False
                if self.shared:
                    begin_later(self._db)
                try:
                    yield self._db
                    self.changes.write(self._db)
                    awaited = self._awaited or (awaited and self._db.info.get(WROTE, False))
                    if self.shared:
                        commit(self._db)
                finally:
                    self._under_way = self.decides = False
                    if not self._db.invalidated:
                        forget_queued(self._db)
        except BaseException:
            self.changes.rolled_back()
            raise
        if awaited and self.shared:
            self.commits.made()
        self.changes.committed()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Join the transaction under way; else read without one on PostgreSQL, where each of its statements would see a state of its own, too."""
        if self._under_way or not self.shared:
            with self.transaction() as db:
                yield db
        elif self._reads:
            yield self._db
        else:
            self._connected()
            with self._db.begin():  # of SQLAlchemy alone
                self._reads = True
                try:
                    yield self._db
                finally:
                    self._reads = False

    def _connected(self) -> None:
        """See that there is a connection to PostgreSQL, before a transaction; through a new one, begin anew."""
        driver: Any = self._db.connection.dbapi_connection
        if driver is not self._driver or self.commits.broken:
            driver.autocommit = True  # transactions begin with `begin_later`
            with self._db.begin():
                self._db.exec_driver_sql("SET SESSION synchronous_commit = off")
            self.commits.renewed()
            self.renewals += self._driver is not None
            for forget in self.on_renewed:
                forget()
            self._driver = driver
        self._db.info.pop(WROTE, None)

    @contextlib.contextmanager
    def deciding(self, *, awaited: bool = True) -> Iterator[tuple[sa.Connection, Any]]:
        """Open a transaction that holds the ledger's lock; yields the connection and the ledger's row.

        One attempt waits for a lock that is held for long, those after it only look: calls that fail one after the other, each after
        seconds, would leave no time for signs of life and renewals.
        """
        with self.transaction(awaited=awaited) as db:
            if self._held:
                db.execute(_WAIT_LITTLE)
            try:
                row = _LEDGER.first(db)
            except sa.exc.OperationalError as error:
                self._held = getattr(error.orig, "sqlstate", "") == _LOCK_NOT_AVAILABLE
                raise
            self._held = False
            self.decides, self._epoch = True, row.epoch
            yield db, row

    def next_epoch(self, db: sa.Connection) -> int:
        """Return a number that is greater than every one before, in a transaction that holds the ledger's lock."""
        self._epoch += 1
        _EPOCH.soon(db, {"new": self._epoch})
        return self._epoch

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Open a part of a transaction that holds the ledger's lock: an error undoes that part, and no more."""
        epoch, noted = self._epoch, self.changes.mark()
        try:
            with self._db.begin_nested():
                yield
        except BaseException:
            self._epoch = epoch
            self.changes.back_to(noted)
            raise

    def versions(self, db: sa.Connection) -> Any:
        """Return the ledger's ``policy_version``, ``devices_version`` and ``queue_version``, without locking it."""
        return _VERSIONS.first(db)
