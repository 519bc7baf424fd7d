"""``request``, ``client`` and ``release``: a lease that is held across several commands.

Its lease file lies in the user's state directory until it is released.  Between commands nobody renews the lease: it ends by itself
when it has not been used for the time that ``request --keep`` names.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import signal
import sys
from pathlib import Path

from gpukernel.cli.resize import wanted_slice
from gpukernel.cli.running import acquire, run_program
from gpukernel.cli.terminal.output import NOT_THERE, USAGE, Problem, complain, failure, seconds
from gpukernel.client.pool import PoolClient
from gpukernel.common.account import own_name, state_in_home
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import LeaseEnded, PoolError
from gpukernel.common.model import Holder, Lease
from gpukernel.remoting.environment import compilers_for, shim_environment, with_commands
from gpukernel.remoting.lease_file import write_lease_file

__all__ = ["client", "release", "request"]

LONGEST_KEEP = 3600.0
MIB = 2**20


def _folder() -> Path:
    """Return the folder in which this user's kept leases are noted; it is for this user only."""
    folder = state_in_home("gpukernel-held", "set HOME or XDG_STATE_HOME to where leases may be noted.")
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _held(beginning: str | None) -> Path:
    """Return the one lease file that is meant; without a beginning, the only one."""
    if beginning == "":  # a variable of a script that is not set, for example
        raise Problem("An empty LEASE names none; leave it out where you hold one only.", USAGE)
    found = sorted(path for path in _folder().glob("*.lease") if path.stem.startswith(beginning or ""))
    if not found:
        raise Problem(
            f"You hold no lease that begins with “{beginning[:40]}”."
            if beginning
            else "You hold no lease; ask for one with “gpukernel request -p 0.1”.",
            NOT_THERE,
        )
    if len(found) > 1:
        names = ", ".join(path.stem[:8] for path in found)
        several = f"several leases that begin with “{beginning[:40]}”" if beginning else "several leases"
        raise Problem(f"You hold {several} ({names}); say which one.", USAGE)
    return found[0]


def _in_one_loop(work: object) -> int:
    try:
        return int(asyncio.run(work))  # type: ignore[arg-type]
    except PoolError as error:
        raise failure(error) from None
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def request(
    devices: int,
    share: float | None,
    memory_mib: int | None,
    model: str,
    filter: str,
    course: str,
    wait: str,
    keep: str,
    pool: str | None,
    state: Path | None,
    priority: str = "interactive",
) -> None:
    """Acquire a lease, keep its file, and print its id."""
    wanted = wanted_slice(share, memory_mib, devices, model, filter, priority)
    patience, ttl = seconds(wait), seconds(keep)
    if not 10 <= ttl <= LONGEST_KEEP:
        raise Problem(f"A lease can be kept for 10 s to 1 h without being used, not for {keep[:20]}.", USAGE)
    holder = Holder(own_name(), platform.node(), course, "held for several commands")
    folder = _folder()

    async def work() -> int:
        async with PoolClient(resolve_address(pool, state)) as connection:
            lease = await acquire(connection, wanted, holder, patience, 0.0, ttl)
            try:
                write_lease_file(folder / f"{lease.id}.lease", lease)
            except OSError as error:
                await connection.release(lease.id, "its lease file could not be written")
                raise Problem(f"The lease file cannot be written: {error.strerror}.") from None
        sizes = " + ".join(f"{piece.memory_bytes // MIB} MiB of {piece.device_id}" for piece in lease.slices)
        print(lease.id)
        complain(
            f"You hold {sizes}; use it with “gpukernel client -- CMD”, give it back with “gpukernel release”."
        )
        return 0

    sys.exit(_in_one_loop(work()))


class _Over(Problem):
    """A problem: the lease has ended."""


async def _renewed(connection: PoolClient, lease_id: str) -> Lease:
    try:
        return await connection.renew(lease_id)
    except LeaseEnded as error:
        raise _Over(f"This lease is over: {error}.", NOT_THERE) from None


def client(command: list[str], beginning: str | None, pool: str | None, state: Path | None) -> None:
    """Run a program on a kept lease, and end this process with the program's status."""
    path = _held(beginning)

    async def work() -> int:
        async with PoolClient(resolve_address(pool, state)) as connection:
            lease = await _renewed(connection, path.stem)
            async with connection.keep_alive(lease):
                environment = shim_environment(path, compilers_for(lease, with_commands(os.environ)))
                status = await run_program(command, environment, lambda: connection.interrupt(lease.id))
            await _renewed(connection, path.stem)  # its time begins again when the program ends
            return status

    try:
        sys.exit(_in_one_loop(work()))
    except Problem as problem:
        if isinstance(problem, _Over):
            path.unlink(missing_ok=True)
        raise Problem(f"{problem} It was to run “{shlex.join(command)[:80]}”.", problem.status) from None


def release(beginning: str | None, everything: bool, pool: str | None, state: Path | None) -> None:
    """Give kept leases back."""
    paths = sorted(_folder().glob("*.lease")) if everything else [_held(beginning)]

    async def work() -> int:
        async with PoolClient(resolve_address(pool, state)) as connection:
            for path in paths:
                try:
                    await connection.release(path.stem, "released by its holder")
                    print(f"Lease {path.stem[:8]} is given back.")
                except LeaseEnded:
                    print(f"Lease {path.stem[:8]} was over already.")
                path.unlink(missing_ok=True)
        return 0

    sys.exit(_in_one_loop(work()))
