"""``resize``: a slice made larger or smaller, and the size and place that commands ask for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpukernel.cli.tables import ask_pool
from gpukernel.cli.terminal.output import NOT_THERE, USAGE, Problem
from gpukernel.client.pool import PoolClient
from gpukernel.common.model import PRIORITIES, Lease, SliceRequest
from gpukernel.remoting.lease_file import LeaseFileError, lease_file_path, read_lease_file

__all__ = ["conditions", "find_lease", "resize", "wanted_slice"]

MIB = 2**20


_CONDITION = re.compile(r"\s*(\w+)\s*=\s*(\S+)\s*")


def conditions(text: str) -> dict[str, str]:
    """Return the conditions of ``--filter``, such as ``model=V100 and server=gpu1``; a `Problem` where it is not understood.

    ``uuid`` and ``device`` both name a device, and are found as ``device``.
    """
    found: dict[str, str] = {}
    for part in re.split(r"\s+and\s+", text) if text.strip() else ():
        match = _CONDITION.fullmatch(part)
        name = "device" if match is not None and match[1] == "uuid" else match and match[1]
        if match is None or name not in ("model", "server", "device") or name in found:
            raise Problem(
                f"“{part[:40]}” is no filter; write model=NAME, server=NAME, device=SERVER/NUMBER or uuid=GPU-…, "
                "each once, with “and” between.",
                USAGE,
            )
        if match[1] == "uuid" and not match[2].lower().startswith(("gpu-", "mig-")):
            raise Problem(f"“{match[2][:40]}” is no UUID of a device; it begins with GPU-.", USAGE)
        if match[1] == "device" and not re.fullmatch(r".+/\S+", match[2]):
            raise Problem(
                f"“device={match[2][:40]}” is no filter; name the device as “gpukernel list-gpus” does, such as device=gpu1/0.",
                USAGE,
            )
        found[name] = match[2]
    return found


def wanted_slice(
    share: float | None,
    memory_mib: int | None,
    devices: int = 1,
    model: str = "",
    filter: str = "",
    priority: str = "interactive",
) -> SliceRequest:
    """Return the request of ``-p``, ``-m``, ``-n``, ``--model``, ``--filter`` and ``--class``; a `Problem` says what is wrong with them."""
    if (share is None) == (memory_mib is None):
        raise Problem("Say how large the slice is: -p SHARE (0.05 is 5 % of a device) or -m MIB.", USAGE)
    if memory_mib is not None and not 0 < memory_mib < 2**40:
        raise Problem(f"A slice of {memory_mib} MiB is not possible; it has at least 1 MiB.", USAGE)
    if devices < 1:
        raise Problem(f"{devices} devices are not possible; ask for at least 1.", USAGE)
    if share == 0:  # which means "not given" in messages
        raise Problem("A share of 0.0 is not possible; it lies above 0 and up to 1.", USAGE)
    if priority not in PRIORITIES:
        known = ", ".join(PRIORITIES)
        raise Problem(f"“{priority[:20]}” is no priority class; it is one of {known}.", USAGE)
    asked = conditions(filter)
    if model and "model" in asked:
        raise Problem("Say the model once: with --model, or in --filter.", USAGE)
    return SliceRequest(
        share,
        None if memory_mib is None else memory_mib * MIB,
        devices,
        model or asked.get("model", ""),
        server=asked.get("server", ""),
        device=asked.get("device", ""),
        priority=priority,
    )


_WHICH = "Say which lease: its beginning as “gpukernel leases” shows it."


def _of_this_slice() -> str:
    path = lease_file_path(os.environ)
    if not path:
        raise Problem(_WHICH, USAGE)
    try:
        lease = read_lease_file(path).lease
    except LeaseFileError as error:
        raise Problem(str(error), NOT_THERE) from None
    if not lease:
        raise Problem("This kernel holds no slice now that could be resized; see “%gpu acquire”.", NOT_THERE)
    return lease


def find_lease(leases: list[Lease], beginning: str) -> Lease:
    """Return the one living lease whose id begins with `beginning`; a `Problem` where that is empty, or fits none or several."""
    if not beginning:
        raise Problem(_WHICH, USAGE)
    found = [lease for lease in leases if lease.id.startswith(beginning)]
    if not found:
        raise Problem(f"No lease of yours begins with “{beginning[:40]}”; see “gpukernel leases”.", NOT_THERE)
    if len(found) > 1:
        ids = ", ".join(lease.id for lease in found[:3]) + (", …" if len(found) > 3 else "")
        raise Problem(
            f"{len(found)} leases begin with “{beginning[:40]}” ({ids}); say more of the one.", USAGE
        )
    return found[0]


def resize(
    lease: str | None, share: float | None, memory_mib: int | None, pool: str | None, state: Path | None
) -> None:
    """Resize a lease and print its new size."""
    wanted = wanted_slice(share, memory_mib)
    beginning = _of_this_slice() if lease is None else lease

    async def work(client: PoolClient) -> Lease:
        leases, _ = await client.leases()
        return await client.resize(find_lease(leases, beginning).id, wanted)

    done = ask_pool(pool, state, work)
    sizes = " + ".join(f"{piece.memory_bytes // MIB} MiB of {piece.device_id}" for piece in done.slices)
    print(f"Lease {done.id[:8]} has {sizes} now.")
