"""DockerSpawner with a real daemon: from the choice to a CUDA program in a container, and what root in there can reach of the pool."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pool, eventually
from tests.hub.containers import IMAGE, daemon, folders_of_this_python, import_image
from tests.hub.hub import Hub, environment_of

docker = pytest.importorskip("docker")
pytest.importorskip("dockerspawner")
pytestmark = pytest.mark.slow

COURSES = "courses: {ml101: {students: [anna, ben], offers: [V100 x 0.1]}}\n"
ADD = """
import numpy as np
from numba import cuda
print("the sum is", cuda.to_device(np.arange(5)).copy_to_host().sum())
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with daemon() as address:
        found = docker.DockerClient(base_url=address)
        import_image(found)
        found.address = address
        yield found


def is_ours(address: str) -> bool:
    """Tell whether it is one of this machine's."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


@pytest.fixture(scope="module")
def running(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Pool]]:
    home = tmp_path_factory.mktemp("docker")
    (home / "courses.yaml").write_text(COURSES)
    usual = next(n for n in client.networks.list() if n.name in ("bridge", "podman"))
    gateway = usual.attrs["IPAM"]["Config"][0]["Gateway"]
    # Podman lists its own by Docker's name, and calls it by its own where a container is.
    podman = any("Podman" in one["Name"] for one in client.version()["Components"])
    network = "podman" if podman else usual.name
    mounts = {path: path for path in folders_of_this_python()}
    extra = f"""
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_connect_ip = "{gateway}"
c.DockerSpawner.image = "{IMAGE}"
c.DockerSpawner.pull_policy = "never"
c.DockerSpawner.network_name = "{network}"
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.remove = True
c.DockerSpawner.cmd = ["{Path(sys.executable).parent}/jupyterhub-singleuser"]
c.DockerSpawner.read_only_volumes = {mounts!r}
c.DockerSpawner.environment = {{"HOME": "/root", "JUPYTER_PREFER_ENV_PATH": "0"}}
c.DockerSpawner.notebook_dir = "/root"
"""
    # Podman makes the gateway with a network's first container; until then its address is somebody else's.
    binds = [f"{path}:{path}:ro" for path in mounts]
    client.containers.run(
        IMAGE, ["sleep", "infinity"], detach=True, network=network, volumes=binds, init=True
    )
    eventually(lambda: is_ours(gateway))
    with Pool("v100:1", home / "state") as pool:
        assert pool.gpukernel("quota", "import", str(home / "courses.yaml")).returncode == 0
        environment = {**environment_of(pool.state, home), "DOCKER_HOST": client.address}
        options = {"pool": pool.address}
        with Hub(home, environment, options, extra=extra, spawner="dockerspawner.DockerSpawner") as hub:
            yield hub, pool


def inside(
    client: Any, person: str, *command: str, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Return what root in somebody's container gets to see."""
    container = client.containers.get(f"jupyter-{person}")
    done = container.exec_run(list(command), environment=environment or {}, user="root")
    return done.exit_code, done.output.decode(errors="replace")


def test_a_program_in_a_container_computes_on_its_slice_and_ends_with_the_server(
    client: Any, running: tuple[Hub, Pool]
) -> None:
    hub, pool = running
    hub.start_server("anna", {"course": "ml101"})
    variables = client.containers.get("jupyter-anna").attrs["Config"]["Env"]
    given = dict(one.split("=", 1) for one in variables)
    assert given["GPUKERNEL_POOL"].endswith("/containers/pool.sock")

    code, said = inside(
        client,
        "anna",
        sys.executable,
        "-m",
        "gpukernel.cli",
        "run",
        "-p",
        "0.1",
        "--",
        sys.executable,
        "-c",
        ADD,
    )
    assert (code, "the sum is 10" in said) == (0, True), said
    # A kernel of the server's own, as JupyterLab starts one.
    started = hub.server("anna").start_kernel("gpu-v100-0.1")
    assert started.status_code == 201, started.text
    lease = eventually(lambda: next((one for one in pool.live() if one.state == "live"), None))
    assert (lease.holder.person, lease.holder.course) == ("anna", "ml101")
    assert any("/containers/" in endpoint for piece in lease.slices for endpoint in piece.endpoints)
    hub.stop_server("anna")
    eventually(lambda: not pool.live())
    assert not list((pool.state / "containers").glob("*-0.sock"))


def test_root_in_a_container_is_nobody_at_the_pool(client: Any, running: tuple[Hub, Pool]) -> None:
    hub, pool = running
    hub.start_server("anna", {"course": "ml101"})
    hub.start_server("ben", {"course": "ml101"})
    assert hub.server("anna").start_kernel("gpu-v100-0.1").status_code == 201
    (lease,) = pool.live()
    cli = (sys.executable, "-m", "gpukernel.cli")
    try:
        # With the server's token root is ben, whatever the account.
        code, said = inside(client, "ben", *cli, "leases", "--json")
        assert (code, lease.id in said) == (0, False), said
        code, said = inside(client, "ben", *cli, "release", lease.id)
        assert code != 0
        assert "You hold no lease" in said
        # Without it, nobody.
        nothing = {"GPUKERNEL_POOL_TOKEN": ""}
        for command in (
            ("leases",),
            ("quota", "show"),
            ("token", "create", "x", "--scope", "admin"),
        ):
            code, said = inside(client, "ben", *cli, *command, environment=nothing)
            assert code != 0, said
            assert "token" in said, said
        code, said = inside(client, "ben", *cli, "release", lease.id, environment=nothing)
        assert code != 0, said
        # And nothing of the pool's own is there: its database, its tokens, the workers' control sockets.
        code, said = inside(client, "ben", "find", str(pool.state), "-type", "f")
        assert (code, said) == (0, "")
        code, said = inside(client, "ben", "find", str(pool.state), "-type", "s")
        assert sorted(said.split()) == sorted(str(path) for path in (pool.state / "containers").iterdir())
        code, said = inside(client, "ben", "rm", str(pool.state / "containers" / "pool.sock"))
        assert code != 0
        assert lease.id in {one.id for one in pool.live()}
    finally:
        hub.stop_all_servers()
