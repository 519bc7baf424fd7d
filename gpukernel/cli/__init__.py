"""The command ``gpukernel``.

`app` has the commands with their options.  Each command lives in a module of its own, imported when it is run: ``--help`` and
``run`` start fast.  Only `services` and `pool` load the server.  `hub_spawner.demo` uses `demo`; nobody else imports from here.
"""

from __future__ import annotations

import sys

from gpukernel.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command ``gpukernel``."""
    from gpukernel.cli.output import Problem, complain
    from gpukernel.common.errors import PoolError

    try:
        app()
    except Problem as problem:
        complain(str(problem))
        sys.exit(problem.status)
    except PoolError as error:  # before anything was asked: an account without a home, for example
        complain(str(error))
        sys.exit(1)
