"""Names by which Kubernetes and the pool mean the same thing."""

from __future__ import annotations

import re

__all__ = [
    "CDI_KIND",
    "CEILING",
    "COURSE",
    "DRIVER",
    "INSIDE",
    "PERSON",
    "PERSONS_BY_CLAIM",
    "POOL",
    "attribute_text",
    "cdi_name",
    "device_name",
    "is_uid",
    "lease_key",
    "model_name",
    "uid_of",
]

DRIVER = "gpukernel.io"
POOL = "gpukernel"
"""The ResourceSlices' pool.  There is one: a device keeps its name in it on whatever server it is, so no claim on it is ever forgotten."""

CDI_KIND = f"{DRIVER}/claim"

COURSE = f"{DRIVER}/course"
"""Label of a namespace: the course of its leases."""
PERSON = f"{DRIVER}/person"
"""Label of a namespace, the person of its leases; annotation of a claim, where the namespace says `PERSONS_BY_CLAIM`."""
PERSONS_BY_CLAIM = f"{DRIVER}/persons"
"""Label of a namespace: ``by-claim`` lets claims say for whom they are, as JupyterHub's do."""

CEILING = f"{DRIVER}/kernels"
"""Annotation of a claim: ``lease-inside`` makes it a ceiling, inside of which the pod's kernels lease."""
INSIDE = "lease-inside"

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")


def is_uid(text: str) -> bool:
    """Return whether `text` can be the uid of an object, and is safe as part of a path."""
    return _UID.fullmatch(text) is not None


def lease_key(uid: str, share: str, cluster: str = "") -> str:
    """Return the pool's key of a claim's allocation: ``UID.SHARE``, of a named cluster ``CLUSTER/UID.SHARE``.

    Parameters
    ----------
    share
        The ``shareID`` of its first result.  A claim that is allocated again has other ones, so nobody who had its lease before knows
        the new one's secret.
    """
    own = f"{uid}.{share}" if share else uid
    return f"{cluster}/{own}" if cluster else own


def uid_of(key: str, cluster: str = "") -> str:
    """Return the claim's uid of a `lease_key` of this cluster; empty where it is another's."""
    before, _, own = key.rpartition("/")
    uid = own.partition(".")[0]
    return uid if before == cluster and is_uid(uid) else ""


def attribute_text(text: str) -> str:
    """Return as much of `text` as an attribute may have: 64 bytes.  An API server refuses a ResourceSlice for one that is longer."""
    return text.encode()[:64].decode(errors="ignore")


def model_name(device: str) -> str:
    """Return a device's model as ResourceSlices and selectors of classes have it."""
    return attribute_text(device.removesuffix("(simulated)").strip())


def device_name(uuid: str) -> str:
    """Return the name of a device in ResourceSlices, a DNS label: its UUID in small letters."""
    return re.sub(r"[^a-z0-9-]+", "-", uuid.lower()).strip("-")[:63].strip("-")


def cdi_name(uid: str, request: str) -> str:
    """Return the whole CDI name of a claim's request."""
    return f"{CDI_KIND}={uid}-{request}"
