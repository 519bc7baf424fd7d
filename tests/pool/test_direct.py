"""Where direct mode is possible: pure functions."""

from __future__ import annotations

import pytest

from gpukernel.pool.direct import check_mode, choose, possible
from gpukernel.pool.errors import Refused
from gpukernel.pool.machine import machine_identity
from gpukernel.pool.messages import request_from, request_to
from gpukernel.pool.model import Device, SliceRequest

GIB = 2**30
HERE, THERE, FORBIDDEN = (Device(f"{s}/0", s, 0, "V100", 32 * GIB) for s in ("here", "there", "forbidden"))
DEVICES = [HERE, THERE, FORBIDDEN]
MACHINES = {"here": "m1", "there": "m2", "forbidden": ""}


def request(mode: str, machine: str = "m1", devices: int = 1) -> SliceRequest:
    return SliceRequest(share=0.5, devices=devices, mode=mode, machine=machine, user=1000)


def test_direct_mode_looks_on_the_programs_own_machine_only() -> None:
    assert possible(request("direct"), DEVICES, MACHINES) == [HERE]
    assert possible(request("remote"), DEVICES, MACHINES) == DEVICES
    assert possible(request("auto"), DEVICES, MACHINES) == DEVICES


@pytest.mark.parametrize("machine", ["m3", ""])  # an agent that forbids it tells no machine
def test_direct_mode_elsewhere_is_refused_with_what_to_do(machine: str) -> None:
    with pytest.raises(Refused, match="--direct, or use remote mode") as refusal:
        possible(request("direct", machine), DEVICES, MACHINES)
    assert refusal.value.code == "no_direct"


def test_auto_is_direct_where_that_has_room_and_else_remote() -> None:
    placed, direct = choose(request("auto"), DEVICES, (), MACHINES)
    assert direct
    assert placed is not None
    assert placed[0].device == HERE
    placed, direct = choose(request("auto"), DEVICES, ("here/0",), MACHINES)
    assert not direct
    assert placed is not None
    assert choose(request("direct"), [HERE], ("here/0",), MACHINES) == (None, False)
    placed, direct = choose(request("auto", devices=2), DEVICES, (), MACHINES)
    assert not direct  # one machine does not have two
    assert placed is not None
    assert len(placed) == 2


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(Refused, match="remote, direct, auto"):
        check_mode(request("fast"))


def test_requests_travel_with_their_mode_and_older_ones_are_remote() -> None:
    assert request_from(request_to(request("direct"))) == request("direct")
    message = request_to(SliceRequest(share=0.5))
    message.mode = ""
    assert request_from(message).mode == "remote"


def test_a_machine_is_itself() -> None:
    assert machine_identity() == machine_identity()
    assert len(machine_identity()) in (0, 32)
