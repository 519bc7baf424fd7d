"""The ceiling of a pod whose kernels lease inside of its claim: what they name when they ask the pool."""

from __future__ import annotations

import os
from pathlib import Path

from gpukernel.remoting.lease_file import LeaseFileError, read_lease_file

__all__ = ["CEILING_VARIABLE", "NO_CEILING", "CeilingError", "ceiling_here"]

CEILING_VARIABLE = "GPUKERNEL_CEILING_FILE"
"""The variable that names the lease file of the pod's claim."""

NO_CEILING = ("", "")


class CeilingError(Exception):
    """An error: the pod's claim cannot be used; the text is a sentence."""


def ceiling_here() -> tuple[str, str]:
    """Return id and secret of the ceiling of this pod, `NO_CEILING` where its kernels lease from the pool.

    Raises
    ------
    CeilingError
        The file cannot be read, or the claim is over.
    """
    place = os.environ.get(CEILING_VARIABLE, "")
    if not place:
        return NO_CEILING
    try:
        found = read_lease_file(Path(place))
    except LeaseFileError as error:
        raise CeilingError(f"This pod's claim cannot be used: {error}.") from None
    if found.state != "live" or not (found.lease and found.secret):
        why = f" ({found.reason})" if found.reason else ""
        raise CeilingError(f"This pod's claim is over{why}; start the server again.")
    return found.lease, found.secret
