"""The fate of slices when something dies: the holder, a worker, the pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Pool, eventually

ALLOCATE = """
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
pointer = d.cuMemAlloc(1 << 20)[1]
print("ready", flush=True)
import sys
for line in sys.stdin:
    error = d.cuMemsetD8(pointer, 7, 1 << 20)[0]
    code = d.cuCtxSynchronize()[0]
    print(code.name, flush=True)
"""


def line_of(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def ask(program: subprocess.Popen[str]) -> str:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return line_of(program)


def workers_of(pool: Pool) -> list[int]:
    """The process ids of a pool's workers, found by their command lines."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        names = {lease.id.encode() for lease in pool.leases()[0]}
        if words[0].endswith(b"gpukernel-worker") and any(name in words for name in names):
            found.append(int(entry.name))
    return found


def test_a_killed_holder_s_slice_is_free_within_thirty_seconds(own_pool: Pool) -> None:
    holder = own_pool.start_on_slice(ALLOCATE)
    assert line_of(holder) == "ready"
    assert own_pool.promised() == 655 * 2**20
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    for pid in [*map(int, children), holder.pid]:
        os.kill(pid, signal.SIGKILL)
    holder.wait()
    eventually(lambda: own_pool.promised() == 0, seconds=30)
    (ended,) = own_pool.leases(ended=True)[0]
    assert ended.end_reason == "its holder gave no sign of life"


def test_a_killed_worker_gives_the_program_an_error_and_a_sentence_and_ends_the_lease(own_pool: Pool) -> None:
    program = own_pool.start_on_slice(ALLOCATE)
    assert line_of(program) == "ready"
    assert ask(program) == "CUDA_SUCCESS"
    (worker,) = workers_of(own_pool)
    os.kill(worker, signal.SIGKILL)
    assert ask(program) == "CUDA_ERROR_DEVICE_UNAVAILABLE"
    assert ask(program) == "CUDA_ERROR_DEVICE_UNAVAILABLE"  # it lives, and does not hang
    _, said = program.communicate()
    assert said.count("the worker of this slice ended") == 1
    assert "restart the kernel or the program" in said
    eventually(lambda: own_pool.promised() == 0)
    assert own_pool.leases(ended=True)[0][0].end_reason == "its worker ended unexpectedly"


def test_a_killed_pool_started_again_keeps_running_programs_and_promises_nothing_twice(
    own_pool: Pool,
) -> None:
    programs = [own_pool.start_on_slice(ALLOCATE, "-p", "0.4") for _ in range(2)]
    assert [line_of(program) for program in programs] == ["ready", "ready"]
    before = {lease.id for lease in own_pool.live()}
    own_pool.kill()
    assert [ask(program) for program in programs] == ["CUDA_SUCCESS", "CUDA_SUCCESS"]
    own_pool.start()
    assert {lease.id for lease in own_pool.live()} == before
    assert own_pool.gpukernel("run", "-p", "0.4", "--wait", "0", "--", "true").returncode == 6
    assert [ask(program) for program in programs] == ["CUDA_SUCCESS", "CUDA_SUCCESS"]
    for program in programs:
        program.communicate()
        assert program.returncode == 0
    eventually(lambda: own_pool.promised() == 0)


def test_workers_whose_leases_are_over_do_not_outlive_the_pool_s_return(own_pool: Pool) -> None:
    program = own_pool.start_on_slice(ALLOCATE)
    assert line_of(program) == "ready"
    (worker,) = workers_of(own_pool)
    own_pool.kill()
    program.kill()
    program.communicate()
    own_pool.start()
    eventually(lambda: not Path(f"/proc/{worker}").exists(), seconds=40)
    assert own_pool.promised() == 0


ENDLESS = """
from cuda.bindings import driver as d
PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry endless() { again: bra again; }\\0"
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
d.cuLaunchKernel(d.cuModuleGetFunction(d.cuModuleLoadData(PTX)[1], b"endless")[1], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
print("ready", flush=True)
print(d.cuCtxSynchronize()[0].name, flush=True)
"""


def test_ctrl_c_ends_a_program_whose_gpu_work_never_ends(own_pool: Pool) -> None:
    program = own_pool.start_on_slice(ENDLESS)
    assert line_of(program) == "ready"
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=30)
    assert "KeyboardInterrupt" in said
    assert program.returncode == 1 or program.returncode == 128 + signal.SIGINT
    eventually(lambda: own_pool.promised() == 0)


def test_stopping_the_pool_tells_the_programs_why(own_pool: Pool) -> None:
    program = own_pool.start_on_slice(ALLOCATE)
    assert line_of(program) == "ready"
    own_pool.stop()
    assert ask(program) == "CUDA_ERROR_DEVICE_UNAVAILABLE"
    _, said = program.communicate()
    assert "the pool was stopped by its administrator" in said


@pytest.mark.slow
def test_a_killed_notebook_server_s_slices_are_free_within_thirty_seconds(
    own_pool: Pool, tmp_path: Path
) -> None:
    import json
    import urllib.request

    environment = {
        **own_pool.environment,
        "JUPYTER_RUNTIME_DIR": str(tmp_path),
        "JUPYTER_DATA_DIR": str(tmp_path),
    }
    own = [
        sys.executable,
        "-m",
        "gpukernel.cli",
        "kernelspec",
        "install",
        "--prefix",
        str(tmp_path),
        "--share",
        "0.02",
        "--model",
        "V100",
    ]
    assert subprocess.run(own, env=environment, capture_output=True, check=False).returncode == 0
    environment["JUPYTER_PATH"] = str(tmp_path / "share" / "jupyter")
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyter_server",
            "--no-browser",
            "--port=0",
            "--allow-root",
            "--IdentityProvider.token=t",
            f"--ServerApp.root_dir={tmp_path}",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        info = eventually(lambda: next(tmp_path.glob("jpserver-*.json"), None))
        url = json.loads(eventually(info.read_text))["url"]

        def call(path: str, body: dict[str, str] | None = None) -> object:
            data = json.dumps(body).encode() if body else None
            request = urllib.request.Request(url + path, data=data, headers={"Authorization": "token t"})
            return json.load(urllib.request.urlopen(request))

        eventually(lambda: _answers(call))
        for _ in range(2):
            call("api/kernels", {"name": "gpu-v100-0.02"})
        eventually(lambda: len(own_pool.live()) == 2)
    finally:
        server.kill()
        server.wait()
    eventually(lambda: own_pool.promised() == 0, seconds=30)


def _answers(call: object) -> bool:
    try:
        call("api/status")  # type: ignore[operator]
    except OSError:
        return False
    return True
