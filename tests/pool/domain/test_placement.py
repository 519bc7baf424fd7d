"""Placement: pure functions of what is free."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukernel.common.errors import Refused
from gpukernel.common.model import Device, SliceRequest
from gpukernel.pool.domain.placement import MIB, best_fit, check_request, classes, matching, slice_bytes

V100 = 32 * 2**30


def device(name: str, promised: int = 0, memory: int = V100, available: bool = True) -> Device:
    return Device(name, "s", 0, f"Tesla V100 {name}", memory, promised, available=available)


def test_a_share_is_rounded_down_to_a_whole_mib_and_is_at_least_one() -> None:
    assert slice_bytes(SliceRequest(share=0.02), device("a")) == 655 * MIB
    assert slice_bytes(SliceRequest(share=1.0), device("a")) == V100
    assert slice_bytes(SliceRequest(share=1e-9), device("a")) == MIB


def test_fifty_slices_of_two_percent_fit() -> None:
    assert 50 * slice_bytes(SliceRequest(share=0.02), device("a")) <= V100


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SliceRequest(share=0.0), "above 0"),
        (SliceRequest(share=-1.0), "above 0"),
        (SliceRequest(share=math.nan), "above 0"),
        (SliceRequest(share=1.0000001), "up to 1"),
        (SliceRequest(share=math.inf), "up to 1"),
        (SliceRequest(), "exactly one"),
        (SliceRequest(share=0.1, memory_bytes=MIB), "exactly one"),
        (SliceRequest(memory_bytes=1000), "at least 1 MiB"),
        (SliceRequest(share=0.1, devices=0), "1 to 64"),
        (SliceRequest(share=0.1, devices=65), "1 to 64"),
        (SliceRequest(share=0.1, model="x" * 65536), "at most 256"),
    ],
)
def test_what_no_pool_could_give_is_refused_with_a_sentence(request_: SliceRequest, words: str) -> None:
    with pytest.raises(Refused, match=words) as refusal:
        check_request(request_)
    assert refusal.value.code == "invalid"


def test_a_model_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(Refused, match=r"no H100; it has Tesla V100 a\."):
        matching(SliceRequest(share=0.5, model="H100"), classes([device("a")]))


def test_more_than_the_largest_device_is_refused_with_the_figure() -> None:
    with pytest.raises(Refused, match="1000000000 MiB fit on no device; the largest has 32768 MiB"):
        matching(SliceRequest(memory_bytes=10**9 * MIB), classes([device("a")]))


def test_the_device_with_the_least_to_spare_is_taken() -> None:
    devices = [device("empty"), device("half", V100 // 2), device("full", V100)]
    placed = best_fit(SliceRequest(share=0.25), devices)
    assert placed is not None
    assert [p.device.id for p in placed] == ["half"]


def test_several_devices_are_distinct_or_nothing() -> None:
    devices = [device("a"), device("b", V100)]
    assert best_fit(SliceRequest(share=0.5, devices=2), devices) is None
    placed = best_fit(SliceRequest(share=0.5, devices=2), [device("a"), device("b")])
    assert placed is not None
    assert {p.device.id for p in placed} == {"a", "b"}


@given(st.lists(st.integers(0, V100), min_size=1, max_size=6), st.floats(1e-6, 1), st.integers(1, 4))
def test_what_is_placed_always_fits(promised: list[int], share: float, count: int) -> None:
    devices = [device(str(i), p) for i, p in enumerate(promised)]
    placed = best_fit(SliceRequest(share=share, devices=count), devices)
    for piece in placed or []:
        assert 0 < piece.memory_bytes <= piece.device.memory_bytes - piece.device.promised_bytes
