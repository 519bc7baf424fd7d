"""Claims that come, go and are allocated again at random, while everything breaks: no lease is left over, and none is there twice."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gpukernel.common.errors import PoolError
from gpukernel.common.model import Lease
from gpukernel.engines.kubernetes.allocations import allocation_of
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster

FEW = 12
"""Claims of each run of the suite; `CLAIMS` are those of ``make thorough`` and ``make kubernetes``."""
CLAIMS = int(os.environ.get("GPUKERNEL_CLAIMS", "60"))
AT_ONCE = 20
"""Claims that are there at the same time: as many workers run."""


class Churn:
    """A random life of so many claims, with a controller that is killed again and again."""

    def __init__(self, cluster: Cluster, pool: Pool, log: Path, claims: int, seed: int) -> None:
        self._cluster, self._pool, self._log, self._claims = cluster, pool, log, claims
        self.random = random.Random(seed)
        self.made, self.kills = 0, 0
        self.allocated: set[str] = set()
        self.waiting: set[str] = set()
        self.did: Counter[str] = Counter()
        self.unanswered: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the controller where none runs."""
        if self.process is None or self.process.poll() is not None:
            self.process = self._cluster.start(self._pool, "controller", "--every", "0.5", log=self._log)

    def kill(self) -> None:
        """Kill it, wherever it is."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.kills += 1

    def step(self) -> None:
        """Do one thing that Kubernetes or a person may do."""
        there = len(self.allocated) + len(self.waiting)
        choices = ["create"] * (3 if there < AT_ONCE and self.made < self._claims else 0)
        choices += ["allocate"] * bool(self.waiting) * 4
        choices += ["deallocate", "again", "delete"] * bool(self.allocated)
        choices += ["withdraw"] * bool(self.waiting)
        what = self.random.choice(choices)
        self.did[what] += 1
        cluster = self._cluster
        if what == "create":
            name = f"claim-{self.made}"
            self.made += 1
            size = self.random.choice(("64Mi", "100Mi", "655Mi", ""))
            cluster.claim(name, size, self.random.choice((1, 1, 2)))
            self.waiting.add(name)
        elif what == "allocate":
            name = self._pick(self.waiting)
            if cluster.allocate(name):
                self.waiting.remove(name)
                self.allocated.add(name)
        elif what == "deallocate":
            name = self._pick(self.allocated)
            cluster.deallocate(name)
            self.allocated.remove(name)
            self.waiting.add(name)
        elif what == "again":  # before anybody can have noticed
            name = self._pick(self.allocated)
            cluster.deallocate(name)
            if not cluster.allocate(name):
                self.allocated.remove(name)
                self.waiting.add(name)
        else:
            names = self.waiting if what == "withdraw" else self.allocated
            name = self._pick(names)
            cluster.delete(name)
            names.remove(name)

    def _pick(self, names: set[str]) -> str:
        return self.random.choice(sorted(names))

    def wanted(self) -> dict[str, str]:
        """Return the keys that should have leases, and the claims' names."""
        found = {}
        for claim in self._cluster.claims():
            if (allocation := allocation_of(claim)) is not None:
                found[allocation.key] = allocation.name
        return found

    def leases(self) -> list[Lease] | None:
        """Return the leases of Kubernetes; None where the pool does not answer, which is noted with the load of the machine."""
        try:
            return [one for one in self._pool.leases()[0] if one.decided_by == "kubernetes"]
        except PoolError as error:
            self.unanswered.append(f"after {self.made} claims, load {os.getloadavg()[0]:.0f}: {error}")
            return None

    def settled(self) -> bool:
        """Return whether the pool has exactly the leases that the claims say, and the claims say so."""
        wanted = self.wanted()
        if (leases := self.leases()) is None:
            return False
        if sorted(one.key for one in leases) != sorted(wanted) or {one.state for one in leases} - {"live"}:
            return False
        told = {
            claim.metadata.name: {
                device.data["lease"] for device in claim.status.devices or [] if device.data
            }
            for claim in self._cluster.claims()
            if claim.metadata.name in wanted.values()
        }
        return told == {wanted[one.key]: {one.id} for one in leases} and all(
            self._cluster.is_ready(name) for name in wanted.values()
        )


def live(cluster: Cluster, pool: Pool, log: Path, claims: int, kill: float) -> None:
    """Live through `claims` claims, where the controller is killed at a step with the probability `kill`, and before or after a request
    with less than half of it; the pool has exactly their leases at the end, and none without them.
    """
    seed = int(os.environ.get("GPUKERNEL_CLAIMS_SEED", "25"))
    churn = Churn(cluster, pool, log, claims, seed)
    churn.start()
    try:
        eventually(cluster.slices)
        if (server := cluster.stand_in) is not None:
            server.faults.random = random.Random(seed)
            server.faults.error, server.faults.lost_answer, server.faults.conflict = 0.02, 0.02, 0.02
            server.faults.kill, server.faults.killer = kill * 0.4, churn.kill
        while churn.made < claims or len(churn.allocated) + len(churn.waiting) > AT_ONCE:
            churn.step()
            chance = churn.random.random()
            if chance < kill:
                churn.kill()
            elif server is not None and chance < kill + 0.05:
                server.drop_watches()
            elif server is not None and chance < kill + 0.08:
                server.forget()
            elif chance < kill + 0.2:
                eventually(lambda: churn.process.poll() is not None or churn.settled(), seconds=180)
            churn.start()
        if server is not None:
            server.faults.kill = 0.0
        churn.start()
        eventually(churn.settled, seconds=180)
        for name in sorted(churn.allocated | churn.waiting):
            cluster.delete(name)
        eventually(lambda: churn.leases() == [], seconds=60)
        eventually(lambda: not pool.promised())
    finally:
        print(f"{churn.made} claims, {dict(churn.did)}, controller killed {churn.kills} times")
        print("\n".join(["The pool did not answer:", *churn.unanswered] if churn.unanswered else []))
        print(log.read_text()[-6000:])
        if churn.process is not None:
            churn.process.kill()
            churn.process.wait()
    assert churn.kills


def test_a_few_random_claims_outlive_a_controller_that_is_killed(
    cluster: Cluster, pool: Pool, tmp_path: Path
) -> None:
    live(cluster, pool, tmp_path / "controller.log", FEW, kill=0.15)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * CLAIMS)
def test_random_claims_leave_no_lease_and_make_none_twice_whatever_is_killed(
    cluster: Cluster, pool: Pool, tmp_path: Path
) -> None:
    live(cluster, pool, tmp_path / "controller.log", CLAIMS, kill=0.05)
