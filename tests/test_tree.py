"""The tree keeps its shape: imports and includes point one way, and `tools.metrics` finds nothing to complain about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.import_graph import cycles, grouped, includes, modules, python_imports
from tools.metrics import measure

POOL = [
    f"gpukernel.pool.{room}"
    for room in ("domain", "store", "scheduling", "leases", "policy", "doors", "auth", "rpc")
]

# What each package may import beside itself.  A package that is missing here fails the test.
MAY_IMPORT: dict[str, set[str]] = {
    "gpukernel": {"gpukernel.jupyter"},  # IPython's extension, at load time
    "gpukernel.common": set(),
    "gpukernel.native": set(),
    "gpukernel.client": {"gpukernel.common"},
    "gpukernel.frameworks": set(),
    "gpukernel.remoting": {"gpukernel.common", "gpukernel.frameworks", "gpukernel.native"},
    "gpukernel.agent": {"gpukernel.common", "gpukernel.native", "gpukernel.remoting"},
    "gpukernel.jupyter": {"gpukernel.client", "gpukernel.common", "gpukernel.remoting"},
    "gpukernel.engines": {"gpukernel.client", "gpukernel.common", "gpukernel.native", "gpukernel.remoting"},
    "gpukernel.embedded": set(),
    "gpukernel.pool": set(),
    "gpukernel.pool.domain": {"gpukernel.common"},
    "gpukernel.pool.store": {"gpukernel.common", "gpukernel.pool.domain"},
    "gpukernel.pool.scheduling": {"gpukernel.common", *POOL[:2]},
    "gpukernel.pool.leases": {"gpukernel.common", *POOL[:3]},
    "gpukernel.pool.policy": {"gpukernel.common", *POOL[:4]},
    "gpukernel.pool.doors": {"gpukernel.common"},
    "gpukernel.pool.auth": {"gpukernel.common", "gpukernel.pool.doors", "gpukernel.pool.store"},
    "gpukernel.pool.rpc": {"gpukernel.common", *POOL[:7]},
    # The command line is the one place that has both: clients' commands, and those that start servers.
    "gpukernel.cli": {
        "gpukernel",
        "gpukernel.agent",
        "gpukernel.client",
        "gpukernel.common",
        "gpukernel.embedded",
        "gpukernel.engines",
        "gpukernel.jupyter",
        "gpukernel.native",
        "gpukernel.pool.auth",  # the authority of “gpukernel pool init”
        "gpukernel.pool.rpc",
        "gpukernel.remoting",
    },
    # `hub_spawner.demo` shows the notebooks of `gpukernel demo`.
    "hub_spawner": {"gpukernel.cli", "gpukernel.client", "gpukernel.common", "gpukernel.jupyter"},
    "hub_spawner.console": {"gpukernel.client", "gpukernel.common", "hub_spawner"},
}

# Only these modules of the command line may load the server.
STARTS_SERVERS = {"gpukernel.cli.services", "gpukernel.cli.pool"}

# The same for C++: the folders of gpukernel/native, by what their files include.
MAY_INCLUDE: dict[str, set[str]] = {
    "codegen": set(),
    "common": {"codegen"},
    "libcuda": {"codegen", "common"},
    "tls": set(),
    "wire": {"common", "tls"},
    "libraries": set(),
    "shim": {"codegen", "common", "libcuda", "libraries", "wire"},
    "cudart": set(),
    "worker": {"codegen", "common", "libraries", "wire"},
    "direct": {"codegen", "common", "libcuda", "wire"},
    "nvml": {"codegen", "common", "wire"},
    "ptxas": set(),
    "oci_hook": set(),
    "slurm_hook": set(),
    "compilers": {"common"},
    "simgpu": {"codegen", "common", "libcuda"},
    "simgpu_libraries": {"libraries", "simgpu"},
}


def test_imports_point_one_way() -> None:
    edges = grouped(python_imports(), MAY_IMPORT)
    wrong = {name: more for name, to in edges.items() if (more := to - MAY_IMPORT.get(name, set()))}
    assert wrong == {}
    assert set(edges) == set(MAY_IMPORT)


def test_no_two_modules_import_each_other() -> None:
    assert cycles(python_imports()) == []
    assert cycles(grouped(python_imports(), MAY_IMPORT)) == []


def test_a_command_that_starts_no_server_imports_none() -> None:
    reach = {name for name, to in python_imports().items() if any(t.startswith("gpukernel.pool") for t in to)}
    assert {name for name in reach if name.startswith("gpukernel.cli")} <= STARTS_SERVERS


def test_native_includes_point_one_way() -> None:
    edges: dict[str, set[str]] = {}
    for path, targets in includes().items():
        room = path.partition("/")[0]
        edges.setdefault(room, set()).update(target.partition("/")[0] for target in targets)
    wrong = {room: more for room, to in edges.items() if (more := to - {room} - MAY_INCLUDE.get(room, set()))}
    assert wrong == {}
    assert cycles(includes()) == []


@pytest.mark.parametrize(
    "package", ["gpukernel.client", "gpukernel.remoting", "gpukernel.jupyter", "hub_spawner"]
)
def test_a_client_loads_nothing_of_the_server(package: str) -> None:
    names = [
        name for name in modules() if name.startswith(package) and not name.endswith(("__main__", ".demo"))
    ]
    code = "\n".join([*(f"import {name}" for name in names), "import sys", "print('\\n'.join(sys.modules))"])
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in loaded if name.startswith("gpukernel.pool")] == []
    if package != "hub_spawner":  # JupyterHub has a database of its own
        assert "sqlalchemy" not in loaded


def test_a_kernel_that_starts_loads_only_what_its_magics_need() -> None:
    code = "import sys, gpukernel.jupyter.magics; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "gpukernel.remoting.worker_query" in loaded
    assert {"gpukernel.remoting.worker", "gpukernel.remoting.direct_table", "grpc"}.isdisjoint(loaded)


def test_what_simulated_libraries_compute_with_is_charged_to_the_slice() -> None:
    """A program chooses how large it is, so it is a Room; what describes a call is as large as its request."""
    folder = Path(__file__).parents[1] / "gpukernel/native/simgpu_libraries"
    describe = {
        *(f"cudnn/{name}" for name in ("convolution.h", "cudnn.cpp", "operations.h")),
        *(f"cudnn/graphs/{name}" for name in ("attention.cpp", "attention.h", "graph.cpp", "graph.h")),
    }
    free = re.compile(
        r"std::(vector|deque|list|valarray|string)<|make_unique<[^>]*\[\]>|\bnew [^(;]*\[|\b[mc]alloc\("
    )
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.suffix in (".h", ".cpp") and free.search(path.read_text())
    }
    assert found - describe == {"room.h"}


def test_the_tree_keeps_its_bounds() -> None:
    broken = [metric for metric in measure() if not metric.kept]
    assert [(metric.name, metric.value, metric.bound, metric.places) for metric in broken] == []
