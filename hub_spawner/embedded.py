"""``python -m hub_spawner.embedded``: a pool and an agent that a Hub runs as its own service, on the Hub's machine.

A Hub that is killed leaves it running, and the next one starts it a second time: that one waits until it is needed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from pathlib import Path

__all__ = ["main"]


def _is_running(state: Path) -> bool:
    try:
        descriptor = os.open(state / "pool.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def main() -> None:
    """Become ``gpukernel up`` as soon as no pool runs on the state directory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--state", type=Path, required=True, help="the pool's state directory")
    parser.add_argument("--simulate", default="", help="as of gpukernel up")
    parser.add_argument("--hub-tokens", action="store_true", help="take tokens of the Hub that runs this")
    arguments = parser.parse_args()
    while _is_running(arguments.state):
        time.sleep(1)
    command = [
        sys.executable,
        "-P",
        "-m",
        "gpukernel.cli",
        "up",
        "--state",
        str(arguments.state),
        "--everybody",
    ]
    if arguments.simulate:
        command += ["--simulate", arguments.simulate]
    if arguments.hub_tokens:
        command += ["--hub-api", os.environ["JUPYTERHUB_API_URL"]]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
