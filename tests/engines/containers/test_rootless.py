"""The OCI hook where the container runtime is not root's: it is root in a user namespace of the person's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel import native

ACCOUNT = 1_900_009_999  # nobody's


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """The folder of an account that is logged in."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("needs root with setpriv and unshare")
    folder = Path(f"/run/user/{ACCOUNT}")
    folder.mkdir(parents=True)
    os.chown(folder, ACCOUNT, ACCOUNT)
    folder.chmod(0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def hook(*words: str, said: str) -> subprocess.CompletedProcess[str]:
    person = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"]
    return subprocess.run(
        [*person, "unshare", "--user", "--map-root-user", str(native.oci_hook()), *words],
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_its_locks_are_in_the_person_s_own_folder_where_root_s_is_closed(own_folder: Path) -> None:
    root_s = Path("/run/gpukernel-containers")
    root_s.mkdir(mode=0o700, exist_ok=True)  # as any hook of root's leaves it
    state = json.dumps({"ociVersion": "1.0.2", "id": "c0ffee", "status": "stopped", "bundle": "/tmp"})
    first = hook("remove", said=state)
    if "unshare" in first.stderr:
        pytest.skip(f"no user namespaces here: {first.stderr}")
    assert (first.returncode, first.stderr) == (0, "")
    kept = own_folder / "gpukernel-containers"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert kept.stat().st_uid == ACCOUNT
    lock = kept / "c0ffee"
    lock.touch(mode=0o600)
    os.chown(lock, ACCOUNT, ACCOUNT)
    assert hook("remove", said=state).returncode == 0
    assert not lock.exists()
