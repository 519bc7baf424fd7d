"""The table of the remoted calls, ``codegen/calls.txt``: what it says is understood, or an error that names it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

CODEGEN = Path(__file__).parents[2] / "gpukernel" / "native" / "codegen"


@pytest.fixture(scope="module")
def calls() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CODEGEN)
        return importlib.import_module("calls")


@pytest.fixture(scope="module")
def prototypes(calls: ModuleType) -> dict[str, object]:
    from cuda_h import Parameter, Prototype

    parameters = (Parameter("CUdeviceptr*", "dptr"), Parameter("size_t", "bytesize"))
    return {"cuMemAlloc_v2": Prototype("cuMemAlloc_v2", parameters)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("driver cuMemAlloc_v2 sync handwriten dptr:out", ["calls.txt:1", "cuMemAlloc_v2", "'handwriten'"]),
        ("\ndriver cuMemAlloc_v2 sync ! dptr:out", ["calls.txt:2", "'!'", "handwritten"]),
        ("driver cuMemAlloc_v2 sync waits waits dptr:out", ["'waits'", "twice"]),
        ("driver cuMemAlloc_v2 global dptr:out", ["sync or async", "'global'"]),
        ("driver cuMemAlloc_v2", ["cuMemAlloc_v2", "sync or async", "left out"]),
        ("driver cuMemAlloc_v2 sync dptr:new", ["unknown role 'new'", "'dptr'", "new-handle"]),
        ("driver cuMemAlloc_v2 async dptr:out", ["async", "'dptr'", "'out'"]),
        ("driver cuMemAlloc_v2 sync", ["the pointer dptr needs a role"]),
        ("driver cuMemAlloc_v2 sync dptr:out pitch:out", ["cuMemAlloc_v2 has no parameter pitch"]),
        ("driver cuMemAlloc_v2 sync dptr:out bytesize:in", ["bytesize is no pointer"]),
        ("driver cuMemAlloc_v2 sync dptr:optional-in", ["dptr is optional-in", "handwritten"]),
        ("driver cuMemAllocate sync", ["cuMemAllocate", "cuda.h declares no such function"]),
        ("lookup cuMemAllocate", ["cuda.h declares no cuMemAllocate"]),
        ("custom launch async quick", ["launch", "unknown flag 'quick'", "question"]),
        ("custom launch async limit=LARGE", ["launch", "unknown limit 'LARGE'"]),
        (
            "custom launch async\n    request size:u16",
            ["calls.txt:2", "launch", "unknown type 'u16'", "'size'"],
        ),
        ("custom launch async\n    request size:u32:maybe", ["unknown presence 'maybe'", "'size'"]),
        ("custom launch async\n    request data:bytes size:u32", ["'size' follows 'data'"]),
        ("custom launch async\n    request size:u32 size:u32", ["two fields 'size'"]),
        ("custom launch async\n    answer size:u32", ["launch is async and has no answer"]),
        ("custom launch async\n    layout size:u32", ["calls.txt:2", "unknown clause 'layout'"]),
        ("custom a sync\ncustom a sync", ["a stands there twice"]),
        ("call launch async", ["calls.txt:1", "unknown keyword 'call'"]),
        ("    request size:u32", ["calls.txt:1", "continues nothing"]),
    ],
)
def test_what_the_table_cannot_mean_is_an_error_that_names_it(
    calls: ModuleType, prototypes: dict[str, object], text: str, words: list[str]
) -> None:
    with pytest.raises(calls.TableError) as refused:
        calls.read_table(text, prototypes)
    for word in words:
        assert word in str(refused.value)


def test_the_numbers_on_the_wire_are_those_of_version_4(calls: ModuleType) -> None:
    table = calls.read_table()
    assert [call.name for call in table.custom] == [
        "device",
        "load_image",
        "load_library",
        "kernel_layout",
        "launch",
        "copy_to_device",
        "copy_to_host",
        "link_create",
        "link_add",
        "link_complete",
        "pointer_attribute",
        "best_block_size",
        "share_memory",
        "introduce",
        "usage",
        "functions",
        "reset",
        "copy_pitched",
        "pitched_to_device",
        "pitched_to_host",
        "attend",
        "virtual_memory",
        "host_function",
        "next_host_function",
        "host_function_done",
        "cluster_occupancy",
        "memory_operations",
        "name_memory",
        "find_memory",
        "name_event",
        "open_event",
        "tensor_map",
        "tensor_map_address",
        "plain_conditions",
        "library_call",
        "library_ask",
        "managed_variable",
        "keep_block",
        "take_block",
        "name_physical",
        "open_physical",
        "set_border_color",
        "border_color",
        "kernels",
        "profile",
        "launch_in_range",
        "settle_copies",
        "report",
    ]
    assert table.number_of("device") == 16
    assert table.number_of("usage") == 30
    assert table.number_of("cuMemAlloc_v2") == 64
    assert table.number_of("cuSurfRefSetArray") == 171
