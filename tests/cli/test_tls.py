"""TLS between pool, GPU servers and clients: real processes over TCP, and every way in which it can be set up wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from gpukernel.client.pool import PoolClient
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Lease
from gpukernel.jupyter import kernelspecs
from gpukernel.pool.auth.certificate_authority import CERTIFICATE_DAYS, init_authority, renew_certificate
from gpukernel.pool.auth.certificates import ReloadingCertificate, read_certificate
from gpukernel.pool.rpc.server import prepare_state, serve
from tests.cli.test_commands import Service
from tests.conftest import eventually
from tests.ports import free_port

LOOK = "from cuda.bindings import driver as d; d.cuInit(0); print(d.cuDeviceGetCount()[1])"


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpukernel.cli", *arguments],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(*arguments: str, **environment: str) -> str:
    finished = command(*arguments, **environment)
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


class Secured:
    """A pool with TLS, as “gpukernel pool init” and the steps that it prints make it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.state, self.port, self.options = folder / "pool", free_port(), options
        self.said = done("pool", "init", "--state", str(self.state), "--name", "localhost")
        self.pool = self.start()
        self.authority = self.state / "tls" / "ca.pem"

    def start(self) -> Service:
        listen = ("--listen", f"127.0.0.1:{self.port}", "--state", str(self.state))
        return Service("pool", *listen, *self.options)

    def file(self, name: str, *options: str) -> Path:
        """Return a connection file of a new token."""
        path = self.state.parent / f"{name}.pool"
        done("token", "create", name, *options, "--file", str(path), "--state", str(self.state))
        return path

    def agent(self, *options: str, name: str = "gpu1", simulate: str = "v100") -> Service:
        folder = str(self.state.parent / name)
        return Service(
            "agent",
            *options,
            "--simulate",
            simulate,
            "--name",
            name,
            "--tcp-host",
            "127.0.0.1",
            "--state",
            folder,
        )

    def leases(self) -> list[Lease]:
        async def ask() -> list[Lease]:
            async with PoolClient(resolve_address(None, self.state)) as client:
                return (await client.leases())[0]

        return asyncio.run(ask())

    def serial(self) -> str:
        """Return the number of the certificate that it shows now."""
        context = ssl.create_default_context(cafile=str(self.authority))
        with (
            socket.create_connection(("127.0.0.1", self.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            shown = secure.getpeercert()
            assert shown is not None
            return str(shown["serialNumber"])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("tls"))
    yield made
    made.pool.stop()


def test_one_file_is_all_that_a_gpu_server_a_program_and_a_kernel_need(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"ready at tls://localhost:{secured.port}" in secured.pool.line
    agent = secured.agent("--pool", str(secured.file("gpu1", "--scope", "agent")))
    try:
        assert f"to tls://localhost:{secured.port}" in agent.line
        anna = secured.file("anna", "--person", "anna")
        assert anna.stat().st_mode & 0o777 == 0o600
        run = ("run", "-p", "0.1", "--", sys.executable, "-c", LOOK)
        assert done(*run, GPUKERNEL_POOL=str(anna)) == "1\n"
        assert "certificate: good for 7" in done("health", GPUKERNEL_POOL=str(anna))
        # The token and the authority apart, as a Hub hands them to a container: the authority itself is enough.
        parts = {"GPUKERNEL_POOL_TOKEN_FILE": str(anna), "GPUKERNEL_POOL_CA": secured.authority.read_text()}
        assert done(*run, **parts, GPUKERNEL_POOL=f"tls://localhost:{secured.port}") == "1\n"

        monkeypatch.setenv("GPUKERNEL_POOL", str(anna))
        for kind in ("DATA", "RUNTIME"):
            monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
        kernelspecs.write(
            kernelspecs.SliceSpec(0.02, name="slice", wait_seconds=60), tmp_path / "data" / "kernels"
        )
        manager = KernelManager(kernel_name="slice")
        manager.start_kernel()
        try:
            (lease,) = [lease for lease in secured.leases() if lease.state == "live"]
            assert (lease.key, lease.holder.person) == (manager.kernel_id, "anna")
        finally:
            manager.shutdown_kernel(now=True)
    finally:
        agent.stop()


def test_the_authority_is_its_owners_alone_and_is_never_overwritten(secured: Secured, tmp_path: Path) -> None:
    files = {path.name: path for path in (secured.state / "tls").iterdir()}
    assert set(files) == {"ca.pem", "ca.key", "pool.pem"}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    assert (secured.state / "tls").stat().st_mode & 0o777 == 0o700
    before = {name: path.read_bytes() for name, path in files.items()}
    again = command("pool", "init", "--state", str(secured.state), "--name", "elsewhere")
    assert (again.returncode, again.stdout) == (1, "")
    assert "exists already and stays as it is" in again.stderr
    assert {name: path.read_bytes() for name, path in files.items()} == before
    assert {path.name for path in secured.state.iterdir() if path.name.startswith("tls")} == {"tls"}
    for words in ("--scope agent --file gpu1.pool", "GPUKERNEL_POOL=/path/hub.pool", "init --renew"):
        assert words in secured.said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Say by which name or address"),
        (["--name", "a b"], "“a b” is no host name"),
        (["--name", "pool..example"], "is no host name"),
        (["--name", "*.example.edu"], "is no host name"),
        (["--renew"], "to renew; make it with"),
    ],
)
def test_a_certificate_for_nothing_is_not_made(tmp_path: Path, options: list[str], words: str) -> None:
    refused = command("pool", "init", "--state", str(tmp_path), *options)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def ask(address: str, status: int = 3, **environment: str) -> str:
    """Return the one sentence that a client says of why it does not get in, with the exit status of that kind."""
    refused = command("list-gpus", "--pool", address, **environment)
    assert (refused.returncode, refused.stdout) == (status, "")
    assert refused.stderr.startswith("gpukernel: ")
    assert refused.stderr.count("\n") == 1, refused.stderr
    return refused.stderr


def test_an_expired_certificate_is_named_by_pool_client_and_server_until_it_is_renewed(
    tmp_path: Path,
) -> None:
    state, port = prepare_state(tmp_path / "pool"), free_port()
    long_ago = time.time() - (CERTIFICATE_DAYS + 1) * 86400
    init_authority(state, ["localhost"], long_ago)
    pool = Service("pool", "--listen", f"127.0.0.1:{port}", "--state", str(state))
    waiting: subprocess.Popen[str] | None = None
    try:
        assert pool.process.stderr is not None
        assert "certificate has expired; “gpukernel pool init --renew”" in pool.process.stderr.readline()
        here = f"tls://localhost:{port}"
        named = {"GPUKERNEL_POOL_CA": str(state / "tls" / "ca.pem")}
        assert f"The certificate of the pool at {here} has expired" in ask(here, **named)
        options = ("--pool", here, "--token-file", str(state / "agent.token"), "--simulate", "v100")
        waiting = start("agent", *options, "--state", str(tmp_path / "gpu1"), **named)
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        expired = f"The certificate of the pool at {here} has expired"
        assert any(expired in line for line in waiting.stderr)  # reads up to the line that says it
        done("pool", "init", "--renew", "--state", str(state))
        assert "The agent is ready" in waiting.stdout.readline()  # neither it nor the pool was started again
    finally:
        pool.stop()
        if waiting is not None:
            waiting.terminate()
            assert "expired" not in waiting.communicate(timeout=30)[1]  # it said that once


@pytest.mark.thorough
def test_a_renewed_certificate_is_shown_at_once_and_leases_stay(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    agent = secured.agent("--pool", str(secured.file("gpu1", "--scope", "agent")))
    anna = secured.file("anna", "--person", "anna")
    program = f"{LOOK}\nimport sys; sys.stdout.flush(); input(); print(d.cuDeviceGetCount()[1])"
    run = ("run", "-p", "0.1", "--", sys.executable, "-c", program)
    holding = start(*run, GPUKERNEL_POOL=str(anna))
    try:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "1\n"
        (before,), first = secured.leases(), secured.serial()
        assert "nothing new" in done("pool", "init", "--renew", "--state", str(secured.state))
        assert secured.serial() != first
        assert "gpu1/0" in done("list-gpus", "--json", GPUKERNEL_POOL=str(anna))
        secured.pool.stop()
        secured.pool = secured.start()
        eventually(lambda: '"available": true' in done("list-gpus", "--json", GPUKERNEL_POOL=str(anna)))
        assert [(lease.id, lease.state) for lease in secured.leases()] == [(before.id, "live")]
        assert holding.communicate("\n", timeout=60)[0] == "1\n"
        assert holding.returncode == 0
    finally:
        holding.kill()
        holding.wait()
        agent.stop()
        secured.pool.stop()


def test_a_certificate_of_ones_own_is_shown_and_followed(tmp_path: Path) -> None:
    """``--tls-cert``, as certbot and a university's authority give them: two files that change one after the other."""
    state = prepare_state(tmp_path / "pool")
    init_authority(prepare_state(tmp_path / "a"), ["localhost", "::1"], time.time())
    source = tmp_path / "a" / "tls" / "pool.pem"
    both = source.read_text()
    cut = both.index("-----BEGIN CERTIFICATE")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    key.write_text(both[:cut])
    chain.write_text(both[cut:])
    said: list[str] = []
    followed = ReloadingCertificate(chain, key, said.append)
    assert followed.look() is None

    port = free_port()

    async def work() -> None:
        async with serve(state, f"127.0.0.1:{port}", certificate=chain, key=key) as running:
            assert running.address == f"tls://localhost:{port}"
            os.environ["GPUKERNEL_POOL_CA"] = str(tmp_path / "a" / "tls" / "ca.pem")
            try:
                async with PoolClient(running.address, (state / "pool.token").read_text().strip()) as client:
                    assert await client.devices() == []
            finally:
                del os.environ["GPUKERNEL_POOL_CA"]

    asyncio.run(work())
    renew_certificate(tmp_path / "a", [], time.time())
    both = source.read_text()
    chain.write_text(both[both.index("-----BEGIN CERTIFICATE") :])
    assert followed.look() is None  # the key has not come yet
    assert [sentence for sentence in said if "is not that of the certificate" in sentence] == said != []
    key.write_text(both[: both.index("-----BEGIN CERTIFICATE")])
    assert followed.look() == read_certificate(source)


def test_a_pool_whose_certificate_cannot_be_used_does_not_start_in_plain_text(tmp_path: Path) -> None:
    state = prepare_state(tmp_path / "pool")
    init_authority(state, ["localhost"], time.time())
    pem = state / "tls" / "pool.pem"
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--state", str(state))
    good = pem.read_text()
    for spoil, words in (
        (lambda: pem.write_text(good[:-300]), "holds no certificate"),
        (lambda: pem.write_text(good[good.index("-----BEGIN CERT") :]), "holds no private key"),
        (pem.unlink, "cannot be read from"),
    ):
        spoil()
        refused = command("pool", *listen)
        assert refused.returncode == 1
        assert words in refused.stderr
        assert refused.stderr.count("\n") == 1
    shutil.rmtree(state / "tls")
    for options, words in (
        (["--tls-key", str(pem)], "needs --tls-cert"),
        (["init", "--listen"], "“gpukernel pool init” has no option --listen."),
    ):
        refused = command("pool", *options)
        assert refused.returncode == 2
        assert words in refused.stderr
    with pytest.raises(PoolError, match="to renew"):
        renew_certificate(state, [], time.time())
