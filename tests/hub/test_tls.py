"""A Hub and its servers at a pool that is reached over TLS only, and asks for client certificates."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_client_certificates import REQUIRE
from tests.cli.test_tls import Secured, ask, done
from tests.conftest import eventually
from tests.hub.conftest import COURSES
from tests.hub.hub import Hub, environment_of
from tests.hub.test_servers import environment


def test_a_server_has_a_certificate_that_comes_and_goes_with_its_token(home: Path, tmp_path: Path) -> None:
    secured = Secured(tmp_path, *REQUIRE)
    agent = secured.agent("--pool", str(secured.file("gpu1", "--scope", "agent")))
    courses = tmp_path / "courses.yaml"
    courses.write_text(COURSES)
    # The Hub's token in its two ways: the address is the file, or the file lies beside an address.
    address, file = f"tls://localhost:{secured.port}", str(secured.file("hub", "--scope", "admin"))
    options = {"pool": address, "token_file": file, "courses": str(courses)}
    authority = {"GPUKERNEL_POOL_CA": str(secured.authority)}
    try:
        done("quota", "import", str(courses), "--pool", file)
        with Hub(home, environment_of(tmp_path / "unused", home) | authority, options) as hub:
            hub.start_server("anna")
            single = hub.server("anna")
            eventually(lambda: single.start_kernel("gpu-v100-0.1").status_code == 201)
            (lease,) = [one for one in secured.leases() if one.state == "live"]
            assert (lease.holder.person, lease.holder.course) == ("anna", "ml101")
            its = environment(hub.pid("anna"))
            names = ("GPUKERNEL_POOL", *(f"GPUKERNEL_POOL_{name}" for name in ("TOKEN", "CA", "CERTIFICATE")))
            parts = {name: its[name] for name in names}
            assert "gpu1/0" in done("list-gpus", "--json", **parts)
            # The token alone is worth nothing, nor is it with another server's certificate.
            assert "lets nobody in without" in ask(its["GPUKERNEL_POOL"], **{**parts, "GPUKERNEL_POOL_CERTIFICATE": ""})  # fmt: skip
            hub.start_server("both", {"course": "ml101"})
            other = environment(hub.pid("both"))["GPUKERNEL_POOL_CERTIFICATE"]
            assert "was not made for this token" in ask(its["GPUKERNEL_POOL"], 4, **{**parts, "GPUKERNEL_POOL_CERTIFICATE": other})  # fmt: skip
            hub.stop_server("anna")
            assert "does not know this token" in ask(its["GPUKERNEL_POOL"], 4, **parts)
    finally:
        agent.stop()
        secured.pool.stop()
