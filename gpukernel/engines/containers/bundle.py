"""A container as its runtime describes it (OCI runtime specification, "State" and "Configuration")."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "LEASE_FILE",
    "LEASE_FOLDER",
    "Bundle",
    "BundleError",
    "read_bundle",
]

LEASE_FOLDER = Path("/run/gpukernel")
LEASE_FILE = LEASE_FOLDER / "lease"

MOST_BYTES = 8 << 20


class BundleError(RuntimeError):
    """An error: the runtime's description cannot be used; the text is a sentence."""


@dataclass(frozen=True)
class Bundle:
    """A container that is being made.

    Attributes
    ----------
    container
        The runtime's name of it.
    user, group
        Whom its program runs as, by this machine's numbers.
    """

    container: str
    user: int
    group: int


def _mapped(number: int, mappings: list[dict[str, int]]) -> int:
    """Return this machine's number of the account `number` of a container."""
    if not mappings:
        return number
    for one in mappings:
        if 0 <= (above := number - one["containerID"]) < one["size"]:
            return one["hostID"] + above
    raise BundleError(f"The container's program runs as {number}, which is no account of this machine.")


def read_bundle(state: dict[str, Any]) -> Bundle:
    """Return what the runtime's `state` and the configuration beside it say.

    Raises
    ------
    BundleError
        Something is missing there.
    """
    try:
        bundle = Path(state["bundle"])
        with (bundle / "config.json").open("rb") as file:
            configuration = json.loads(file.read(MOST_BYTES))
        user = configuration["process"]["user"]
        linux = configuration.get("linux", {})
        return Bundle(
            str(state["id"]),
            _mapped(int(user.get("uid", 0)), linux.get("uidMappings", [])),
            _mapped(int(user.get("gid", 0)), linux.get("gidMappings", [])),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BundleError(f"The runtime's words about the container cannot be read ({what}).") from None
