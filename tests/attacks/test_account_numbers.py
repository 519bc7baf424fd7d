"""Somebody is taken for another by the number of an account: where a pool's container knows few of them, or one is given away again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.store.store import Store
from tests.pool.auth.test_identity import connect_as

ANNA, BEN = (pwd.getpwnam(name).pw_uid for name in ("games", "daemon"))

POOL = """
import asyncio, sys
from pathlib import Path
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.auth.peer_credentials import serve_with_peer_credentials
from gpukernel.pool.store.store import Store

class Noted(Identity):
    def connected(self, peer, uid):
        super().connected(peer, uid)
        caller = self.caller("unix:" + peer if not peer.startswith("unix") else peer, "", 0.0)
        print(caller.name if caller else "a stranger", flush=True)

async def main(folder):
    store = Store(f"sqlite:///{folder}/pool.db")
    async with serve_with_peer_credentials(folder / "pool.sock", folder / "behind", Noted(store, {}), everybody=True):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account can pass through."""
    made = Path(tempfile.mkdtemp(prefix="gpukernel-ns-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another account")
@pytest.mark.parametrize("inside", [True, False], ids=["in a container without root", "on the machine"])
def test_accounts_that_the_pools_container_does_not_know_are_strangers(folder: Path, inside: bool) -> None:
    apart = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs user namespaces")
    command = [*(apart if inside else []), sys.executable, "-c", POOL, str(folder)]
    root = Path(__file__).parents[2]
    behind = socket.socket(socket.AF_UNIX)
    behind.bind(str(folder / "behind"))
    behind.listen()
    with (
        behind,
        subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as pool,
    ):
        assert pool.stdout is not None
        assert pool.stdout.readline() == "ready\n"
        said = []
        for account in (ANNA, BEN, 0):
            with socket.socket(socket.AF_UNIX) as theirs:
                connect_as(account, theirs, str(folder / "pool.sock"))
                said.append(pool.stdout.readline().strip())
        pool.communicate("")
    assert said == (["a stranger", "a stranger", "root"] if inside else ["games", "daemon", "root"])


def test_an_account_that_has_the_number_of_one_that_is_gone_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {1005: "anna"}
    asked = []

    def account_name(uid: int) -> str:
        asked.append(uid)
        return names[uid]

    monkeypatch.setattr("gpukernel.pool.auth.identity.account_name", account_name)
    identity = Identity(Store(f"sqlite:///{tmp_path}/pool.db"), {})
    identity.connected("unix:1", 1005)

    def name(now: float) -> str:
        caller = identity.caller("unix:1", "", now)
        assert caller is not None
        return caller.name

    assert [name(now) for now in (1e9, 1e9 + 1, 1e9 + 2)] == ["anna"] * 3
    assert asked == [1005]  # a directory service may answer slowly
    names[1005] = "ben"
    assert name(1e9 + 3600) == "ben"
    names[1005] = "carl"
    assert name(1e9) == "carl"  # the clock was set back
