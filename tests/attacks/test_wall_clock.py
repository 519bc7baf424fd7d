"""Whoever sets the machine's clock, or lets it sleep, has a pool that opens reservations, charges and signs its audit by a time that was."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.attacks.servers import Site, site, until

__all__ = ["site"]

# Python reads this module before the program: the machine's clock, as far as the program sees it, is as far off as a file says.
SHIFTED = """
import os, time
real = time.time
def shifted():
    try:
        with open(os.environ["CLOCK_OFFSET"]) as file:
            return real() + float(file.read() or 0)
    except (OSError, ValueError):
        return real()
time.time = shifted
"""
DAY = 86_400.0


def test_the_pool_follows_a_clock_that_is_set_and_no_lease_ends(site: Site, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SHIFTED)
    offset = tmp_path / "offset"
    offset.write_text("0")
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH", ""))))
    site.pool(PYTHONPATH=path, CLOCK_OFFSET=str(offset))
    site.agent("gpu1")
    program = site.program("-p", "0.1", "--at-most", "1h")
    until(lambda: "ready" in program.said or program.process.poll() is not None)
    assert "ready" in program.said, program.said
    (own,), _ = site.ask(lambda admin: admin.leases())

    def made() -> float:
        """Return when the newest lease began, as the pool says."""
        one = site.program("-p", "0.1", code="")
        one.process.wait(60)
        found, _ = site.ask(lambda admin: admin.leases(include_ended=True))
        return max(found, key=lambda lease: lease.epoch).created

    for step in (DAY, -DAY):
        offset.write_text(str(step))
        until(lambda step=step: abs(made() - time.time() - step) < DAY / 24, 30)  # type: ignore[misc]
        site.ask(lambda admin: admin.drain("gpu1"))
        site.ask(lambda admin: admin.undrain("gpu1"))
        entry = site.ask(lambda admin: admin.audit(1))[0]
        assert abs(entry.time - time.time() - step) < DAY / 24, "the audit shows another day"
        # The others' programs are over, and their leases may be about to end.
        leases, _ = site.ask(lambda admin: admin.leases())
        held = [lease for lease in leases if lease.id == own.id]
        assert [lease.state for lease in held] == ["live"], "a step of the clock ended the lease"
        assert abs(held[0].until - (time.time() + step + 3600)) < 600, (
            "its end was not shifted with the clock"
        )
    assert program.process.poll() is None
