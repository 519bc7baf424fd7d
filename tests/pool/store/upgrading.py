"""Opens a database as a pool does, and kills itself with SIGKILL in the middle of the upgrade where it is told to.

A program of its own: ``python -m tests.pool.store.upgrading DATABASE [MOMENT]``.  Moments are counted from 0: before each statement
that changes something, before the transaction's end, and after it.  Without a MOMENT it begins when a line comes, and lives.  A
database that cannot be used is one sentence and exit status 1.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from gpukernel.common.errors import PoolError
from gpukernel.pool.store.database import open_database
from gpukernel.pool.store.store import Store


def _dying(moment: int) -> Callable[..., None]:
    """Have this process killed at that moment; return what counts one."""
    moments = itertools.count()

    def passes(*_: Any) -> None:
        if next(moments) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def executes(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split()[0].upper() in ("ALTER", "CREATE", "DELETE", "DROP", "INSERT", "UPDATE"):
            passes()

    sa.event.listen(sa.Engine, "before_cursor_execute", executes)
    sa.event.listen(sa.Engine, "commit", passes)
    return passes


def main(url: str, moment: int | None) -> None:
    """Open the database, whole or until the moment of death."""
    if moment is not None:
        passes = _dying(moment)
        open_database(url)
        passes()
        return
    print("here", flush=True)
    sys.stdin.readline()
    try:
        Store(url).close()
    except PoolError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else None)
