"""Pictures of the console as figures."""

from __future__ import annotations

from gpukernel.common.model import Device, Holder, Lease, Slice
from hub_spawner.console.drawing import cut_devices

GIB = 2**30


def lease(name: str, uuid: str, device_name: str = "Tesla V100") -> Lease:
    piece = Slice("gpu1/0", "gpu1", 0, device_name, 32 * GIB, 8 * GIB, uuid=uuid)
    return Lease(name, name, Holder("anna", course="ml101"), (piece,), "live", 0.0, 0.0, 60.0, 1)


def device(uuid: str, name: str = "Tesla V100", trouble: str = "") -> Device:
    return Device("gpu1/0", "gpu1", 0, name, 32 * GIB, available=not trouble, trouble=trouble, uuid=uuid)


def test_a_device_that_was_taken_out_is_not_drawn_with_the_slices_of_the_one_in_its_place() -> None:
    gone, there = device("GPU-a", trouble="its server has it no more"), device("GPU-b")
    old, new = lease("old", "GPU-a"), lease("new", "GPU-b")
    cuts = cut_devices([gone, there], [old, new])
    assert [[part.lease for part in cut.parts] for cut in cuts] == [["old"], ["new"]]
    # Where nobody tells UUIDs, the model says it, and else that one of them works.
    cuts = cut_devices([device("", "Tesla T4", "its server has it no more"), device("")], [lease("new", "")])
    assert [len(cut.parts) for cut in cuts] == [0, 1]
    cuts = cut_devices([device("", trouble="its server has it no more"), device("")], [lease("new", "")])
    assert [len(cut.parts) for cut in cuts] == [0, 1]
    assert [len(cut.parts) for cut in cut_devices([there], [lease("elsewhere", "")])] == [1]
