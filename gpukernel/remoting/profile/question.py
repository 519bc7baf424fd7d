"""The questions to a slice's workers about its kernels.  Whoever holds the lease's secret may ask them, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpukernel.remoting.lease_file import DIRECT_ENDPOINT
from gpukernel.remoting.profile.figures import KernelCount, KernelTier, LineShare, ProfiledKernels
from gpukernel.remoting.worker_query import SECONDS, WorkerQuery, WorkerSilent

__all__ = ["NotCounted", "begin_profile", "end_profile", "kernels_of", "read_profile"]

NOT_SUPPORTED = 801  # CUDA_ERROR_NOT_SUPPORTED
READ, BEGIN, END = range(3)  # `Profiling` of native/common/kernel_table.h

REAL = (
    "Only simulated devices know what their kernels do; this slice is on a real one, whose kernels “ncu” and “nsys” of NVIDIA profile "
    "where you are allowed to."
)
DIRECT = "In direct mode no worker of gpukernel runs the kernels, so nobody can say what they do."

Devices = Sequence[Sequence[str]]
"""Of each device of a slice the endpoints of its worker."""


class NotCounted(Exception):
    """An error: nobody counts on such devices; the text is a sentence."""


def _ask(endpoints: Sequence[str], secret: str, call: str, body: bytes = b"") -> dict[str, Any]:
    if any(endpoint.startswith(DIRECT_ENDPOINT) for endpoint in endpoints):
        raise NotCounted(DIRECT)
    with WorkerQuery(endpoints, secret, SECONDS) as query:
        result, values = query.ask(call, body)
    if result == NOT_SUPPORTED:
        raise NotCounted(REAL)
    if result or values is None:
        raise WorkerSilent(
            f"the worker of this slice answers the question about its kernels with error {result}"
        )
    return values


def kernels_of(devices: Devices, secret: str) -> list[KernelTier]:
    """Return each kernel of a slice and the tier that runs it, those that took longest first.

    Raises
    ------
    NotCounted
        The devices are real ones, or in direct mode.
    WorkerSilent
        A worker does not answer.
    """
    found = [
        KernelTier(
            device=number,
            name=one["name"],
            compiled=bool(one["compiled"]),
            reason=one["reason"],
            launches=one["launches"],
            compiled_launches=one["compiled_launches"],
            failed=one["failed"],
            seconds=one["seconds"],
            compile_seconds=one["compile_seconds"],
        )
        for number, endpoints in enumerate(devices)
        for one in _ask(endpoints, secret, "kernels")["kernels"]
    ]
    return sorted(found, key=lambda one: -one.seconds)


def begin_profile(devices: Devices, secret: str) -> None:
    """Have the kernels of a slice counted from now on, and forget what was counted before; raises as `kernels_of` does."""
    for endpoints in devices:
        _ask(endpoints, secret, "profile", bytes([BEGIN]))


def end_profile(devices: Devices, secret: str) -> ProfiledKernels:
    """Return what was counted, after which kernels run as ever; raises as `kernels_of` does."""
    return _profile(devices, secret, END)


def read_profile(devices: Devices, secret: str) -> ProfiledKernels:
    """Return what was counted so far; raises as `kernels_of` does."""
    return _profile(devices, secret, READ)


def _profile(devices: Devices, secret: str, action: int) -> ProfiledKernels:
    kernels: list[KernelCount] = []
    others = 0
    for number, endpoints in enumerate(devices):
        answer = _ask(endpoints, secret, "profile", bytes([action]))
        kernels += [_count(number, one) for one in answer["profiles"]]
        others += answer["others"]
    return ProfiledKernels(tuple(sorted(kernels, key=lambda one: -one.seconds)), others)


def _count(device: int, told: dict[str, Any]) -> KernelCount:
    given = dict(told)
    block = tuple(given.pop(f"block_{side}") for side in "xyz")
    lines = tuple(LineShare(one["file"], one["line"], one["instructions"]) for one in given.pop("lines"))
    return KernelCount(
        **given
        | {
            "device": device,
            "block": block,
            "lines": lines,
            "compiled": bool(given["compiled"]),
        }
    )
