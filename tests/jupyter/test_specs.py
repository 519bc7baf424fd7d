"""The launcher's list: the offers of a real pool through a real Jupyter server, and without a pool."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from gpukernel.common.course import Offered
from gpukernel.common.model import Chance, Device
from gpukernel.jupyter import kernelspecs
from gpukernel.jupyter.offers import Offer, OfferBook, offers_of, short_model, sizes_of
from gpukernel.jupyter.specs import GPUKernelSpecManager
from tests.conftest import Pool, eventually
from tests.jupyter.server import Server, pool_environment

OPTION = "--ServerApp.kernel_spec_manager_class=gpukernel.jupyter.specs.GPUKernelSpecManager"
V100 = Device("a/0", "a", 0, "Tesla V100-SXM2-32GB (simulated)", 32 << 30)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("DATA", "CONFIG", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    return tmp_path


@pytest.fixture
def server(own_pool: Pool, home: Path) -> Iterator[Server]:
    with Server(home, pool_environment(own_pool.state), OPTION) as running:
        yield running


def listed(server: Server) -> dict[str, str]:
    specs = server.get("/api/kernelspecs")["kernelspecs"]
    return {name: plain(spec["spec"]["display_name"]) for name, spec in specs.items()}


def plain(name: str) -> str:
    return name.replace("\N{NO-BREAK SPACE}", " ")


def test_kernels_are_listed_by_model_and_size_behind_the_ordinary_ones(
    home: Path, server: Server, own_pool: Pool
) -> None:
    for share, model in ((1.0, "V100"), (0.1, "A100"), (0.03, "V100")):
        kernelspecs.write(kernelspecs.SliceSpec(share, model), home / "data" / "kernels")
    code, _ = server.ask("POST", "/gpukernel/api/sizes", {"share": 0.07, "model": "V100"})
    assert code == 201
    eventually(lambda: "gpu-v100-0.25" in listed(server))
    sizes = ["0.02", "0.03", "0.05", "0.07", "0.1", "0.25", "1.0"]
    assert list(listed(server)) == ["python3", "gpu-a100-0.1", *(f"gpu-v100-{size}" for size in sizes)]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Tesla V100-SXM2-32GB (simulated)", "V100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_a_model_is_called_as_people_call_it_and_found_by_that_name(name: str, short: str) -> None:
    assert short_model(name) == short
    assert short in name


def test_offers_say_how_many_are_free_and_who_would_wait() -> None:
    sizes = sizes_of([V100.name, V100.name], (), [0.02, 1.0])
    assert sizes == [Offered(0.02, "V100"), Offered(1.0, "V100")]
    small, whole = offers_of(sizes, [Chance("free", 655 << 20, 50), Chance("free", 32 << 30, 1)])
    assert (small.words(), whole.words()) == ("655 MiB, 50 free", "32 GiB, 1 free")
    refused = Chance("refused", 32 << 30, 1, sentence="a quota")
    (small,) = offers_of(sizes, [Chance("wait", 655 << 20, 3, waiting=1), refused])
    assert small.words() == "655 MiB, would wait behind 1"
    # What a course offers comes in its order, and only that.
    assert sizes_of([V100.name], (Offered(0.5), Offered(0.1, "V100")), [0.02]) == [
        Offered(0.5),
        Offered(0.1, "V100"),
    ]


def test_a_pool_that_is_slow_costs_a_listing_its_patience_and_no_more() -> None:
    import threading

    asked, answer = threading.Event(), threading.Event()

    def ask() -> tuple[Offer, ...]:
        asked.set()
        answer.wait()
        return (Offer(0.02, "V100", 655 << 20, 50),)

    book = OfferBook(ask, [0.02])
    assert book.read(0.02).note == "the pool is slow to answer"  # and not after the answer, which comes below
    assert asked.wait(5)
    answer.set()
    assert eventually(lambda: book.read().offers[0].free) == 50


def test_the_launcher_lists_what_is_free_now(server: Server, own_pool: Pool, home: Path) -> None:
    eventually(lambda: listed(server)["gpu-v100-0.02"] == "V100 × 0.02 — 655 MiB, 50 free")
    session = server.session("gpu-v100-0.25")
    eventually(lambda: listed(server)["gpu-v100-0.02"].endswith("37 free"))
    with server.kernel(session["kernel"]["id"]) as kernel:
        look = "from cuda.bindings import driver as d; d.cuInit(0); print(d.cuDeviceTotalMem(0)[1] >> 20)"
        assert kernel.run(look) == "8192\n"
    whole = server.session("gpu-v100-0.75", "b.ipynb")  # not listed, and there all the same
    eventually(lambda: listed(server)["gpu-v100-0.02"].endswith("would wait"))
    for one in (session, whole):
        assert server.ask("DELETE", f"/api/sessions/{one['id']}")[0] == 204
    eventually(lambda: listed(server)["gpu-v100-1.0"] == "V100 × 1.0 — 32 GiB, 1 free")
    logo = server.get("/api/kernelspecs")["kernelspecs"]["gpu-v100-0.02"]["resources"]["logo-svg"]
    assert "<svg" in server.get(logo)


def test_when_the_pool_goes_away_the_set_stays_with_a_note_and_a_listing_stays_fast(
    server: Server, own_pool: Pool
) -> None:
    before = listed(server)
    own_pool.kill()
    eventually(lambda: listed(server)["gpu-v100-0.02"] == "V100 × 0.02 — the pool is away")
    assert listed(server).keys() == before.keys()
    status, answer = server.ask(
        "POST",
        "/api/sessions",
        {"path": "a", "name": "a", "type": "notebook", "kernel": {"name": "gpu-v100-0.02"}},
    )
    assert status == 500
    assert "No pool answers" in answer["message"]
    own_pool.start()
    eventually(lambda: listed(server)["gpu-v100-0.02"].endswith("50 free"))


def test_a_listing_takes_less_than_50_ms(own_pool: Pool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    manager = GPUKernelSpecManager()
    eventually(lambda: manager.get_all_specs()["gpu-v100-0.02"]["spec"]["display_name"].endswith("free"))

    def timed() -> float:
        before = time.perf_counter()
        manager.get_all_specs()
        return time.perf_counter() - before

    assert statistics.median(timed() for _ in range(20)) < 0.05


def test_any_language_runs_on_a_slice(own_pool: Pool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base here is another Python's kernelspec with an environment of its own, as a conda environment has it."""
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    other = home / "data" / "kernels" / "my-env"
    other.mkdir(parents=True)
    content = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "My environment",
        "language": "python",
        "env": {"FLAVOUR": "mine"},
    }
    (other / "kernel.json").write_text(json.dumps(content))
    manager = GPUKernelSpecManager(bases=["python3", "my-env", "no-such"])
    name = "gpu-v100-0.02-my-env"
    specs = eventually(
        lambda: (s := manager.get_all_specs()) and "free" in s[name]["spec"]["display_name"] and s
    )
    assert re.fullmatch(
        r"V100 × 0.02 \(My environment\) — 655 MiB, 50 free", plain(specs[name]["spec"]["display_name"])
    )
    kernel = KernelManager(kernel_name=name, kernel_spec_manager=manager)
    kernel.start_kernel()
    try:
        assert [lease.slices[0].memory_bytes >> 20 for lease in own_pool.live()] == [655]
        client = kernel.blocking_client()
        client.start_channels()
        client.wait_for_ready(60)
        reply = client.execute_interactive(
            "import os; assert os.environ['FLAVOUR'] == 'mine' and os.environ['GPUKERNEL_LEASE_FILE']",
            timeout=60,
        )
        assert reply["content"]["status"] == "ok"
        client.stop_channels()
    finally:
        kernel.shutdown_kernel(now=True)


@pytest.mark.skipif(
    not Path("/usr/share/jupyter/kernels/ir").exists(), reason="no R kernel (r-cran-irkernel)"
)
def test_r_sees_the_gpu_of_its_slice(own_pool: Pool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    kernel = KernelManager(
        kernel_name="gpu-v100-0.02-ir", kernel_spec_manager=GPUKernelSpecManager(bases=["ir"])
    )
    kernel.start_kernel()
    said: list[str] = []
    try:
        client = kernel.blocking_client()
        client.start_channels()
        client.wait_for_ready(60)
        reply = client.execute_interactive(
            'in_path <- function(name) Filter(file.exists, file.path(strsplit(Sys.getenv("LD_LIBRARY_PATH"), ":")[[1]], name))[1]\n'
            'dyn.load(in_path("libcuda.so.1")); dyn.load(in_path("libnvidia-ml.so.1")); invisible(.C("nvmlInit_v2"))\n'
            'cat(.C("cuDriverGetVersion", v = 0L)$v %/% 1000, .C("nvmlDeviceGetCount_v2", n = 0L)$n)',
            timeout=60,
            output_hook=lambda message: said.append(message["content"].get("text", "")),
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        client.stop_channels()
    finally:
        kernel.shutdown_kernel(now=True)
    version, devices = "".join(said).split()
    assert int(version) >= 12
    assert devices == "1"


def test_a_kernelspec_that_somebody_installed_keeps_its_settings(
    own_pool: Pool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    kernelspecs.write(kernelspecs.SliceSpec(0.02, wait_seconds=3), home / "data" / "kernels")
    manager = GPUKernelSpecManager()
    spec = manager.get_kernel_spec("gpu-v100-0.02")
    assert spec.metadata["kernel_provisioner"]["config"]["wait_seconds"] == 3
    eventually(lambda: plain(manager.get_kernel_spec("gpu-v100-0.02").display_name).endswith("50 free"))


def test_a_kernelspec_whose_size_is_no_number_hides_no_other_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_STATE", str(home / "no pool here"))
    kernels = home / "data" / "kernels"
    for share in (0.02, 0.1):
        kernelspecs.write(kernelspecs.SliceSpec(share), kernels)
    (broken,) = kernels.glob("*0.1/kernel.json")
    content = json.loads(broken.read_text())
    content["metadata"]["kernel_provisioner"]["config"]["share"] = "a tenth"
    broken.write_text(json.dumps(content))
    assert {"python3", "gpu-v100-0.02"} <= GPUKernelSpecManager().get_all_specs().keys()


def test_a_process_has_one_lease_manager_whoever_asks_first() -> None:
    code = (
        "import threading\nfrom gpukernel.jupyter.lease_manager import lease_manager\n"
        "found, go = [], threading.Barrier(20)\n"
        "def ask(): go.wait(); found.append(lease_manager())\n"
        "threads = [threading.Thread(target=ask) for _ in range(20)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(len({id(one) for one in found}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
