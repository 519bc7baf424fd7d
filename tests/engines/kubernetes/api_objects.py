"""Objects of the stand-in for Kubernetes' API server: their addresses, their checks, and how they are merged."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import kubernetes_validate

__all__ = [
    "KINDS",
    "Object",
    "Status",
    "at",
    "check",
    "check_claim",
    "device_key",
    "merged",
    "now",
    "place",
    "public",
]

Object = dict[str, Any]

VERSION = "1.34"
GROUP = "/apis/resource.k8s.io/v1"
# The address of each kind: its group, whether it is in namespaces.
KINDS = {
    "namespaces": ("/api/v1", "Namespace", False),
    "resourceclaims": (GROUP, "ResourceClaim", True),
    "resourceslices": (GROUP, "ResourceSlice", False),
    "deviceclasses": (GROUP, "DeviceClass", False),
    "pods": ("/api/v1", "Pod", True),
    "events": ("/api/v1", "Event", True),
    "daemonsets": ("/apis/apps/v1", "DaemonSet", True),
    "deployments": ("/apis/apps/v1", "Deployment", True),
}


class Status(Exception):
    """An error as the API answers it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    @property
    def object(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": str(self),
        }


def at(one: Object, path: str) -> Any:
    for word in path.split("."):
        one = one.get(word, {})
    return one


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def device_key(one: Object) -> tuple[str, str, str, str]:
    return one["driver"], one["pool"], one["device"], one.get("shareID", "")


def public(one: Object) -> Object:
    shown = copy.deepcopy(one)
    shown["metadata"].pop("x-owned", None)
    return shown


def check(one: Object) -> None:
    try:
        kubernetes_validate.validate(public(one), VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Status(422, "Invalid", str(error)[:500]) from None


def check_claim(one: Object) -> None:
    """Check what the schema cannot: a device's status stands only where the device is allocated, and deallocation takes it along."""
    status = one.get("status", {})
    results = {
        device_key(result) for result in status.get("allocation", {}).get("devices", {}).get("results", [])
    }
    for number, device in enumerate(status.get("devices", [])):
        if device_key(device) not in results:
            raise Status(
                422,
                "Invalid",
                f"status.devices[{number}]: must be an allocated device in the claim: {device_key(device)}",
            )


def merged(known: Any, patch: Any) -> Any:
    """Merge as RFC 7386 says."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = copy.deepcopy(known) if isinstance(known, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def place(path: str) -> tuple[str, str | None, str, str]:
    """Return the kind, the namespace, the name and the part that an address means."""
    for plural, (group, _, namespaced) in KINDS.items():
        if not path.startswith(f"{group}/"):
            continue
        words = path.removeprefix(f"{group}/").split("/")
        namespace = None
        if namespaced and words[0] == "namespaces" and len(words) > 2:
            namespace, words = words[1], words[2:]
        if words[0] == plural and not (plural == "namespaces" and words[2:3] and words[2] in KINDS):
            name, part = [*words[1:], "", ""][:2]
            return plural, namespace if namespaced else None, name, part
    raise Status(404, "NotFound", f"the server could not find the requested resource {path}")
