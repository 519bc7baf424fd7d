#!/usr/bin/env python3
"""The hook that container runtimes call (OCI runtime specification, "POSIX-platform Hooks"): ``create MODEL SHARE`` and ``remove``.

It imports nothing but the standard library, since every container's start waits for it.  The state of the container comes on standard
input.  ``create`` starts the container's keeper (`gpukernel.engines.containers.keeper`) and waits for its word: the lease file is
there, or a sentence why not, which the runtime shows.  ``remove`` waits until the keeper has given the slice back.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time

KEEPER = "gpukernel.engines.containers.keeper"
LONGEST_GOODBYE = 10.0


def lock_of(container: str) -> str:
    """Return the file that a container's keeper locks for as long as it holds the slice."""
    folder = os.environ.get("GPUKERNEL_CONTAINERS", "/run/gpukernel-containers")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, hashlib.sha256(container.encode()).hexdigest()[:32])


def create(state: str, words: list[str]) -> int:
    """Start the keeper; return 0 when the slice is there."""
    container = json.loads(state)
    lock = os.open(lock_of(container["id"]), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    process = os.pidfd_open(container["pid"])
    heard, said = os.pipe()
    keeper = subprocess.Popen(
        [
            sys.executable,
            "-P" if sys.version_info >= (3, 11) else "-s",
            "-m",
            KEEPER,
            *words,
            f"{said}",
            f"{process}",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        pass_fds=(said, process, lock),
    )
    assert keeper.stdin is not None
    with keeper.stdin:
        keeper.stdin.write(state.encode())
    os.close(said)
    with open(heard, encoding="utf-8") as pipe:
        word = pipe.read().strip()
    if word == "here":
        return 0
    print(f"gpukernel: {word or 'the keeper of the slice ended without a word.'}", file=sys.stderr)
    return 1


def remove(state: str) -> int:
    """Wait until the keeper is gone; it ends by itself with the container's first process."""
    path = lock_of(json.loads(state)["id"])
    end = time.monotonic() + LONGEST_GOODBYE
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    while time.monotonic() < end:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.01)
    os.unlink(path)
    return 0


def main(words: list[str]) -> int:
    """Carry out one call."""
    state = sys.stdin.read()
    if len(words) == 3 and words[0] == "create":
        return create(state, words[1:])
    if words == ["remove"]:
        return remove(state)
    print("gpukernel: a hook is called with “create MODEL SHARE” or “remove”.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
