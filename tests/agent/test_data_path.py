"""The agent decides whether programs speak TLS to its workers, and the lease says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.agent.data_path import TlsUnavailable, tls_wanted
from gpukernel.common.data_tls import DataTls
from tests.conftest import Pool


@pytest.mark.parametrize(
    ("host", "setting", "wanted"),
    [
        ("", DataTls.AUTO, False),
        ("", DataTls.ON, False),
        ("127.0.0.1", DataTls.AUTO, False),
        ("localhost", DataTls.AUTO, False),
        ("::1", DataTls.AUTO, False),
        ("127.0.0.1", DataTls.ON, True),
        ("192.0.2.7", DataTls.AUTO, True),
        ("0.0.0.0", DataTls.AUTO, True),
        ("2001:db8::7", DataTls.AUTO, True),
        ("no-such-host.invalid", DataTls.AUTO, True),
        ("192.0.2.7", DataTls.OFF, False),
    ],
)
def test_tls_is_spoken_wherever_the_address_is_not_loopback(
    host: str, setting: DataTls, wanted: bool
) -> None:
    assert tls_wanted(host, setting) is wanted


def test_an_agent_that_was_built_without_tls_does_not_fall_back_to_plain_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> Path:
        raise native.NativePartMissing

    monkeypatch.setattr(native, "tls_library", missing)
    with pytest.raises(TlsUnavailable, match="install libssl-dev and build it again, or say --data-tls off"):
        tls_wanted("192.0.2.7", DataTls.AUTO)
    assert not tls_wanted("192.0.2.7", DataTls.OFF)
    assert not tls_wanted("127.0.0.1", DataTls.AUTO)


PROGRAM = """
import ctypes, os, re, json
lease = open(os.environ["GPUKERNEL_LEASE_FILE"]).read()
over_tls = re.sub(r"unix:\\S+ ", "", lease)
open(os.environ["GPUKERNEL_LEASE_FILE"], "w").write(over_tls)
print(json.dumps([re.findall(r"(\\w+):\\S+", line) for line in lease.splitlines() if line.startswith("device")]))
print(ctypes.CDLL("libcuda.so.1").cuInit(0))
"""


def test_the_lease_of_a_pool_with_tls_has_no_way_in_plain_text(tmp_path: Path) -> None:
    with Pool("v100:1", tmp_path / "state", tcp_host="127.0.0.1", options=("--data-tls", "on")) as pool:
        done = pool.gpukernel("run", "-p", "0.02", "--", sys.executable, "-c", PROGRAM)
        assert done.returncode == 0, done.stderr
        (kinds,), result = (json.loads(line) for line in done.stdout.splitlines())
        assert set(kinds) == {"unix", "tls"}
        assert result == 0, done.stderr
