"""Placements by engines: checked, and nothing chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpukernel.common.errors import Refused
from gpukernel.common.model import Device, Holder, Lease, PlacedOn, Slice
from gpukernel.pool.domain.engine_placement import (
    BEFORE_SECONDS,
    KEY_CHARACTERS,
    MOST_PLACEMENTS,
    EngineDevice,
    check_decider,
    check_key,
    check_placed,
    counts_from,
    differences,
    place,
)

MIB = 2**20
GIB = 2**30
A, B = "GPU-aaaaaaaa", "GPU-bbbbbbbb"
ANNA = Holder("anna")


def device(uuid: str, promised: int = 0, decider: str = "slurm", server: str = "s") -> Device:
    index = 0 if uuid == A else 1
    return Device(
        f"{server}/{uuid}",
        server,
        index,
        "Tesla V100",
        32 * GIB,
        promised,
        available=False,
        uuid=uuid,
        decided_by=decider,
    )


def test_what_is_asked_for_is_what_is_placed_in_the_same_order() -> None:
    known = [EngineDevice(device(A, 31 * GIB)), EngineDevice(device(B))]
    placed = place("slurm", [PlacedOn(B, 655 * MIB), PlacedOn(A, GIB)], known)
    assert [(one.device.uuid, one.memory_bytes) for one in placed] == [(B, 655 * MIB), (A, GIB)]


@pytest.mark.parametrize(
    ("known", "size", "code", "words"),
    [
        ([], GIB, "no_such_device", f"The pool has no device {A}"),
        (
            [EngineDevice(device(A, decider="pool"))],
            GIB,
            "not_decided",
            rf"s/0 \({A}\) is decided by the pool, not by slurm; .*delegate s/0 --to slurm",
        ),
        (
            [EngineDevice(device(A, decider="kubernetes"))],
            GIB,
            "not_decided",
            "is decided by kubernetes, not by",
        ),
        ([EngineDevice(device(A), trouble="drained")], GIB, "unavailable", "gets no new leases: drained"),
        ([EngineDevice(device(A))], 33 * GIB, "too_large", "33792 MiB do not fit on .* which has 32768 MiB"),
        (
            [EngineDevice(device(A, 31 * GIB))],
            2 * GIB,
            "full",
            r"has 1024 MiB free, not the 2048 MiB that are asked for\.$",
        ),
        (
            [EngineDevice(device(A, 32 * GIB), ending=GIB)],
            GIB,
            "full",
            "0 MiB free.*; 1024 MiB more are free once",
        ),
        (
            [EngineDevice(device(A, server="t")), EngineDevice(device(A, server="s"))],
            GIB,
            "ambiguous",
            "GPU servers s and t both offer",
        ),
    ],
)
def test_what_cannot_be_had_is_a_sentence_with_the_figures(
    known: Sequence[EngineDevice], size: int, code: str, words: str
) -> None:
    with pytest.raises(Refused, match=words) as refusal:
        place("slurm", [PlacedOn(A, size)], known)
    assert refusal.value.code == code


def test_of_two_servers_that_offer_a_device_the_one_that_works_has_it() -> None:
    away = EngineDevice(device(A, server="a"), trouble="away")
    placed = place("slurm", [PlacedOn(A, GIB)], [away, EngineDevice(device(A, server="s"))])
    assert [one.device.server for one in placed] == ["s"]


@pytest.mark.parametrize(
    "key", ["1", "slurm-123", "c1:77.0", f"{'0' * 8}-1/share_2@x=y+z", "k" * KEY_CHARACTERS]
)
def test_keys_of_engines(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize("key", ["", "-x", "a b", "a\n", "ä", "k" * (KEY_CHARACTERS + 1), "a;b", "\0"])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(Refused, match="is no key: it has 1 to 128 letters"):
        check_key(key)


@pytest.mark.parametrize(
    ("engine", "placed", "holder", "longest", "words"),
    [
        ("pool", [PlacedOn(A, GIB)], ANNA, 0, "“pool” is not one of kubernetes, slurm"),
        ("slurm", [], ANNA, 0, "has 1 to 64 devices, not 0"),
        ("slurm", [PlacedOn(f"GPU-{n}", GIB) for n in range(MOST_PLACEMENTS + 1)], ANNA, 0, "not 65"),
        ("slurm", [PlacedOn(A, GIB), PlacedOn(A, GIB)], ANNA, 0, "names each device once"),
        ("slurm", [PlacedOn(A, MIB - 1)], ANNA, 0, "1048575 bytes of GPU-aaaaaaaa are not possible"),
        ("slurm", [PlacedOn(A, 2**63)], ANNA, 0, "are not possible"),
        ("slurm", [PlacedOn("", GIB)], ANNA, 0, "is no UUID"),
        ("slurm", [PlacedOn("x" * 65, GIB)], ANNA, 0, "is no UUID"),
        ("slurm", [PlacedOn(A, GIB)], Holder(""), 0, "needs the person"),
        ("slurm", [PlacedOn(A, GIB)], Holder("a\nb"), 0, "printable characters"),
        ("slurm", [PlacedOn(A, GIB)], Holder("a", course="x" * 257), 0, "at most 256"),
        ("slurm", [PlacedOn(A, GIB)], ANNA, 0.5, "at least 1 s"),
        ("slurm", [PlacedOn(A, GIB)], ANNA, float("nan"), "at least 1 s"),
    ],
)
def test_what_no_pool_could_place_is_refused(
    engine: str, placed: Sequence[PlacedOn], holder: Holder, longest: float, words: str
) -> None:
    with pytest.raises(Refused, match=words) as refusal:
        check_placed(engine, "k", placed, holder, longest)
    assert refusal.value.code == "invalid"


def test_there_are_three_deciders() -> None:
    for name in ("pool", "kubernetes", "slurm"):
        check_decider(name)
    with pytest.raises(Refused, match="“lsf” is not one of pool, kubernetes, slurm"):
        check_decider("lsf")


def test_another_content_of_a_key_is_told_by_its_differences() -> None:
    piece = Slice(f"s/{A}", "s", 0, "Tesla V100", 32 * GIB, GIB, uuid=A)
    lease = Lease("1", "k", Holder("anna", description="job 1"), (piece,), "live", 0, 0, 0, 1)
    same = [PlacedOn(A, GIB)]
    assert differences(lease, same, Holder("anna", description="job 1, again")) == ""
    assert differences(lease, same, Holder("ben")) == "it is for anna, not ben"
    assert differences(lease, same, replace(ANNA, course="ml")) == "it is for course none, not ml"
    assert differences(lease, [PlacedOn(A, 2 * GIB)], ANNA) == f"it has 1024 MiB of {A}, not 2048 MiB"
    assert (
        differences(lease, [PlacedOn(B, GIB)], ANNA)
        == f"it has 1024 MiB of {A}, not nothing; it has nothing of {B}, not 1024 MiB"
    )


@pytest.mark.parametrize(
    ("began", "taken", "since", "why"),
    [
        (0.0, 990.0, 1000.0, ""),
        (1000.0, 0.0, 1000.0, ""),
        (998.5, 0.0, 998.5, ""),
        (1000.0 - BEFORE_SECONDS, 0.0, 1000.0 - BEFORE_SECONDS, ""),
        (1003.25, 0.0, 1000.0, "that is 3.2 s in the future by the pool's clock"),
        (1.0, 0.0, 1000.0 - BEFORE_SECONDS, "that is 999 s ago, and at most 120 s count"),
        (998.5, 998.5, 998.5, ""),
        (998.5, 999.0, 999.0, "before, the key had another lease, or the engine not all of the devices"),
        # The wall clock was put back.
        (998.5, 1004.0, 1000.0, "before, the key had another lease, or the engine not all of the devices"),
    ],
)
def test_hours_count_from_when_the_engine_says_within_bounds(
    began: float, taken: float, since: float, why: str
) -> None:
    assert counts_from(began, 1000.0, taken) == (since, why)


@pytest.mark.parametrize("began", [-1.0, float("nan"), float("inf"), 1e11])
def test_what_is_no_time_is_refused(began: float) -> None:
    with pytest.raises(
        Refused, match="is no time at which something began; it is in seconds since the epoch"
    ) as no:
        check_placed("slurm", "job", [PlacedOn(A, GIB)], ANNA, 0, began=began)
    assert no.value.code == "invalid"
