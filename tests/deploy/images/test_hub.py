"""The Hub's image, built as those of pool and agent, and run by podman: people sign in, and servers of courses lease from a pool with TLS."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.cli.test_tls import Secured
from tests.deploy.images.builder import BASE, Builder
from tests.deploy.images.hub_container import ACCOUNT, HubContainer
from tests.hub.conftest import COURSES
from tests.hub.hub import Hub
from tools.bill_of_materials import bill_of_materials
from tools.images import root_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("GPUKERNEL_IMAGES"), reason="builds the Hub's image, minutes: make images-test"
    ),
]

# A server that is in no need of JupyterLab, which is not in this image.
LIGHT = Path(__file__).parents[2] / "hub" / "light_server.py"
EXTRA = 'c.Spawner.cmd = [sys.executable, "/srv/light_server.py"]\n'


@pytest.fixture(scope="module")
def hub(builder: Builder, secured: Secured) -> Iterator[Hub]:
    volumes = [f"{LIGHT}:/srv/light_server.py:ro"]
    with HubContainer(builder, secured, COURSES, extra=EXTRA, volumes=volumes) as running:
        yield running


def test_the_same_input_gives_the_same_image(builder: Builder) -> None:
    assert builder.image("hub") == builder.again("hub")


def test_people_sign_in_and_see_their_courses(hub: Hub) -> None:
    page = hub.browse("both").get(f"{hub.url}/hub/spawn/both", timeout=60)
    assert page.status_code == 200
    assert "Machine learning" in page.text
    assert "free now" in page.text
    console = hub.browse("prof").get(f"{hub.url}/services/gpukernel/course/ml101", timeout=60)
    assert "Machine learning" in console.text


def test_a_course_s_server_leases_in_its_name(hub: Hub, secured: Secured) -> None:
    hub.start_server("anna")
    started = hub.server("anna").ask("POST", "/api/kernels", {"name": "gpu-v100-0.02"})
    assert started.status_code == 201, started.text
    (lease,) = [one for one in secured.leases() if one.state == "live"]
    assert (lease.holder.person, lease.holder.course) == ("anna", "ml101")
    hub.stop_server("anna")
    assert not [one for one in secured.leases() if one.state == "live"]


def test_what_the_chart_of_zero_to_jupyterhub_imports_and_starts_is_there(builder: Builder, hub: Hub) -> None:
    imports = "import kubespawner, kubernetes_asyncio.client, oauthenticator.generic, psycopg, pycurl"
    said = builder.podman("exec", "hub", "python3", "-c", imports)
    assert said.returncode == 0, said.stderr
    culler = builder.podman("exec", "hub", "python3", "-m", "jupyterhub_idle_culler", "--help")
    assert "--timeout" in culler.stdout, culler.stderr
    assert requests.get(f"{hub.url}/hub/health", timeout=60).status_code == 200  # the chart's probes


def test_it_runs_without_rights_is_small_and_its_bill_names_what_is_in_it(builder: Builder, hub: Hub) -> None:
    whom = builder.podman("exec", "hub", "sh", "-c", "id -u; touch /opt/gpukernel/bin/more")
    assert whom.stdout == f"{ACCOUNT}\n"
    assert "Permission denied" in whom.stderr
    image = builder.image("hub")
    _, root = root_of(image, builder.words)
    own = root / "opt/gpukernel"
    megabytes = sum(file.lstat().st_size for file in own.rglob("*")) / 1e6
    print(f"hub: {megabytes:.0f} MB beside the base", file=sys.stderr)
    assert megabytes < 400
    assert not list(own.glob("lib/python3*/site-packages/pip"))
    text = bill_of_materials(root, "localhost/hub:1", "1", BASE, image)
    for name in ("gpukernel", "jupyterhub", "jupyterhub-kubespawner", "pycurl"):
        assert f'"pkg:pypi/{name}@' in text
