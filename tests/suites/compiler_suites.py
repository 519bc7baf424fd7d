"""Suites of what compiles its kernels itself: Triton's language tests, cuda.core's tests.  Both are in no wheel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.suites.git import checkout
from tests.suites.runner import Suite
from tests.suites.sources import TRITON, NotHere, Source, _kept, _nvidia, _pip, torch

# The release, and the commit of its repository whose tests are run: the newest that could be had when this was written.
_TRITON_COMMIT = "94b169a8aa39ce7809df68d5934d72b5039a13a6"
CUDA_CORE, _CUDA_CORE_COMMIT = "1.1.0", "8eb9dc2ba180394a763d40405be4cf8865b5f8eb"
CUDA_BINDINGS = "13.3.1"
PROGRAM_WHEELS, IREE = ("halide==21.0.0", "slangpy==0.43.1"), "3.13.0"

SAMPLE = 10
"""One case in so many of Triton's 13,000 or so, and the first of each test, take a quarter of an hour."""


def triton() -> Source:
    """Triton's release, and a torch of the CPU whose tensors lie in managed memory."""
    tests = checkout("triton-lang/triton", _TRITON_COMMIT, "python/test") / "python" / "test"
    with _kept(f"triton-{TRITON}") as (folder, fresh):
        site, allocator = torch(), folder / "managed_tensors.so"
        if fresh:
            _compile(Path(__file__).with_name("managed_tensors.cpp"), site / "torch", allocator)
    modules = tests / "unit" / "language"
    return Source(
        TRITON,
        modules,
        "tests.suites.triton_fixtures",
        {
            "PYTHONPATH": os.pathsep.join(map(str, (modules, tests, site))),  # they import each other
            "GPUKERNEL_SUITES_ALLOCATOR": str(allocator),
            "GPUKERNEL_SUITES_SAMPLE": str(SAMPLE),
            "TRITON_CACHE_DIR": str(folder / "cache"),
        },
    )


def cuda_core() -> Source:
    """cuda.core's release with the bindings of CUDA 13, and NVIDIA's compilers for them; tests that need a toolkit's headers skip."""
    tests = checkout("NVIDIA/cuda-python", _CUDA_CORE_COMMIT, "cuda_core", "cuda_python_test_helpers")
    with _kept(f"cuda-core-{CUDA_CORE}") as (folder, fresh):
        if fresh:
            compilers = [
                f"nvidia-{each}==13.*" for each in ("cuda-nvrtc", "nvjitlink", "cuda-runtime", "cuda-cccl")
            ]
            wheels = [f"cuda-core=={CUDA_CORE}", f"cuda-bindings=={CUDA_BINDINGS}", "cuda-pathfinder==1.9.0"]
            tools = ["pytest-rerunfailures==16.3", "cloudpickle==3.1.2"]
            _pip("install", "--no-deps", "--target", folder, *wheels, *compilers, *tools)
    return Source(
        CUDA_CORE,
        tests / "cuda_core" / "tests",
        "tests.suites.cuda_core_fixtures",
        {
            "PYTHONPATH": os.pathsep.join(
                map(str, (folder, tests / "cuda_python_test_helpers", tests / "cuda_core/tests"))
            ),
            "LD_LIBRARY_PATH": str(folder / "nvidia" / "cu13" / "lib"),
        },
    )


def programs() -> Source:
    """Halide, slangpy and IREE from PyPI, with NVRTC where slangpy looks for it."""
    with _kept("programs-of-compilers") as (folder, fresh):
        toolkit = folder / "toolkit"
        if fresh:
            tools = [f"iree-base-{each}=={IREE}" for each in ("compiler", "runtime")]
            _pip("install", "--target", folder / "site", *PROGRAM_WHEELS, *tools, "numpy<2.5")
            (toolkit / "lib64").mkdir(parents=True)
            for library in (_nvidia("cuda_nvrtc") / "lib").glob("libnvrtc*.so.*"):
                (toolkit / "lib64" / library.name).symlink_to(library)
            (toolkit / "lib64" / "libnvrtc.so").symlink_to("libnvrtc.so.12")
            (toolkit / "include").symlink_to(_nvidia("cuda_runtime") / "include")
    return Source(
        ", ".join([*PROGRAM_WHEELS, f"iree=={IREE}"]),
        Path(__file__).parent / "programs",
        "tests.suites.cuda_core_fixtures",
        {
            "PYTHONPATH": str(folder / "site"),
            "LD_LIBRARY_PATH": str(toolkit / "lib64"),
            "CUDA_PATH": str(toolkit),
        },
    )


def _compile(source: Path, torch: Path, library: Path) -> None:
    command = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{torch / 'include'}", str(source)]
    command += ["-o", str(library), f"-L{torch / 'lib'}", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"c++ {source.name}: {done.stderr.strip().splitlines()[:1]}")


_RUNTIME = (
    "cuda-bindings links NVIDIA's CUDA runtime in, which asks the driver for undocumented functions; Device.sync is one of "
    "the few functions that cuda.core has of it"
)
_CONDITIONAL = "the executable of a graph with conditional nodes takes no update from another graph"
_HOST_LAUNCH = "a graph that is launched from the device"
_SHARED = "events that processes share"
_NEWER = "the release is older than its tests, or not as they have it"
_MACHINE_CODE = "wants machine code: nvFatbin checks it, cuobjdump and nvdisasm show it, and here it is PTX"

_CORE_KNOWN = {
    **dict.fromkeys(
        (
            *(f"test_memory.test_buffer_{each}" for each in ("fill", "copy_to", "copy_from", "close")),
            "test_memory.test_memory_resource_alloc_zero_bytes",
            "test_memory.test_device_memory_resource_with_options",
            "test_memory.test_mempool_ipc_errors",
            "test_helpers",
            *(
                f"test_device.test_{each}"
                for each in ("pci_bus_id", "device_id", "device_alloc", "device_alloc_zero_bytes")
            ),
            "test_device.test_compute_capability",
        ),
        _RUNTIME,
    ),
    "test_graph_update.test_graph_update_conditional": _CONDITIONAL,
    "test_options.test_graph_complete_options": _HOST_LAUNCH,
    "test_graph_definition.test_instantiate_and_execute_kernel_device_launch": _HOST_LAUNCH,
    "test_graph_memory_resource.test_graph_mem_set_attributes": "a graph's memory comes back when the graph is destroyed",
    "test_memory.test_mempool_attributes": "what a pool has reserved is what the slice has",
    "test_multiprocessing_warning.test_warn_on_fork_method_event": _SHARED,
    "test_managed_memory_warning": "pools of managed memory",
    "test_object_protocols.test_weakref_supported": "a buffer that is made of memory of another process",
    "test_object_protocols.test_repr_format": "LTO-IR loaded without a linker",
    "test_module.test_object_code_load_ltoir": "LTO-IR loaded without a linker",
    "test_module.test_object_code_load_fatbin": _MACHINE_CODE,
    "test_module.test_object_code_load_fatbin_from_file": _MACHINE_CODE,
    "test_module.test_object_code_load_rdc": _NEWER,
    "test_module.test_object_code_load_rdc_with_linker": "a host object of nvcc whose fat binary has machine code alone",
    "test_module.test_num_args_error_handling": "cuLibraryGetKernel of a handle that is none, which CUDA leaves undefined",
    "test_stream.test_stream_priority": "a slice has streams of one priority",
    "test_event.test_timing_success": "events measure the CPU, and nanosleep may end at once",
    "TestCheckpointLifecycle": "checkpoints of processes",
    "test_enum_coverage": _NEWER,
    "test_program_cache.test_filestream_touch_atime_swallows_fstat_failure": "the test breaks pytest's own capture",
}

_CORE_MODULES = (
    *(
        f"graph/test_{each}"
        for each in (
            *("device_launch", "graph_builder", "graph_builder_conditional", "graph_definition"),
            *("graph_definition_errors", "graph_definition_integration", "graph_definition_lifetime"),
            *("graph_definition_mutation", "graph_memory_resource", "graph_update", "options"),
        )
    ),
    "memory/test_managed_ops",
    *(
        f"test_{each}"
        for each in (
            *("checkpoint", "context", "cuda_utils", "device", "enum_coverage", "event", "green_context"),
            *("helpers", "host", "launcher", "linker", "managed_memory_warning", "memory"),
            *("memory_peer_access", "memory_peer_access_utils", "module", "multiprocessing_warning"),
            *("object_protocols", "optional_dependency_imports", "program", "program_cache"),
            *("program_compile_cache", "stream", "strided_layout", "tensor_map", "texture_surface"),
            *("utils", "utils_dlpack"),
        )
    ),
)

CORE = Suite("cuda.core", cuda_core, _CORE_MODULES, known=_CORE_KNOWN, simulate="a100:1")

_OWN_PROCESS = "starts a process, in which nothing stands in for torch.cuda"
_SLOW = "takes minutes on a simulated GPU"

TRITON_LANGUAGE = Suite(
    "triton",
    triton,
    known={
        "test_line_info.test_line_info": _MACHINE_CODE,
        "test_line_info.test_line_info_env": _MACHINE_CODE,
        "test_line_info.test_line_info_ir_source": _MACHINE_CODE,
        "test_line_info.test_use_name_loc_as_prefix": _NEWER,
        "test_core.test_histogram": _MACHINE_CODE,
        "test_compile_only": _NEWER,
        "test_subprocess": _OWN_PROCESS,
    },
    left_out={
        "test_core.test_load_store_same_ptr": _SLOW,
        "test_conversions.test_typeconvert_downcast": _SLOW,
    },
    simulate="a100:1",
)

PROGRAMS = Suite(
    "programs",
    programs,
    ("halide_programs", "slangpy_programs", "iree_programs"),
    known={"iree_programs": "registered host memory in kernels, with which IREE copies its results"},
    simulate="a100:1",
)
