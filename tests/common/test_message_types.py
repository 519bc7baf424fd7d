"""mypy knows the fields of the generated messages, and what each call takes and returns."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("mypy")

TRIAL = """
import grpc.aio
import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc

async def ask(channel: grpc.aio.Channel) -> None:
    stub = rpc.PoolStub(channel)
    reply = await stub.Renew(pb.RenewRequest(lease_id="1"))
    print(reply.lease.notice, reply.lese, pb.RenewRequest(lease=1))
    await stub.Renew(pb.ReleaseRequest())
    reveal_type(stub.Hold(timeout=1))

class Service(rpc.PoolServicer):
    async def Renew(self, request: pb.ReleaseRequest, context: object) -> pb.RenewReply:
        return pb.RenewReply()
"""


@pytest.mark.thorough
def test_a_wrong_field_call_or_service_is_an_error_of_types(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["mypy"]
    path = settings["mypy_path"].replace("$MYPY_CONFIG_FILE_DIR", str(root))
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\nmypy_path = {path}\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", "-c", TRIAL],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line.removeprefix("<string>:") for line in checked.stdout.splitlines() if "error:" in line]
    assert [line.partition(":")[0] for line in said] == ["9", "9", "10", "14"], checked.stdout
    assert '"RenewReply" has no attribute "lese"' in said[0]
    assert 'Unexpected keyword argument "lease" for "RenewRequest"' in said[1]
    assert 'expected "RenewRequest"' in said[2]
    assert "incompatible with supertype" in said[3]
    assert "StreamStreamCall[gpukernel.common.proto.pool_pb2.HoldRequest" in checked.stdout
