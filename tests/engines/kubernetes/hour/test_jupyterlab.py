"""“V100 × 0.02” in JupyterLab at the end of the page's hour: a Hub in the cluster, KubeSpawner's pods, and kernels on slices of agents' pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import websocket

pytest.importorskip("kubespawner")

from tests.conftest import eventually
from tests.e2e.machines import Shell
from tests.engines.kubernetes.hour.jupyterhub import ClusterHub
from tests.engines.kubernetes.hour.page import IN_POOL, asked
from tests.engines.kubernetes.real_node import Node
from tests.jupyter.server import KernelSocket

pytestmark = [pytest.mark.slow, pytest.mark.hub, pytest.mark.timeout(3600)]

PATIENCE = 300.0
COMPUTE = """
import numpy, warnings
from numba import cuda
warnings.simplefilter("ignore")  # of one block, which leaves a GPU idle
@cuda.jit
def double(values):
    values[cuda.grid(1)] *= 2
values = cuda.to_device(numpy.arange(256))
double[1, 256](values)
print(values.copy_to_host().sum(), cuda.current_context().get_memory_info().total >> 20)
"""


@pytest.fixture(scope="module")
def hub(node: Node, hour: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHub]:
    with ClusterHub(node, tmp_path_factory.mktemp("hub")) as made:
        yield made


def leases(shell: Shell) -> list[dict[str, Any]]:
    return list(json.loads(shell.run(f"{IN_POOL} gpukernel leases --json")))


def claims(shell: Shell) -> list[Any]:
    return list(asked(shell, "kubectl -n jupyter get resourceclaims")["items"])


@pytest.mark.parametrize(("course", "decider"), [("vision", "pool"), ("ml101", "kubernetes")])
def test_a_kernel_of_the_launcher_computes_on_its_slice(
    hub: ClusterHub, shell: Shell, course: str, decider: str
) -> None:
    hub.start_server("anna", {"profile": f"gpu-{course}"})
    single = hub.server("anna")
    names = single.ask("GET", "/api/kernelspecs").json()["kernelspecs"]
    assert names["gpu-v100-0.02"]["spec"]["display_name"].startswith("V100 × 0.02")
    assert len(claims(shell)) == (decider == "kubernetes")
    session = single.start_kernel("gpu-v100-0.02")
    assert session.status_code == 201, session.text
    address = f"{single.url.replace('http', 'ws', 1)}api/kernels/{session.json()['kernel']['id']}/channels"
    link = websocket.create_connection(
        address, timeout=300, suppress_origin=True, header={"Authorization": f"token {single.token}"}
    )
    try:
        said = KernelSocket(link).run(COMPUTE)
    finally:
        link.close()
    assert said.strip() == "65280 655"
    (own,) = [one for one in leases(shell) if one["slices"][0]["memory_bytes"] == 655 << 20]
    assert (own["holder"]["person"], own["holder"]["course"]) == ("anna", course)
    assert bool(own["within"]) == (decider == "kubernetes")
    hub.stop_server("anna")
    eventually(lambda: not leases(shell), PATIENCE)
    eventually(lambda: not claims(shell), PATIENCE)
