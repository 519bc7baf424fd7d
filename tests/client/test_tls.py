"""TLS as a client sees it: whom it trusts with its token, and what it says where it does not get in."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.pool.auth.certificate_authority import init_authority
from gpukernel.pool.rpc.server import prepare_state
from tests.cli.test_commands import Service
from tests.cli.test_tls import Secured, ask, done, start
from tests.ports import free_port


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("tls"))
    yield made
    made.pool.stop()


def test_a_client_without_tls_is_not_let_in_and_hears_why(secured: Secured) -> None:
    token = secured.file("plain", "--person", "anna")
    said = ask(f"127.0.0.1:{secured.port}", GPUKERNEL_POOL_TOKEN_FILE=str(secured.state / "pool.token"))
    assert f"at 127.0.0.1:{secured.port} speaks TLS only" in said
    # Whoever names an authority is not let down: it is TLS without “tls://” too.
    named = {"GPUKERNEL_POOL_TOKEN_FILE": str(token), "GPUKERNEL_POOL_CA": str(secured.authority)}
    assert done("list-gpus", "--pool", f"localhost:{secured.port}", **named)


def test_a_client_that_trusts_another_authority_hears_so(secured: Secured, tmp_path: Path) -> None:
    other = init_authority(prepare_state(tmp_path / "other"), ["localhost"], time.time())
    assert other.names == ("localhost",)
    here = f"tls://localhost:{secured.port}"
    wrong = ask(here, GPUKERNEL_POOL_CA=str(tmp_path / "other" / "tls" / "ca.pem"))
    assert "was not signed by the authority that this connection names" in wrong
    assert "was not signed by an authority that this machine trusts" in ask(here)


def test_a_client_that_uses_another_name_hears_which_there_is(secured: Secured) -> None:
    said = ask(f"tls://127.0.0.1:{secured.port}", GPUKERNEL_POOL_CA=str(secured.authority))
    assert f"The certificate of the pool at tls://127.0.0.1:{secured.port} is for localhost;" in said


def test_what_is_no_connection_file_is_named_with_its_line(secured: Secured, tmp_path: Path) -> None:
    file, good = tmp_path / "a.pool", secured.file("good", "--person", "anna").read_text()
    for text, words in (
        ("", "holds neither an address nor a token"),
        (good.replace("token: ", "tokken: "), f"Line 3 of {file} is neither"),
        (good.replace("address: tls://", "address: https://"), "names no pool's address"),
        (good.replace("address:", "#"), "leads to no pool"),
        (good[: good.index("-----BEGIN PRIVATE") - 200], "holds no certificate in PEM form"),
        (good[:-200], "holds no private key with its certificate in PEM form"),
    ):
        file.write_text(text)
        assert words in ask(str(file), 1)
    assert "is no pool's address and no connection file" in ask(str(tmp_path / "missing.pool"), 2)
    assert "cannot be read from /nowhere/ca.pem: No such file" in ask(
        "tls://h:1", 1, GPUKERNEL_POOL_CA="/nowhere/ca.pem"
    )


def test_a_client_told_to_use_tls_says_nothing_to_a_pool_without(tmp_path: Path) -> None:
    port = free_port()
    pool = Service("pool", "--listen", f"0.0.0.0:{port}", "--state", str(tmp_path / "pool"))
    try:
        assert pool.process.stderr is not None
        assert "pass the network in plain text; “gpukernel pool init" in pool.process.stderr.readline()
        here = f"tls://localhost:{port}"
        token = {"GPUKERNEL_POOL_TOKEN_FILE": str(tmp_path / "pool" / "pool.token")}
        assert f"What answers at {here} does not speak TLS" in ask(here, **token)
        assert "no devices yet" in done("list-gpus", "--pool", f"localhost:{port}", **token)
        assert "No pool answers at tls://localhost:" in ask(f"tls://localhost:{free_port()}")
    finally:
        pool.stop()


def test_a_token_never_leaves_for_who_cannot_show_a_certificate(tmp_path: Path) -> None:
    """Whoever answers in the pool's place gets bytes of a handshake, never the token."""
    init_authority(prepare_state(tmp_path / "real"), ["localhost"], time.time())
    (tmp_path / "token").write_text("gpk0.secret\n")
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        named = {
            "GPUKERNEL_POOL_CA": str(tmp_path / "real" / "tls" / "ca.pem"),
            "GPUKERNEL_POOL_TOKEN_FILE": str(tmp_path / "token"),
        }
        client = start("list-gpus", "--pool", f"tls://localhost:{server.getsockname()[1]}", **named)
        while client.poll() is None:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(2)
                try:
                    heard += connection.recv(65536)
                    connection.sendall(
                        b"\0\0\x12\4\0\0\0\0\0" + bytes(18)
                    )  # as a server of plain HTTP/2 begins
                    while more := connection.recv(65536):
                        heard += more
                except OSError:
                    pass
        assert "does not speak TLS" in client.communicate(timeout=30)[1]
    assert heard[:1] == b"\x16"  # a TLS handshake
    assert b"secret" not in heard
