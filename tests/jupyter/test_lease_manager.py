"""A kernel's life under a real Jupyter server, as JupyterLab and VS Code drive it through REST: who holds what after each turn."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import websocket
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool, eventually
from tests.jupyter.server import Server, pool_environment
from tests.jupyter.test_server import kernel_of

ALLOCATE = (
    "from cuda.bindings import driver as d; d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])\n"
    "print(d.cuMemAlloc(300 << 20)[0].name, d.cuMemGetInfo()[1] >> 20)"
)
KERNEL = "gpu-v100-0.02"


@pytest.fixture
def server(own_pool: Pool, tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, pool_environment(own_pool.state)) as running:
        yield running


def test_a_restart_keeps_the_lease_and_clears_its_memory(server: Server, own_pool: Pool) -> None:
    session = server.session(KERNEL)
    kernel = session["kernel"]["id"]
    (lease,) = own_pool.live()
    with server.kernel(kernel) as channels:
        assert channels.run(ALLOCATE) == "CUDA_SUCCESS 355\n"
    assert server.ask("POST", f"/api/kernels/{kernel}/restart", {}, timeout=120)[0] == 200
    with server.kernel(kernel) as channels:
        assert channels.run(ALLOCATE) == "CUDA_SUCCESS 355\n"
    assert [one.id for one in own_pool.live()] == [lease.id]


def test_a_kernel_that_crashes_is_started_again_by_the_server_on_the_same_lease(
    server: Server, own_pool: Pool
) -> None:
    session = server.session(KERNEL)
    (lease,) = own_pool.live()
    with server.kernel(session["kernel"]["id"]) as channels:
        assert channels.run(ALLOCATE) == "CUDA_SUCCESS 355\n"
        channels.send("import os; os.kill(os.getpid(), 9)")
    eventually(lambda: "restarting" in server.log.read_text().lower())
    eventually(lambda: kernel_of(server, session)["used_bytes"] == 0)
    with server.kernel(session["kernel"]["id"]) as channels:
        channels.wait_until_it_answers()
        assert channels.run(ALLOCATE) == "CUDA_SUCCESS 355\n"
    assert [one.id for one in own_pool.live()] == [lease.id]


def test_a_shutdown_gives_the_slice_back(server: Server, own_pool: Pool) -> None:
    session = server.session(KERNEL)
    assert server.ask("DELETE", f"/api/kernels/{session['kernel']['id']}")[0] == 204
    eventually(lambda: own_pool.promised() == 0)
    assert server.get("/gpukernel/api/status")["kernels"] == []


def test_two_notebooks_on_one_kernel_hold_one_slice(server: Server, own_pool: Pool) -> None:
    kernel = server.session(KERNEL)["kernel"]["id"]
    body = {"path": "b.ipynb", "name": "b", "type": "notebook", "kernel": {"id": kernel}}
    status, session = server.ask("POST", "/api/sessions", body)
    assert (status, session["kernel"]["id"]) == (201, kernel)
    assert len(own_pool.live()) == 1


def test_a_client_that_asks_again_for_its_session_gets_no_second_slice(
    server: Server, own_pool: Pool
) -> None:
    first, second = server.session(KERNEL), server.session(KERNEL)
    assert first["kernel"]["id"] == second["kernel"]["id"]
    assert len(own_pool.live()) == 1


def test_a_server_that_is_killed_leaves_nothing_behind(server: Server, own_pool: Pool) -> None:
    server.session(KERNEL)
    server.stop(signal.SIGKILL)
    eventually(lambda: own_pool.promised() == 0, 60)  # by expiry: nobody renews
    server.start()
    session = server.session(KERNEL)
    assert kernel_of(server, session)["state"] == "live"


def test_a_server_that_ends_gives_everything_back_at_once(server: Server, own_pool: Pool) -> None:
    server.session(KERNEL)
    server.stop()
    eventually(lambda: own_pool.promised() == 0, 10)


def test_a_culled_kernel_gives_its_slice_back(own_pool: Pool, tmp_path: Path) -> None:
    cull = ("--MappingKernelManager.cull_idle_timeout=2", "--MappingKernelManager.cull_interval=1")
    with Server(tmp_path, pool_environment(own_pool.state), *cull) as server:
        server.session(KERNEL)
        assert len(own_pool.live()) == 1
        eventually(lambda: own_pool.promised() == 0, 60)
        eventually(lambda: server.get("/api/kernels") == [])


def test_an_idle_slice_goes_back_after_a_warning_and_its_kernel_lives_on_until_it_is_culled(
    own_pool: Pool, tmp_path: Path
) -> None:
    own_pool.gpukernel("quota", "set", "pool", "idle=10s")
    cull = ("cull_idle_timeout=5", "cull_interval=1", "cull_connected=False")
    options = (f"--MappingKernelManager.{setting}" for setting in cull)
    with Server(tmp_path, pool_environment(own_pool.state), *options) as server:
        with server.kernel(server.session(KERNEL)["kernel"]["id"]) as channels:
            request, said = channels.send(ALLOCATE), ""
            while "The slice of this kernel is gone" not in said:
                said += next((text for _, text in channels.outputs(request)), "")
            warned, gone = (
                said.index("This slice is idle and will be released at"),
                said.index("it was idle for 10 s"),
            )
            assert warned < gone
            assert own_pool.live() == []
            assert channels.run("print(6 * 7)") == "42\n"
            assert len(server.get("/api/kernels")) == 1
        eventually(lambda: server.get("/api/kernels") == [], 60)
        assert own_pool.promised() == 0


def test_a_terminal_of_the_server_runs_programs_on_slices_of_their_own(
    server: Server, own_pool: Pool
) -> None:
    server.session(KERNEL)
    _, terminal = server.ask("POST", "/api/terminals")
    address = f"ws://127.0.0.1:{server.port}/terminals/websocket/{terminal['name']}?token={server.token}"
    link = websocket.create_connection(address, timeout=60, suppress_origin=True)
    program = "import os; print('file', os.path.basename(os.environ['GPUKERNEL_LEASE_FILE'])); input()"
    link.send(
        json.dumps(
            ["stdin", f'{sys.executable} -m gpukernel.cli run -p 0.05 -- {sys.executable} -c "{program}"\r']
        )
    )
    said = ""
    while "file " not in said.replace("print('file", ""):
        kind, *rest = json.loads(link.recv())
        said += rest[0] if kind == "stdout" else ""
    assert sorted(one.slices[0].memory_bytes >> 20 for one in own_pool.live()) == [655, 1638]
    link.send(json.dumps(["stdin", "\r"]))
    eventually(lambda: len(own_pool.live()) == 1)
    link.close()


def test_a_terminal_finds_the_commands_of_the_servers_environment(own_pool: Pool, tmp_path: Path) -> None:
    """``gpukernel``, ``gpustat`` and ``nvitop``, where nobody has activated that environment."""
    environment = {**pool_environment(own_pool.state), "PATH": "/usr/bin:/bin"}
    with Server(tmp_path, environment) as running:
        _, terminal = running.ask("POST", "/api/terminals")
        address = (
            f"ws://127.0.0.1:{running.port}/terminals/websocket/{terminal['name']}?token={running.token}"
        )
        link = websocket.create_connection(address, timeout=60, suppress_origin=True)
        for command, word in (("gpustat --no-color", "V100"), ("nvitop --once", "NVITOP")):
            line = f"gpukernel run -p 0.02 -- {command} | grep -o {word} | head -n 1; echo en''d\r"
            link.send(json.dumps(["stdin", line]))
            said = ""
            while "end" not in said:
                kind, *rest = json.loads(link.recv())
                said += rest[0] if kind == "stdout" else ""
            assert f"{word}\r\n" in said, said
        link.close()


def test_what_a_manager_persists_brings_another_back_to_the_kernel_and_its_lease(
    own_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that keeps its kernels over its own restart: another process has only what was persisted."""
    import asyncio
    import subprocess

    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    kernelspecs.write(kernelspecs.SliceSpec(0.02, wait_seconds=60), tmp_path / "data" / "kernels")
    first = (
        "import asyncio, os; from jupyter_client.manager import KernelManager\n"
        "manager = KernelManager(kernel_name='gpu-v100-0.02'); "
        "manager.start_kernel(independent=True, env={**os.environ, 'JPY_SESSION_NAME': '/home/anna/lesson.ipynb'})\n"
        "info = asyncio.run(manager.provisioner.get_provisioner_info())\n"
        "print(repr([manager.kernel_id, manager.connection_file, info]), flush=True); os._exit(0)"
    )
    process = subprocess.Popen([sys.executable, "-c", first], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    kernel_id, connection_file, info = ast.literal_eval(process.stdout.readline())
    assert process.wait() == 0
    (lease,) = own_pool.live()
    assert lease.holder.description == "lesson.ipynb"
    manager = KernelManager(kernel_name=KERNEL, kernel_id=kernel_id, connection_file=connection_file)
    from jupyter_client.provisioning import KernelProvisionerFactory

    async def load() -> None:
        factory = KernelProvisionerFactory.instance()
        manager.provisioner = factory.create_provisioner_instance(kernel_id, manager.kernel_spec, manager)
        await manager.provisioner.load_provisioner_info(info)

    try:
        asyncio.run(load())
        from gpukernel.jupyter.lease_manager import lease_manager

        shown = asyncio.run(lease_manager().statuses())
        assert [(one.kernel_id, one.lease_id) for one in shown if one.kernel_id == kernel_id] == [
            (kernel_id, lease.id)
        ]
        # What it asks for next is the notebook's still.
        taken = lease_manager()._leases[kernel_id].holder
        assert taken is not None and taken.description == "lesson.ipynb"  # noqa: PT018
        client = BlockingKernelClient(connection_file=connection_file)
        client.load_connection_file()
        # The kernel may only be starting.  A client without a manager takes one that is silent for this long for dead.
        client.hb_channel.time_to_dead = 60
        client.start_channels()
        client.wait_for_ready(60)
        client.stop_channels()
    finally:
        os.kill(info["pid"], signal.SIGKILL)
    eventually(lambda: own_pool.promised() == 0)  # the lease manager watches the process that it was told of
