"""The mixin's additions to each spawner: as far as it shows without its cluster, and everything of how it is configured."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

import hub_spawner
from gpukernel.client.admin import AdminClient
from gpukernel.common.connection import Connection
from gpukernel.common.errors import PoolError
from tests.conftest import Pool
from tests.hub.conftest import COURSES
from tests.ports import free_port

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "PyTorch": {"image": "a/pytorch"},
    "Numba <b>": {"image": "a/numba"},
}


class _Group:
    def __init__(self, name: str) -> None:
        self.name = name


class _Url:
    base_url, public_host, api_url, url = "/hub/", "", "http://hub/api", "http://hub/"


class _User:
    """As much of JupyterHub's user as a spawner without a Hub asks for."""

    url, escaped_name, groups = "/user/both/", "both", ()
    id, admin, state, settings, server = 1, False, None, {}, None

    def __init__(self, name: str, *groups: str) -> None:
        self.name, self.groups = name, tuple(map(_Group, groups))


@pytest.fixture(scope="module", autouse=True)
def _courses(shared_pool: Pool) -> None:
    async def work() -> None:
        async with AdminClient(shared_pool.address) as admin:
            await admin.import_courses(
                COURSES.replace("title: Machine learning", "title: Machine <i>learning")
            )

    asyncio.run(work())


def spawner(name: str, pool: Pool, person: str = "both", **settings: Any) -> Any:
    """A spawner of a class as the Hub makes it."""
    pytest.importorskip(
        {"GPUKubeSpawner": "kubespawner", "GPUDockerSpawner": "dockerspawner"}.get(name, "batchspawner")
    )

    config = Config()
    config.GPUSpawnerMixin.pool = pool.address
    for setting, value in settings.items():
        setattr(config[name], setting, value)
    return getattr(hub_spawner, name)(
        config=config, user=_User(person), hub=_Url(), api_token="none", oauth_client_id="none", _mock=True
    )


def test_importing_the_package_imports_no_spawners_package() -> None:
    code = "import sys, hub_spawner; print([m for m in ('kubespawner', 'dockerspawner', 'batchspawner', 'jupyterhub') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: none, user: {}}]
"""


@pytest.fixture
def _a_cluster_s_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KubeSpawner wants to know where its cluster is, though nobody asks it anything here."""
    config = pytest.importorskip("kubernetes_asyncio.config.kube_config")
    (tmp_path / "config").write_text(_KUBECONFIG)
    monkeypatch.setattr(config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))


@pytest.mark.usefixtures("_a_cluster_s_address")
def test_on_kubernetes_courses_are_profiles_beside_the_administrators_own(shared_pool: Pool) -> None:
    async def work() -> None:
        own = [{"display_name": "Large memory", "slug": "large", "kubespawner_override": {"mem_limit": "8G"}}]
        one = spawner("GPUKubeSpawner", shared_pool, profile_list=own, environments=ENVIRONMENTS)
        form = await one.get_options_form()
        assert "Large memory" in form
        assert "Machine &lt;i&gt;learning" in form
        assert "<i>learning" not in form
        assert "<script>alert(1)" not in form
        options = one.run_options_from_form(
            {"profile": ["gpu-ml101"], "profile-option-gpu-ml101--environment": ["PyTorch"]}
        )
        assert options == {"profile": "gpu-ml101", "environment": "PyTorch"}

        one.user_options = options
        await begin(one)
        assert one.image == "a/pytorch"
        environment = one.get_env()
        assert environment["GPUKERNEL_COURSE"] == "ml101"
        assert environment["GPUKERNEL_POOL"] == shared_pool.address
        assert environment["GPUKERNEL_POOL_TOKEN"].startswith("gpk")
        # In the pod's environment, and in no argument of its command.
        pod = await one.get_pod_manifest()
        variables = {variable.name: variable.value for variable in pod.spec.containers[0].env}
        assert variables["GPUKERNEL_POOL_TOKEN"] == environment["GPUKERNEL_POOL_TOKEN"]
        assert environment["GPUKERNEL_POOL_TOKEN"] not in " ".join(pod.spec.containers[0].args or [])

        # The administrator's own profile: as ever, and without GPUs.
        one.user_options = {"profile": "large"}
        await begin(one)
        assert one.mem_limit == 8 * 2**30
        assert "GPUKERNEL_POOL_TOKEN" not in one.get_env()

        for wrong in (
            {"profile": "gpu-chem"},
            {"profile": "gpu-ml101", "environment": "x"},
        ):
            one.user_options = wrong
            with pytest.raises(Exception, match=r"not in course chem|has no environment x"):
                await begin(one)

    asyncio.run(work())


async def begin(one: Any) -> None:
    """Everything of a start before the cluster is asked for a pod."""
    from kubespawner import KubeSpawner

    async def no_cluster(self: Any) -> None:
        await self.load_user_options()

    before = KubeSpawner._start
    KubeSpawner._start = no_cluster
    try:
        await one.start()
    finally:
        KubeSpawner._start = before


def test_in_docker_an_environment_is_an_image_and_the_pools_socket_is_mounted(shared_pool: Pool) -> None:
    async def work() -> None:
        one = spawner("GPUDockerSpawner", shared_pool, environments=ENVIRONMENTS, image="a/plain")
        folder = str(Path(shared_pool.address.removeprefix("unix:")).parent)
        # Not the pool's own folder, where its database is: one with sockets alone, at which an account counts for nothing.
        assert one.volume_binds == {f"{folder}/containers": {"bind": f"{folder}/containers", "mode": "ro"}}
        assert one.connection_of_servers().address == f"unix:{folder}/containers/pool.sock"
        form = await one.get_options_form()
        assert "Numba &lt;b&gt;" in form
        cards = await one._cards()
        from hub_spawner.choices import Chosen, choose

        one._apply_choice(*choose(cards, Chosen("ml101", "PyTorch"), without_course=False))
        assert one.image == "a/pytorch"
        one._apply_choice(*choose(cards, Chosen("phys", "Numba <b>"), without_course=False))
        assert one.image == "a/numba"
        one._use_environment("")
        assert one.image == "a/plain"

    asyncio.run(work())


def test_slurm_keeps_our_variables_and_puts_them_into_no_script(shared_pool: Pool) -> None:
    one = spawner("GPUSlurmSpawner", shared_pool, "nobody")
    one._credentials, one._course = Connection("", "gpk0.secret"), "ml101"
    kept = one.get_req_subvars()["keepvars"].split(",")
    assert {"GPUKERNEL_POOL", "GPUKERNEL_POOL_TOKEN", "GPUKERNEL_COURSE"} <= set(kept)
    script = asyncio.run(one._get_batch_script(**one.get_req_subvars(), cmd="jupyterhub-singleuser"))
    assert "GPUKERNEL_POOL_TOKEN" in script
    assert "secret" not in script


# --- configure ---


def configured(**options: Any) -> Config:
    c = Config()
    hub_spawner.configure(c, **options)
    return c


def test_configure_adds_to_what_is_there(tmp_path: Path) -> None:
    c = Config()
    c.JupyterHub.services = [{"name": "mine"}]
    c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "list:groups"]}]
    c.JupyterHub.spawner_class = "jupyterhub.spawner.SimpleLocalProcessSpawner"
    hub_spawner.configure(c, state=str(tmp_path / "pool"), simulate="v100:1")
    assert [service["name"] for service in c.JupyterHub.services] == ["mine", "gpukernel-pool", "gpukernel"]
    (user, administrators, console) = c.JupyterHub.load_roles
    assert administrators["scopes"] == ["custom:gpukernel:admin", "access:services!service=gpukernel"]
    assert user["scopes"] == ["self", "list:groups", "access:services!service=gpukernel"]
    assert console["services"] == ["gpukernel"]
    made = c.JupyterHub.spawner_class
    first, second, *others = [base.__name__ for base in made.__mro__]
    assert (first, second) == ("GPUSimpleLocalProcessSpawner", "GPUSpawnerMixin")
    assert "SimpleLocalProcessSpawner" in others
    # No secret travels in a service's description.
    assert "TOKEN" not in str([service.get("environment") for service in c.JupyterHub.services])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"courses": "/nowhere/courses.yaml"}, "courses: there is no file /nowhere/courses.yaml"),
        ({"token_file": "/nowhere/t"}, "token_file: there is no file /nowhere/t"),
        (
            {"pool": "127.0.0.1:7437", "simulate": "v100:2"},
            "simulate, state and hub_tokens are for the Hub's own",
        ),
    ],
)
def test_configure_says_what_is_wrong(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        configured(**options)


def test_configure_refuses_an_address_that_is_none() -> None:
    with pytest.raises(PoolError, match="is no pool's address and no connection file"):
        configured(pool="nonsense")


def test_a_spawner_may_be_named_as_jupyterhub_names_it() -> None:
    c = Config()
    c.JupyterHub.spawner_class = "simple"
    hub_spawner.configure(c, pool="unix:/run/pool.sock")
    assert c.JupyterHub.spawner_class.__name__ == "GPUSimpleLocalProcessSpawner"
    c = Config()
    c.JupyterHub.spawner_class = "no-such"
    with pytest.raises(ValueError, match="there is no spawner named no-such"):
        hub_spawner.configure(c, pool="unix:/run/pool.sock")


@pytest.mark.parametrize(
    ("package", "named", "ready"),
    [
        ("dockerspawner", "dockerspawner.DockerSpawner", "GPUDockerSpawner"),
        ("kubespawner", "kubespawner.KubeSpawner", "GPUKubeSpawner"),
        ("batchspawner", "batchspawner.SlurmSpawner", "GPUSlurmSpawner"),
        ("systemdspawner", "systemdspawner.SystemdSpawner", "GPUSystemdSpawner"),
        ("jupyterhub", "jupyterhub.spawner.LocalProcessSpawner", "GPULocalProcessSpawner"),
    ],
)
def test_configure_takes_the_class_that_knows_the_spawner(package: str, named: str, ready: str) -> None:
    pytest.importorskip(package)
    c = Config()
    c.JupyterHub.spawner_class = named
    hub_spawner.configure(c, pool="unix:/run/pool.sock")
    assert c.JupyterHub.spawner_class is getattr(hub_spawner, ready)


def test_a_spawner_that_somebody_derived_keeps_its_own_behind_what_ours_knows() -> None:
    docker = pytest.importorskip("dockerspawner")

    class Mine(docker.DockerSpawner):  # type: ignore[misc,name-defined]
        pass

    made = hub_spawner.with_gpus(Mine)
    assert made.__name__ == "GPUMine"
    order = [base.__name__ for base in made.__mro__]
    assert order.index("GPUDockerSpawner") < order.index("GPUSpawnerMixin") < order.index("Mine")


def test_no_spawner_of_batchspawner_lets_a_servers_token_set_what_it_likes() -> None:
    batchspawner = pytest.importorskip("batchspawner")
    from jupyterhub.apihandlers import default_handlers

    theirs = batchspawner.api.BatchSpawnerAPIHandler
    default_handlers.append((r"/api/batchspawner", theirs))  # as its import did
    try:
        hub_spawner.with_gpus(batchspawner.TorqueSpawner)
        handlers = [entry[1] for entry in default_handlers if entry[0] == r"/api/batchspawner"]
        assert handlers
        assert theirs not in handlers
        assert all(issubclass(handler, theirs) for handler in handlers)
    finally:
        default_handlers.pop()


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("jupyterhub.spawner", "SimpleLocalProcessSpawner"),
        ("dockerspawner", "DockerSpawner"),
        ("dockerspawner", "SwarmSpawner"),
        ("kubespawner", "KubeSpawner"),
        ("batchspawner", "SlurmSpawner"),
        ("systemdspawner", "SystemdSpawner"),
    ],
)
def test_no_name_of_the_mixin_is_one_of_the_spawner_s(package: str, name: str) -> None:
    from jupyterhub.spawner import Spawner

    spawner_class = getattr(pytest.importorskip(package), name)
    known = {"start", "stop", "poll", "get_env"} | set(vars(Spawner))
    theirs = {n for base in spawner_class.__mro__ if base not in Spawner.__mro__ for n in vars(base)}
    ours = {n for n in vars(hub_spawner.GPUSpawnerMixin) if not n.startswith("__")}
    assert (ours & theirs) - known == set()


def test_no_port_is_promised_to_two_servers_or_taken_from_the_systems_own_range() -> None:
    from hub_spawner.ports import Ports, below_the_systems

    ports = Ports(below_the_systems())
    taken = [ports.take() for _ in range(3000)]
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(taken)) == 3000
    assert low < 24_000 or max(taken) < low


def test_a_port_that_is_taken_is_passed_over() -> None:
    from hub_spawner.ports import Ports

    taken, free = free_port(), free_port()
    with socket.socket() as listener:
        listener.bind(("", taken))
        listener.listen()
        ports = Ports(range(taken, free + (1 if free > taken else -1), free - taken))
        assert {ports.take() for _ in range(20)} == {free}
        with pytest.raises(OSError, match="no free port"):
            Ports(range(taken, taken + 1)).take()


def test_servers_on_the_hubs_machine_get_such_ports(
    shared_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyterhub.spawner import LocalProcessSpawner

    async def started(self: Any) -> tuple[str, int]:
        return "127.0.0.1", self.port

    monkeypatch.setattr(LocalProcessSpawner, "start", started)

    async def ports() -> list[int]:
        made = [spawner("GPUSimpleLocalProcessSpawner", shared_pool, port=port) for port in (0, 0, 4321)]
        for one in made:
            one.user_options = {"course": "ml101"}
        return [(await one.start())[1] for one in made]

    first, second, named = asyncio.run(ports())
    assert first != second
    assert min(first, second) >= 20_000
    assert named == 4321  # what the administrator says is kept


def test_a_unit_gets_such_a_port_instead_of_the_spawners(shared_pool: Pool) -> None:
    pytest.importorskip("systemdspawner")
    unit = spawner("GPUSystemdSpawner", shared_pool)
    unit.port = 9
    assert unit.port >= 20_000
