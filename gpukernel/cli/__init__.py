"""The command ``gpukernel``.

`app` has the commands with their options, `showing` those that only look.  Each command lives in a module of its own, imported when it
is run: ``--help`` and ``run`` start fast.  `terminal` is the room for what has to do with the terminal and not with pools.  Only `services`
and `pool` load the server.  `hub_spawner.demo` uses `demo`; nobody else imports from here.
"""

from __future__ import annotations

from gpukernel.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command ``gpukernel``."""
    from gpukernel.cli.terminal import usage

    usage.run(app)
