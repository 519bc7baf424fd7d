"""A pool that asks for client certificates: real processes over TCP, and everybody who is not let in."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from jupyter_client.manager import KernelManager

from gpukernel.common.connection import Connection, read_connection_file, write_connection
from gpukernel.jupyter import kernelspecs
from gpukernel.pool.auth.certificate_authority import client_certificate, init_authority
from gpukernel.pool.rpc.server import prepare_state
from tests.cli.test_commands import Service
from tests.cli.test_tls import LOOK, Secured, ask, command, done
from tests.ports import free_port

RUN = ("run", "-p", "0.1", "--", sys.executable, "-c", LOOK)
REQUIRE = ("--client-certificates", "require")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("certified"), *REQUIRE)
    yield made
    made.pool.stop()


def token_of(file: Path) -> str:
    """Return the id of the token in a connection file."""
    return read_connection_file(file).token.partition(".")[0]


def written(connection: Connection, path: Path) -> str:
    path.write_text(write_connection(connection, "made by a test"))
    return str(path)


def test_the_connection_file_is_still_all_that_a_gpu_server_a_program_and_a_kernel_need(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu1 = secured.file("gpu1", "--scope", "agent")
    # The file in two ways: as the pool's address, and beside it.
    agent = secured.agent("--pool", f"tls://localhost:{secured.port}", "--token-file", str(gpu1))
    try:
        assert "The agent is ready" in agent.line
        anna = secured.file("anna", "--person", "anna")
        assert anna.stat().st_mode & 0o777 == 0o600
        assert done(*RUN, GPUKERNEL_POOL=str(anna)) == "1\n"
        assert "client certificate: good for 36" in done("health", GPUKERNEL_POOL=str(anna))
        # In parts, as a Hub hands them to a server: the token, and each certificate itself.
        all_of_it = read_connection_file(anna)
        parts = {
            "GPUKERNEL_POOL": all_of_it.address,
            "GPUKERNEL_POOL_TOKEN": all_of_it.token,
            "GPUKERNEL_POOL_CA": all_of_it.authority,
            "GPUKERNEL_POOL_CERTIFICATE": all_of_it.certificate,
        }
        assert done(*RUN, **parts) == "1\n"
        assert done(*RUN, **{**parts, "GPUKERNEL_POOL_CERTIFICATE": str(anna)}) == "1\n"

        for name, value in parts.items():
            monkeypatch.setenv(name, value)
        for kind in ("DATA", "RUNTIME"):
            monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
        kernelspecs.write(
            kernelspecs.SliceSpec(0.02, name="slice", wait_seconds=60), tmp_path / "data" / "kernels"
        )
        manager = KernelManager(kernel_name="slice")
        manager.start_kernel()
        monkeypatch.delenv("GPUKERNEL_POOL_TOKEN")  # whose token it is does not matter to who looks
        try:
            (lease,) = [lease for lease in secured.leases() if lease.state == "live"]
            assert (lease.key, lease.holder.person) == (manager.kernel_id, "anna")
        finally:
            manager.shutdown_kernel(now=True)
    finally:
        agent.stop()


def test_a_token_is_renewed_with_the_certificate_in_its_file(secured: Secured) -> None:
    file = secured.file("gpu9", "--scope", "agent", "--valid", "100d")
    before, now = read_connection_file(file), time.time()
    said = done("token", "renew", GPUKERNEL_POOL=str(file))
    assert re.fullmatch(rf"Token {token_of(file)} \(gpu9\) is valid until \d{{4}}-\d\d-\d\d\.\n", said)
    after = read_connection_file(file)
    assert replace(after, certificate="") == replace(before, certificate="")
    shown = x509.load_pem_x509_certificate(after.certificate.encode())
    assert after.certificate != before.certificate
    assert shown.not_valid_after_utc.timestamp() == pytest.approx(now + 100 * 86400, abs=120)
    agent = secured.agent("--pool", str(file), name="gpu9")  # is let in with it
    assert "The agent is ready" in agent.line
    agent.stop()
    anna = secured.file("anna's phone", "--person", "anna", "--valid", "5d")
    refused = command("token", "renew", GPUKERNEL_POOL=str(anna))
    assert refused.returncode == 4
    assert "anna asks the pool's administrator" in refused.stderr
    assert (
        f"token: {token_of(anna)} is valid for 5 days" in command("health", GPUKERNEL_POOL=str(anna)).stdout
    )
    assert "until" in done("token", "renew", token_of(anna), "--state", str(secured.state))


def test_health_names_a_token_that_ends_soon(secured: Secured) -> None:
    brief = secured.file("a brief one", "--scope", "service", "--valid", "20h")
    seen = command("health", GPUKERNEL_POOL=str(brief))
    assert seen.returncode == 1
    assert f"token: {token_of(brief)} is valid for 1 days" in seen.stdout
    assert "Renew it with “gpukernel token renew”" in seen.stdout
    seen = command("health", "--state", str(secured.state))
    assert f"a brief one ({token_of(brief)}) 1 days" in seen.stdout
    done("token", "revoke", token_of(brief), "--state", str(secured.state))


def test_the_certificate_names_its_token_and_ends_with_it(secured: Secured) -> None:
    file = secured.file("anna's tablet", "--person", "anna", "--valid", "100d")
    own = read_connection_file(file).certificate
    shown = x509.load_pem_x509_certificate(own.encode())
    assert shown.subject.rfc4514_string() == f"O=anna's tablet,CN={token_of(file)}"
    assert shown.not_valid_after_utc.timestamp() == pytest.approx(time.time() + 100 * 86400, abs=60)
    purposes = shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    key = own[: own.index("-----BEGIN CERT")].splitlines()[1]
    kept = [path for path in secured.state.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert kept == []  # the pool keeps the key nowhere


def test_tls_itself_ends_where_no_certificate_is_shown(secured: Secured) -> None:
    """Not a byte of HTTP/2 is said to who shows none, or another authority's."""

    def hears(certificate: str) -> bytes:
        context = ssl.create_default_context(cafile=str(secured.authority))
        context.set_alpn_protocols(["h2"])
        if certificate:
            file = secured.state.parent / "shown.pem"
            file.write_text(certificate)
            context.load_cert_chain(file)
        with (
            socket.create_connection(("127.0.0.1", secured.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            try:
                return secure.recv(1)
            except OSError:
                return b""

    other = prepare_state(secured.state.parent / "other")
    init_authority(other, ["localhost"], time.time())
    anna = secured.file("hears", "--person", "anna")
    assert hears(read_connection_file(anna).certificate) != b""
    assert hears("") == b""
    assert hears(client_certificate(other, token_of(anna), "anna", 0, time.time())[0]) == b""
    # The pool's own certificate is for the other end of a connection.
    assert hears((secured.state / "tls" / "pool.pem").read_text()) == b""


def test_whoever_is_not_let_in_hears_why(secured: Secured, tmp_path: Path) -> None:
    file, bens = secured.file("mine", "--person", "anna"), secured.file("bens", "--person", "ben")
    mine, ben = read_connection_file(file), read_connection_file(bens)
    identifier, now, day = token_of(file), time.time(), 86400.0
    old, _ = client_certificate(secured.state, identifier, "anna", now - day, now - 2 * day)
    forged_state = prepare_state(tmp_path / "forged")
    init_authority(forged_state, ["localhost"], now)
    forged, _ = client_certificate(forged_state, identifier, "anna", 0, now)
    token = done("token", "create", "t", "--person", "anna", "--state", str(secured.state)).strip()
    of_file = (secured.state / "pool.token").read_text().strip()
    for connection, words in (
        (replace(mine, certificate=""), "lets nobody in without a client certificate, and this connection has none"),
        (replace(mine, certificate=old), "client certificate for the pool at tls://localhost"),
        (replace(mine, certificate=forged), "does not accept this connection's client certificate"),
        # A stolen token is worth nothing with the thief's own certificate, nor a certificate without its token.
        (replace(mine, certificate=ben.certificate), "was not made for this token"),
        (replace(ben, token=token), "was not made for this token"),
        (replace(ben, token=of_file), "This token has no certificate, and the pool asks for one"),
        (replace(ben, token="gpk0.guessed"), "does not know this token"),
    ):  # fmt: skip
        said = ask(written(connection, tmp_path / "tried.pool"), 4 if "token" in words.lower() else 3)
        assert words in said, said
    assert "has expired" in ask(written(replace(mine, certificate=old), tmp_path / "tried.pool"))
    # On the pool's own machine the kernel says who asks; a token that has a certificate is not believed without it.
    socket_address = f"unix:{secured.state}/pool.sock"
    assert "was not made for this token" in ask(socket_address, 4, GPUKERNEL_POOL_TOKEN=mine.token)
    assert done("list-gpus", "--pool", socket_address, GPUKERNEL_POOL_TOKEN=token)


def test_revoking_a_token_ends_its_certificate_and_what_a_gpu_server_says(
    secured: Secured, tmp_path: Path
) -> None:
    gpu2, anna = secured.file("gpu2", "--scope", "agent"), secured.file("gone", "--person", "anna")
    agent = secured.agent("--pool", str(gpu2), name="gpu2")
    try:
        for file in (gpu2, anna):
            done("token", "revoke", token_of(file), "--state", str(secured.state))
        assert "does not know this token" in ask(str(anna), 4)
        ben = secured.file("ben", "--person", "ben")
        thief = replace(read_connection_file(ben), certificate=read_connection_file(anna).certificate)
        assert "was not made for this token" in ask(written(thief, tmp_path / "thief.pool"), 4)
        _, said = agent.process.communicate(timeout=30)  # it ends by itself
        assert "does not accept this agent's token" in said
    finally:
        agent.process.kill()
        agent.process.communicate()


def test_health_says_thirty_days_before_whose_certificate_ends(secured: Secured) -> None:
    short = secured.file("short", "--person", "anna", "--valid", "20d")
    mine = command("health", GPUKERNEL_POOL=str(short))
    assert mine.returncode == 1
    assert "client certificate: good for 20 days" in mine.stdout
    assert "works beside the old one" in mine.stdout
    everybodys = command("health", "--state", str(secured.state)).stdout
    assert "client certificates: good for: " in everybodys
    assert f"short ({token_of(short)}) 20 days" in everybodys
    listed = done("token", "list", "--json", "--state", str(secured.state))
    assert '"certificate_expires": 0.0' not in listed.split(token_of(short))[1].split("}")[0]


def test_files_are_given_certificates_before_they_are_asked_for(tmp_path: Path) -> None:
    """So that switching is one restart."""
    secured = Secured(tmp_path)
    try:
        anna = secured.file("anna", "--person", "anna")
        assert "BEGIN PRIVATE KEY" in anna.read_text()
        assert "no devices" in done("list-gpus", GPUKERNEL_POOL=str(anna))
        secured.pool.stop()
        secured.options = REQUIRE
        secured.pool = secured.start()
        assert "shows a client certificate" in secured.pool.line
        assert "no devices" in done("list-gpus", GPUKERNEL_POOL=str(anna))
        # The authority's key lies elsewhere: nobody is cut off, but nobody is added.
        key = secured.state / "tls" / "ca.key"
        key.rename(tmp_path / "ca.key")
        assert "no devices" in done("list-gpus", GPUKERNEL_POOL=str(anna))
        made = command("token", "create", "b", "--person", "b", "--file", str(tmp_path / "b"), "--state", str(secured.state))  # fmt: skip
        assert "No client certificate can be made" in made.stderr
        assert f"{key} cannot be read" in made.stderr
        assert not (tmp_path / "b").exists()
    finally:
        secured.pool.stop()


def test_a_pool_that_could_not_check_certificates_does_not_start(tmp_path: Path) -> None:
    refused = command("pool", "--listen", f"127.0.0.1:{free_port()}", "--state", str(tmp_path), *REQUIRE)
    assert refused.returncode == 1
    assert "make it first with “gpukernel pool init --name HOST”" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert command("pool", "--client-certificates", "maybe").returncode == 2


def test_what_is_no_certificate_in_a_connection_file_is_named(secured: Secured, tmp_path: Path) -> None:
    good = secured.file("whole", "--person", "anna").read_text()
    file = tmp_path / "spoilt.pool"
    own = good.index("-----BEGIN PRIVATE KEY")
    other = read_connection_file(secured.file("other", "--person", "ben")).certificate
    for text in (good[:-200], good[:own] + other[: other.index("-----BEGIN CERT")] + good[good.rindex("-----BEGIN CERT") :]):  # fmt: skip
        file.write_text(text)
        assert "holds no private key with its certificate" in ask(str(file), 1)
    assert "client certificate cannot be read from /nowhere" in ask(
        f"tls://localhost:{secured.port}", 1, GPUKERNEL_POOL_CERTIFICATE="/nowhere"
    )


def test_a_certificate_of_a_universitys_authority_for_the_pool_and_of_its_own_for_clients(
    tmp_path: Path,
) -> None:
    """``--tls-cert`` for the pool's end; what clients show is signed by the pool's own authority all the same."""
    university = prepare_state(tmp_path / "university")
    init_authority(university, ["localhost"], time.time())
    state, port = tmp_path / "pool", free_port()
    done("pool", "init", "--name", "localhost", "--state", str(state))
    options = ("--listen", f"127.0.0.1:{port}", "--tls-cert", str(university / "tls" / "pool.pem"), *REQUIRE)
    pool = Service("pool", *options, "--state", str(state))
    try:
        anna = tmp_path / "anna.pool"
        done("token", "create", "anna", "--person", "anna", "--file", str(anna), "--state", str(state))
        trusted = {"GPUKERNEL_POOL_CA": str(university / "tls" / "ca.pem")}
        assert "no devices" in done("list-gpus", GPUKERNEL_POOL=str(anna), **trusted)
        assert "lets nobody in without" in ask(f"tls://localhost:{port}", **trusted)
    finally:
        pool.stop()


def test_nothing_of_a_key_stands_in_a_log_or_a_process_list(secured: Secured) -> None:
    anna = secured.file("quiet", "--person", "anna")
    program = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "list-gpus", "--pool", str(anna)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PRIVATE" not in program.stdout + program.stderr
    assert "PRIVATE" not in repr(read_connection_file(anna))
