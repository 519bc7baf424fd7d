"""Allocations that cannot be carried out are errors that say why."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.resources.resource_v1 import ResourceClaim

from gpukernel.engines.kubernetes.allocations import AllocationError, allocation_of
from gpukernel.engines.kubernetes.names import DRIVER


def allocated(driver: str) -> Any:
    devices = {
        "results": [
            {"request": "gpu", "driver": DRIVER, "pool": "gpukernel", "device": "gpu-1", "shareID": "s"}
        ],
        "config": [{"source": "FromClaim", "opaque": {"driver": driver, "parameters": {"memory": "64Gi"}}}],
    }
    metadata = {"name": "one", "namespace": "ml101", "uid": "7a1c1f4e"}
    return ResourceClaim.from_dict(
        {"metadata": metadata, "spec": {}, "status": {"allocation": {"devices": devices}}}
    )


def test_parameters_for_this_driver_are_not_passed_over_in_silence() -> None:
    assert allocation_of(allocated("other.example.com")) is not None
    with pytest.raises(AllocationError, match=r"has parameters for .*, which knows none"):
        allocation_of(allocated(DRIVER))


def test_an_administrator_s_view_of_a_device_is_no_slice() -> None:
    claim = allocated("other.example.com")
    claim.status.allocation.devices.results[0].adminAccess = True
    assert allocation_of(claim) is None
