"""Connection files and addresses of several pools: what they mean, and the sentence of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpukernel.common.address import resolve_address
from gpukernel.common.connection import Connection, connection_to, read_connection_file, write_connection
from gpukernel.common.errors import PoolError

AB = ("tls://a.example.edu:7437", "tls://b.example.edu:7437")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.pool"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"address: {AB[0]}\ntoken: t\n", [(AB[0], "t")]),
        (f"addresses: {AB[0]}\ntoken: t\n", [(AB[0], "t")]),
        (f"# for anna\naddresses: {AB[0]}, {AB[1]}\ntoken: t\n", [(AB[0], "t"), (AB[1], "t")]),
        (f"token: t\naddress: {AB[0]}\naddress: {AB[1]}\n", [(AB[0], "t"), (AB[1], "t")]),
        (f"address: {AB[0]}\ntoken: t\naddress: {AB[1]}\ntoken: u\n", [(AB[0], "t"), (AB[1], "u")]),
        (f"addresses: {AB[0]},{AB[1]}\n", [(AB[0], ""), (AB[1], "")]),
        ("gpk0.secret\n", [("", "gpk0.secret")]),
    ],
)
def test_a_file_names_one_pool_or_several(tmp_path: Path, text: str, expected: list[tuple[str, str]]) -> None:
    found = read_connection_file(written(tmp_path, text))
    assert [(way.address, way.token) for way in found.ways] == expected
    # What is written is read again.
    again = written(tmp_path, write_connection(found, "for anna"))
    assert read_connection_file(again) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"addresses: {AB[0]},, {AB[1]}\ntoken: t\n", "has a comma with no address beside it"),
        (f"addresses: {AB[0]}, {AB[0]}\ntoken: t\n", f"lists {AB[0]} more than once"),
        (
            f"addresses: {AB[0]}, b.example.edu\ntoken: t\n",
            "lists “b.example.edu”, which is no pool's address",
        ),
        (
            f"addresses: {AB[0]}, unix:/run/pool.sock\ntoken: t\n",
            "lists the unix socket “unix:/run/pool.sock”",
        ),
        (f"address: {AB[0]}, {AB[1]}\ntoken: t\n", f"write “addresses: {AB[0]}, {AB[1]}”"),
        (f"address: {AB[0]}\naddresses: {AB[1]}\ntoken: t\n", "names its pools twice"),
        (f"address: {AB[0]}\naddress: {AB[0]}\ntoken: t\n", "more than once"),
        (f"address: {AB[0]}\naddress: {AB[1]}\ntoken: t\ntoken: u\n", "holds 2 tokens; write one for all"),
        (f"addresses: {AB[0]}, {AB[1]}\ntoken: t\ntoken: u\n", "holds 2 tokens; write one for all"),
        ("addresses: " + ", ".join(f"a{n}:1" for n in range(17)) + "\n", "lists 17 addresses; at most 16"),
        ("server: a:1\ntoken: t\n", "Line 1 of"),
        ("", "holds neither an address nor a token"),
    ],
)
def test_each_malformed_file_has_its_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PoolError) as error:
        read_connection_file(path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


def test_an_address_may_be_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_address("a:1, b:2") == "a:1,b:2"
    found = connection_to("a:1,b:2", "t")
    assert found.names == "a:1 or b:2"
    assert [(way.address, way.token) for way in found.ways] == [("a:1", "t"), ("b:2", "t")]
    for wrong in ("a:1,b", "a:1,", "a:1,a:1", "unix:/x,a:1"):
        with pytest.raises(PoolError, match=r"HOST:PORT|more than once"):
            resolve_address(wrong)


def test_tls_holds_for_all_pools_or_for_none() -> None:
    with pytest.raises(PoolError, match="some begin with tls:// and others do not"):
        connection_to("tls://a:1,b:2", "t")


def test_each_pool_gets_its_own_token_and_no_other(tmp_path: Path) -> None:
    path = written(tmp_path, "address: a:1\ntoken: t\naddress: b:2\ntoken: u\n")
    found = connection_to(str(path))
    assert [way.metadata for way in found.ways] == [
        (("authorization", "Bearer t"),),
        (("authorization", "Bearer u"),),
    ]
    # A connection that is asked for by its addresses, with its credentials, is the same one.
    assert connection_to(",".join(found.addresses), found) == found
    assert found.at(["c:3"]) == Connection("c:3", "t")


def test_the_token_of_one_pool_goes_to_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, f"address: {AB[0]}\ntoken: t\naddress: {AB[1]}\ntoken: u\n")
    monkeypatch.setenv("GPUKERNEL_POOL_TOKEN_FILE", str(file))
    both = connection_to(f"{AB[1]},{AB[0]}")
    assert [way.token for way in both.ways] == ["u", "t"]
    assert connection_to(AB[1].removeprefix("tls://")).token == "u"
    with pytest.raises(PoolError, match=r"c\.example\.edu:7437 has no token among those of"):
        connection_to("tls://c.example.edu:7437")
