"""The command ``gpukernel``.

`app` has the commands with their options, `showing` those that only look.  Each command lives in a module of its own, imported when it
is run: ``--help`` and ``run`` start fast.  `terminal` is the room for what has to do with the terminal and not with pools.  Only `services`
and `pool` load the server.  `hub_spawner.demo` uses `demo`; nobody else imports from here.
"""

from __future__ import annotations

import os
import signal
import threading

if (
    os.getpid() == 1
    and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    and threading.current_thread() is threading.main_thread()  # no other may set a handler
):
    # The kernel drops signals without a handler that are for a container's first process (pid_namespaces(7)): one that starts, or waits
    # for its pool, would not hear that its pod is to end.  Commands that end in a better way have handlers of their own, later.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

from gpukernel.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command ``gpukernel``."""
    from gpukernel.cli.terminal import usage

    usage.run(app)
