"""Instructions on matrices give what NumPy and exact fractions give when they are compiled, too: the interpreter's tests, once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.native.simgpu_compiler.conftest import Tiers
from tests.native.simgpu_exec.conftest import Device
from tests.native.simgpu_exec.test_matrix import (  # noqa: F401 - they are run here with this file's device
    test_accumulators_of_half_precision_are_rounded_once,
    test_double_precision_is_fused_and_rounded_as_it_says,
    test_integers_end_at_the_largest_or_wrap_around,
    test_lanes_that_come_later_are_waited_for,
    test_products_of_integers_are_exact,
    test_registers_may_be_in_several_fragments,
    test_single_bits_are_counted,
    test_sums_are_fused_in_the_order_of_the_depth,
    test_volta_s_quads_multiply_four_times,
)
from tests.native.simgpu_exec.test_matrix_memory import (  # noqa: F401
    test_a_block_is_transposed_between_registers,
    test_rows_are_loaded_where_each_lane_says,
    test_rows_are_stored_where_each_lane_says,
    test_wmma_multiplies_matrices_in_memory,
    test_wmma_of_parts_of_bytes,
    test_wmma_reads_and_writes_shared_memory,
)


@pytest.fixture
def device(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Device]:
    """Return a device that compiles each kernel before it runs, and says so."""
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "compiled")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "1")
    yield tiers.device
    assert ": compiled: " in capfd.readouterr().err
