"""DeviceClasses: by which name pods and claims ask for devices, and how much of them one claim may have."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpukernel.engines.kubernetes.names import DRIVER
from gpukernel.engines.kubernetes.quantities import bytes_of

__all__ = ["COUNT", "LIMITED", "MEMORY", "TOTAL", "ClassLimits", "class_manifests", "class_name"]

LIMITED = f"{DRIVER}/limited"
"""Label of classes that the admission policies look at."""
COUNT, MEMORY, TOTAL = f"{DRIVER}/max-count", f"{DRIVER}/max-memory", f"{DRIVER}/max-total-memory"
"""Annotations of these: devices of one claim or pod, memory of each device, and memory of all of a claim's devices."""


@dataclass(frozen=True)
class ClassLimits:
    """The bounds of one claim: `count` devices, `memory` of each and `total` memory, as quantities; `ValueError` where one is none."""

    count: int = 1
    memory: str = "4Gi"
    total: str = "4Gi"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"A claim has one device at least, not {self.count}.")
        if bytes_of(self.memory) > bytes_of(self.total):
            raise ValueError(
                f"All of a claim's devices cannot have less ({self.total}) than one ({self.memory})."
            )


def class_name(model: str) -> str:
    """Return the name of a model's class, such as ``v100.gpukernel.io``."""
    word = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "gpu"
    return f"{word}.{DRIVER}"


def _manifest(name: str, selectors: list[str], limits: ClassLimits, resource: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": one}} for one in selectors]}
    if resource:
        spec["extendedResourceName"] = resource
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {
            "name": name,
            "labels": {LIMITED: "true"},
            "annotations": {COUNT: str(limits.count), MEMORY: limits.memory, TOTAL: limits.total},
        },
        "spec": spec,
    }


def class_manifests(models: Iterable[tuple[str, str]], limits: ClassLimits) -> list[dict[str, Any]]:
    """Return a class for all devices, and one for each model.

    Parameters
    ----------
    models
        The short name of each model, such as ``v100``, and the whole one, which devices have as their attribute ``model``.  Several
        may have one short name: V100 of 16 and of 32 GiB are of one class.
    """
    own = f'device.driver == "{DRIVER}"'
    made = [_manifest(DRIVER, [own], limits)]
    named: dict[str, set[str]] = defaultdict(set)
    for short, model in models:
        named[class_name(short)].add(model)
    for name, whole in sorted(named.items()):
        of_model = " || ".join(
            f'device.attributes["{DRIVER}"].model == {json.dumps(one, ensure_ascii=False)}'
            for one in sorted(whole)
        )
        resource = f"{DRIVER}/{name.removesuffix(f'.{DRIVER}')}-slice"
        made.append(_manifest(name, [own, of_model], limits, resource))
    return made
