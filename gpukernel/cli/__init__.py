"""The command ``gpukernel``.

Each command lives in a module of its own, imported when it is run: ``--help`` and ``run`` start fast.
"""

from __future__ import annotations

import sys

from gpukernel.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command ``gpukernel``."""
    from gpukernel.cli.output import Problem, complain

    try:
        app()
    except Problem as problem:
        complain(str(problem))
        sys.exit(problem.status)
