"""Images of pool and agent, built by buildah without a network on a Debian that debootstrap makes, and started."""

from __future__ import annotations

import json

import pytest

from tests.deploy.images.builder import BASE, Builder
from tools.bill_of_materials import bill_of_materials
from tools.images import root_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.thorough
def test_the_same_input_gives_the_same_image(builder: Builder) -> None:
    first = builder.image("pool")
    assert builder.again("pool") == first


def test_the_pool_runs_without_rights_and_has_nothing_that_installs(builder: Builder) -> None:
    container, root = root_of(builder.image("pool"), builder.words)
    settings = json.loads(builder("inspect", "--type", "image", "localhost/pool:1"))["OCIv1"]["config"]
    assert settings["User"] == "65532:65532"
    assert settings["Entrypoint"] == ["/opt/gpukernel/bin/gpukernel"]

    def run(*words: str, check: bool = True) -> str:
        return builder("run", "--isolation", "chroot", container, "--", *words, check=check)

    assert run("id", "-u") == "65532"
    said = run("timeout", "20", "/opt/gpukernel/bin/gpukernel", "pool", "--state", "/tmp/state", check=False)
    assert "The pool is ready at unix:/tmp/state/pool.sock" in said
    imports = "import psycopg, lightkube, hub_spawner, gpukernel.native as n; print(n.shim_dir(), n.worker_executable())"
    assert "/opt/gpukernel/" in run("/opt/gpukernel/bin/python3", "-c", imports)
    assert "Permission denied" in run("touch", "/opt/gpukernel/bin/more", check=False)
    own = root / "opt/gpukernel"
    assert not list(own.glob("lib/python3*/site-packages/pip"))
    assert not [
        file for file in own.rglob("*") if not file.is_symlink() and file.stat().st_mode & 0o7022 & ~0o1000
    ]
    # Nothing of where it was made.
    assert not list(own.rglob("direct_url.json"))
    megabytes = sum(file.lstat().st_size for file in own.rglob("*")) / 1e6
    assert megabytes < 300, f"{megabytes:.0f} MB beside the base"


@pytest.mark.thorough
def test_the_bill_names_all_that_is_in_the_image(builder: Builder) -> None:
    _, root = root_of(builder.image("pool"), builder.words)
    text = bill_of_materials(root, "localhost/pool:1", "1", BASE, builder.image("pool"))
    assert text == bill_of_materials(root, "localhost/pool:1", "1", BASE, builder.image("pool"))
    named = {part["purl"].partition("@")[0] for part in json.loads(text)["components"]}
    wheels = {file.name.partition("-")[0] for file in (builder.home / "pool/wheels").glob("*.whl")} - {"pip"}
    assert {f"pkg:pypi/{wheel.lower().replace('_', '-')}" for wheel in wheels} <= named
    assert {"pkg:pypi/gpukernel", "pkg:deb/debian/libc6"} <= named
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="needs cyclonedx-python-lib[json-validation]"
    )
    schema = pytest.importorskip("cyclonedx.schema")
    checker = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert checker.validate_str(text) is None
    assert checker.validate_str(text.replace('"container"', '"vessel"')) is not None


@pytest.mark.thorough
def test_the_agent_s_workers_run_in_its_image(builder: Builder) -> None:
    container, _ = root_of(builder.image("agent"), builder.words)
    script = (
        "cd /tmp && gpukernel up --simulate v100 --state /tmp/state > /tmp/said 2>&1 & "
        "for i in $(seq 300); do grep -q ready /tmp/said 2>/dev/null && break; sleep 0.1; done; "
        "GPUKERNEL_STATE=/tmp/state gpukernel run -p 0.02 --wait 30s -- python3 -c '"
        'import ctypes; d = ctypes.CDLL("libcuda.so.1"); d.cuInit(0); p = ctypes.c_void_p(); '
        "n = ctypes.c_size_t(); t = ctypes.c_size_t(); d.cuDevicePrimaryCtxRetain(ctypes.byref(p), 0); "
        'd.cuCtxSetCurrent(p); d.cuMemGetInfo_v2(ctypes.byref(n), ctypes.byref(t)); print("slice", t.value >> 20)\'; '
        "cat /tmp/said; kill %1"
    )
    said = builder("run", "--isolation", "chroot", container, "--", "sh", "-c", script, check=False)
    assert "slice 655" in said, said
