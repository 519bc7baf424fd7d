"""request, client, release: one slice for several commands, against a real pool."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Pool

PROGRAM = """
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
print(d.cuMemGetInfo()[2] >> 20)
"""


@pytest.fixture
def pool(own_pool: Pool, tmp_path: Path) -> Pool:
    own_pool.environment["XDG_STATE_HOME"] = str(tmp_path / "home")
    return own_pool


def test_one_lease_serves_several_commands_and_is_given_back(pool: Pool) -> None:
    asked = pool.gpukernel("request", "-m", "2048", "--wait", "10s")
    assert asked.returncode == 0, asked.stderr
    (lease,) = pool.live()
    assert asked.stdout.strip() == lease.id
    assert lease.ttl_seconds == 3600
    for _ in range(2):
        ran = pool.gpukernel("client", "--", sys.executable, "-c", PROGRAM)
        assert (ran.returncode, ran.stdout) == (0, "2048\n"), ran.stderr
    assert pool.gpukernel("client", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert [one.id for one in pool.live()] == [lease.id]
    file = Path(pool.environment["XDG_STATE_HOME"], "gpukernel-held", f"{lease.id}.lease")
    assert file.stat().st_mode & 0o777 == 0o600
    assert pool.gpukernel("release").stdout == f"Lease {lease.id[:8]} is given back.\n"
    assert pool.live() == []
    assert not file.exists()


def test_who_holds_several_says_which(pool: Pool) -> None:
    ids = [pool.gpukernel("request", "-p", "0.1").stdout.strip() for _ in range(2)]
    several = pool.gpukernel("client", "--", "true")
    assert several.returncode == 2
    assert "You hold several leases" in several.stderr
    for words in (("client", "--lease", "", "--", "true"), ("release", "")):
        unset = pool.gpukernel(*words)  # a script's variable that is not set means none of them
        assert unset.returncode == 2
        assert "An empty LEASE names none" in unset.stderr
        assert len(unset.stderr.splitlines()) == 1
    assert len(pool.live()) == 2
    assert pool.gpukernel("client", "--lease", ids[1][:8], "--", "true").returncode == 0
    assert pool.gpukernel("release", ids[0][:8]).returncode == 0
    assert [lease.id for lease in pool.live()] == [ids[1]]
    assert pool.gpukernel("request", "-p", "0.05").returncode == 0
    assert len(pool.gpukernel("release", "--all").stdout.splitlines()) == 2
    assert pool.live() == []


def test_a_lease_that_is_over_and_what_makes_no_sense_are_one_sentence(pool: Pool) -> None:
    asked = pool.gpukernel("request", "-p", "0.1", "--keep", "1h")
    pool.stop()
    pool.start()
    answer = pool.gpukernel("client", "--", "true")
    assert answer.returncode == 5
    assert "This lease is over" in answer.stderr
    assert asked.stdout.strip() not in pool.gpukernel("release").stderr
    for words, sentence, status in (
        (["client", "--", "true"], "You hold no lease", 5),
        (["release", "abc"], "no lease that begins with “abc”", 5),
        (["request"], "Say how large", 2),
        (["request", "-p", "0.1", "--keep", "2h"], "not for 2h", 2),
        (["request", "-p", "2", "--wait", "0"], "A share of 2.0 is not possible", 2),
    ):
        wrong = pool.gpukernel(*words)
        assert wrong.returncode == status
        assert sentence in wrong.stderr
        assert len(wrong.stderr.splitlines()) == 1
