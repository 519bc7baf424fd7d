"""The status of a kernel is one record: through JSON, in events, and in the front end's language."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpukernel.common.model import Holder, Lease, Slice, Usage
from gpukernel.jupyter import kernel_status
from gpukernel.jupyter.kernel_lease import KernelLease
from gpukernel.jupyter.kernel_status import KernelStatus, devices_of, other_lease
from gpukernel.jupyter.server import event_schema
from gpukernel.remoting.usage import SliceUsage
from tools import typescript

MIB = 2**20


def piece(number: int) -> Slice:
    usage = Usage(memory_used_bytes=10 * MIB, gpu_seconds=1.5)
    return Slice(
        f"a/{number}", "a", number, "Tesla V100", 1000 * MIB, 100 * MIB, endpoints=("unix:x",), usage=usage
    )


LEASE = Lease(
    "l1",
    "k1",
    Holder("anna", "lab", "", "kernel k1"),
    (piece(0), piece(1)),
    "live",
    5.0,
    9.0,
    60.0,
    1,
    secret="deep",
    notice="soon over",
)
STATUS = KernelStatus(
    state="live", kernel_id="k1", what="2 × V100 × 0.1", lease_id="l1", created=5.0
).with_devices(devices_of(LEASE))


def test_json_carries_every_field() -> None:
    assert KernelStatus.from_json(json.loads(json.dumps(STATUS.as_json()))) == STATUS


def test_a_field_of_a_newer_version_is_left_out() -> None:
    assert KernelStatus.from_json({**STATUS.as_json(), "mood": "good"}) == STATUS


def test_what_the_previous_version_sends_is_no_status() -> None:
    with pytest.raises(ValueError, match="no status of a kernel"):
        KernelStatus.from_json({"key": "k1", "state": "live", "what": "V100 × 0.02", "lease": None})


def test_the_sums_are_those_of_all_devices() -> None:
    assert (STATUS.device, STATUS.device_name) == ("a/0, a/1", "Tesla V100")
    assert (STATUS.device_memory_bytes, STATUS.memory_bytes, STATUS.used_bytes) == (
        2000 * MIB,
        200 * MIB,
        20 * MIB,
    )
    assert (STATUS.gpu_seconds, STATUS.gpu_share) == (3.0, None)


def test_what_a_worker_says_goes_before_what_the_pool_said() -> None:
    now = STATUS.with_use([SliceUsage(150 * MIB, 30 * MIB, 4.0, 0.5, 1, 0, 0)])
    assert [one.used_bytes for one in now.devices] == [30 * MIB, 10 * MIB]
    assert (now.memory_bytes, now.used_bytes, now.gpu_seconds, now.gpu_share) == (
        250 * MIB,
        40 * MIB,
        5.5,
        0.5,
    )


def test_no_secret_is_in_a_status() -> None:
    lease = KernelLease.__new__(KernelLease)
    lease.key, lease.state, lease.sentence = "k1", "live", ""
    lease.request, lease.queued, lease.lease, lease.trouble, lease.needs_restart = (
        None,
        None,
        LEASE,
        "",
        False,
    )
    assert replace(lease.status(), what="") == replace(STATUS, what="", notice="soon over")
    assert "deep" not in json.dumps([lease.status().as_json(), other_lease(LEASE).__dict__], default=vars)


def test_an_event_has_the_fields_of_its_schema() -> None:
    assert set(STATUS.event()) == set(event_schema()["properties"]) == set(kernel_status.EVENT_FIELDS)


def test_the_interfaces_of_the_front_end_are_those_of_the_records() -> None:
    assert typescript.TARGET.read_text(encoding="utf-8") == typescript.text()


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (float | None, "number | null"),
        (tuple[str, ...], "string[]"),
        (kernel_status.KernelState, "'none' | 'waiting' | 'live' | 'ended'"),
        (tuple[KernelStatus, ...], "IKernelStatus[]"),
    ],
)
def test_a_type_of_python_has_one_of_typescript(kind: object, written: str) -> None:
    assert typescript.typescript_type(kind) == written


def test_a_type_without_one_is_refused() -> None:
    with pytest.raises(TypeError, match="no type in TypeScript"):
        typescript.typescript_type(set[int])
