"""Single-user images, built and run by podman: a notebook computes on a slice, and the Hub's image signs people in to JupyterLab in them.

Minutes and gigabytes: ``make images-test FRAMEWORKS="numba tensorflow jax pytorch"``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import websocket

from tests.cli.test_tls import Secured
from tests.conftest import eventually
from tests.deploy.images.builder import BASE, Builder, skip_without
from tests.deploy.images.hub_container import ACCOUNT, HubContainer
from tests.deploy.images.programs import PROGRAMS
from tests.hub.hub import Hub
from tests.jupyter.server import KernelSocket
from tools.bill_of_materials import bill_of_materials
from tools.images import IMAGES, root_of

FRAMEWORKS = os.environ.get("GPUKERNEL_IMAGES", "").split()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not FRAMEWORKS, reason="minutes and gigabytes: make images-test"),
]

COURSES = (
    "courses: {ml101: {title: Machine learning, students: [anna], offers: [V100 x 0.02, H100 x 0.02]}}\n"
)
# Megabytes beside the base: bounds that a package too many passes.
BOUNDS = {"numba": 1400, "tensorflow": 3000, "jax": 2000, "pytorch": 3700}
NVIDIA_S = (
    "libcublas*.so*",
    "libcudnn*.so*",
    "libcudart*.so*",
    "libcufft*.so*",
    "libcusolver*.so*",
    "libnccl*.so*",
)

EXECUTE = """
import subprocess, sys, nbformat
from nbclient import NotebookClient

subprocess.run(["gpukernel", "kernelspec", "install", "--user", "--model", sys.argv[3], "--share", "0.02"], check=True, capture_output=True)
cell = nbformat.v4.new_code_cell(sys.argv[1])
done = NotebookClient(nbformat.v4.new_notebook(cells=[cell]), kernel_name=sys.argv[2], timeout=1200).execute()
print("".join(one.get("text", "") for one in done.cells[0].outputs))
"""
# A spawner that leaves to this module what the Hub in its container may not do: to start another one.
ASKING = """
import json, pathlib
from jupyterhub.spawner import Spawner
from jupyterhub.utils import random_port

class Asking(Spawner):
    @property
    def place(self):
        return pathlib.Path({home!r}) / (self.user.name + ".asked")

    async def start(self):
        self.port = random_port()
        asked = {{"environment": self.get_env(), "command": self.cmd + self.get_args()}}
        draft = self.place.with_suffix(".draft")
        draft.write_text(json.dumps(asked))
        draft.rename(self.place)
        return "127.0.0.1", self.port

    async def poll(self):
        return None if self.place.exists() else 0

    async def stop(self, now=False):
        self.place.unlink(missing_ok=True)

c.JupyterHub.spawner_class = Asking
c.Spawner.cmd = ["jupyterhub-singleuser"]
c.Spawner.args = ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
c.Spawner.environment = {{}}
"""


@pytest.fixture(scope="module", params=FRAMEWORKS or ["numba"])
def framework(request: pytest.FixtureRequest, builder: Builder) -> Iterator[str]:
    """The name of a framework whose image is built; it goes before the next one is."""
    skip_without("podman", "runc")
    name = str(request.param)
    assert f"singleuser-{name}" in IMAGES, f"there is no image singleuser-{name}"
    began = time.monotonic()
    builder.image(f"singleuser-{name}")
    print(f"singleuser-{name}: built in {time.monotonic() - began:.0f} s", file=sys.stderr)
    yield name
    builder.podman("rm", "--all", "--force", "--time", "0")
    builder("rm", "--all", check=False)
    builder.forget(f"singleuser-{name}")


def test_it_is_small_and_its_bill_names_what_is_in_it(builder: Builder, framework: str) -> None:
    image = builder.image(f"singleuser-{framework}")
    _, root = root_of(image, builder.words)
    own = root / "opt/gpukernel"
    megabytes = sum(file.lstat().st_size for file in own.rglob("*")) / 1e6
    print(f"singleuser-{framework}: {megabytes:.0f} MB beside the base", file=sys.stderr)
    assert megabytes < BOUNDS[framework]
    if framework != "numba":  # they find a slice's, and have none of NVIDIA's
        found = [file for name in NVIDIA_S for file in own.rglob(name)]
        assert found
        assert all("/gpukernel/native/" in str(file.resolve()) for file in found), found
    text = bill_of_materials(root, f"localhost/singleuser-{framework}:1", "1", BASE, image)
    for name in ("gpukernel", "jupyterlab", {"pytorch": "torch"}.get(framework, framework)):
        assert f'"pkg:pypi/{name}@' in text


def notebook(builder: Builder, secured: Secured, framework: str, more: str = "") -> tuple[str, ...]:
    """Return podman's words for a notebook of the framework's program, and `more`, in a container of its image."""
    program = PROGRAMS[framework]
    connection = builder.home / "anna.pool"
    if not connection.exists():
        shutil.copy(secured.file("anna", "--person", "anna"), connection)
        os.chown(connection, ACCOUNT, ACCOUNT)
    words = ["--network", "host", "-v", f"{connection}:/run/anna.pool:ro"]
    words += ["--env", "GPUKERNEL_POOL=/run/anna.pool", f"localhost/singleuser-{framework}:1"]
    model = program.kernel.split("-")[1]
    return (*words, "python3", "-c", EXECUTE, program.code + more, program.kernel, model)


def inside(first: int) -> dict[int, bytes]:
    """Return the processes of the container whose first one is `first`, and the words of each."""
    space = os.readlink(f"/proc/{first}/ns/pid")
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns" / "pid") == space:
                found[int(folder.name)] = (folder / "cmdline").read_bytes()
    return found


def test_a_notebook_computes_on_its_slice(builder: Builder, secured: Secured, framework: str) -> None:
    program = PROGRAMS[framework]
    began = time.monotonic()
    done = builder.podman("run", "--rm", *notebook(builder, secured, framework), timeout=600)
    print(f"singleuser-{framework}: a notebook in {time.monotonic() - began:.0f} s", file=sys.stderr)
    assert program.shown in done.stdout, (done.stdout[-3000:], done.stderr[-3000:])
    eventually(lambda: not secured.leases())


def test_a_kernel_that_is_killed_frees_its_slice(builder: Builder, secured: Secured, framework: str) -> None:
    # And so does a container whose first process is killed, and with it all that could say so.
    for name, mark in (("kernel", b"ipykernel_launcher"), ("container", b"nbclient")):
        words = notebook(
            builder, secured, framework, "\nopen('/tmp/done', 'w'); import time; time.sleep(900)"
        )
        begun = builder.podman("run", "--detach", "--name", name, *words)
        assert begun.returncode == 0, begun.stderr
        first = builder.podman.process(name)
        eventually(Path(f"/proc/{first}/root/tmp/done").exists, 600)
        assert len([one for one in secured.leases() if one.state == "live"]) == 1
        (victim,) = [pid for pid, spoken in inside(first).items() if mark in spoken]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: not secured.leases(), 30)
        builder.podman("rm", "--force", "--time", "0", name)


def test_off_any_slice_it_computes_on_the_processor(builder: Builder, framework: str) -> None:
    program = PROGRAMS[framework]
    if not program.off:
        pytest.skip(f"{framework}'s program needs a slice")
    words = ("run", "--rm", "--network", "none", f"localhost/singleuser-{framework}:1")
    done = builder.podman(*words, "python3", "-c", program.code, timeout=600)
    assert done.stdout.strip().endswith(program.off), (done.stdout[-3000:], done.stderr[-3000:])


@pytest.fixture
def hub(builder: Builder, secured: Secured, framework: str) -> Iterator[Hub]:
    home = builder.home / "jupyterhub"
    with HubContainer(builder, secured, COURSES, extra=ASKING.format(home=str(home))) as running:
        yield running


def test_the_hub_s_image_signs_people_in_to_a_server_of_it(
    builder: Builder, secured: Secured, framework: str, hub: Hub
) -> None:
    program = PROGRAMS[framework]
    place = hub.home / "anna.asked"
    with ThreadPoolExecutor() as threads:
        started = threads.submit(hub.start_server, "anna")
        eventually(place.exists)
        asked = json.loads(place.read_text())
        given = [
            word for name, value in asked["environment"].items() for word in ("--env", f"{name}={value}")
        ]
        words = ("run", "--detach", "--name", "anna", "--network", "host", *given)
        made = builder.podman(*words, f"localhost/singleuser-{framework}:1", *asked["command"])
        assert made.returncode == 0, made.stderr
        started.result(200)
    single = hub.server("anna")
    session = single.start_kernel(program.kernel)
    assert session.status_code == 201, session.text
    (lease,) = [one for one in secured.leases() if one.state == "live"]
    assert (lease.holder.person, lease.holder.course) == ("anna", "ml101")
    address = f"{single.url.replace('http', 'ws', 1)}api/kernels/{session.json()['kernel']['id']}/channels"
    header = {"Authorization": f"token {single.token}"}
    link = websocket.create_connection(address, timeout=300, suppress_origin=True, header=header)
    try:
        assert program.shown in KernelSocket(link).run(program.code)
    finally:
        link.close()
    whom = builder.podman("exec", "anna", "sh", "-c", "id -u; touch /opt/gpukernel/bin/more")
    assert whom.stdout == f"{ACCOUNT}\n"
    assert "Permission denied" in whom.stderr
    builder.podman("rm", "--force", "anna")
    hub.stop_server("anna")
    eventually(lambda: not secured.leases())


def test_people_s_own_packages_come_to_their_homes_and_the_image_s_stay(
    builder: Builder, framework: str
) -> None:
    wheels = builder.home / f"singleuser-{framework}" / "wheels"
    with zipfile.ZipFile(builder.home / "anothers-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("anothers.py", "")
        wheel.writestr(
            "anothers-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: anothers\nVersion: 1.0\n"
        )
        wheel.writestr(
            "anothers-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("anothers-1.0.dist-info/RECORD", "")
    words = ["run", "--rm", "--network", "none", "-v", f"{wheels}:/srv/wheels:ro"]
    words += ["-v", f"{wheel.filename}:/srv/anothers-1.0-py3-none-any.whl:ro"]
    install = "pip install --quiet --no-index --no-deps"
    more = f"{install} /srv/anothers-*.whl && python3 -c 'import anothers; print(anothers.__file__)'; "
    more += f"{install} --force-reinstall --find-links /srv/wheels six"
    done = builder.podman(*words, f"localhost/singleuser-{framework}:1", "sh", "-c", more)
    assert done.stdout.startswith("/home/jovyan/.local/lib/python"), done.stderr
    assert "Will not install to the user site" in done.stderr


def test_the_same_input_gives_the_same_image(builder: Builder, framework: str) -> None:
    image = builder.image(f"singleuser-{framework}")
    builder.podman("rm", "--all", "--force", "--time", "0")
    builder("rm", "--all", check=False)
    assert image == builder.again(f"singleuser-{framework}")
