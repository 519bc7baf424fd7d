"""A GPU server that freezes keeps what its people hold on their quotas for ever, and starts on it hang: nobody of them gets a slice elsewhere."""

from __future__ import annotations

import pytest

from gpukernel.common.course_entries import BOUNDS
from tests.attacks.servers import Site, site, until

__all__ = ["site"]


def test_a_frozen_server_costs_nobody_their_quota(site: Site) -> None:
    assert "leases" in BOUNDS
    site.pool()
    first = site.agent("gpu1")
    site.ask(lambda admin: admin.set_quota("person:*", {"leases": "1"}))
    program = site.program("-p", "0.5")
    until(lambda: "ready" in program.said)
    first.freeze()
    site.agent("gpu2")
    program.end()
    # Its holder is gone: the lease ends after its time to live, whatever the server says.
    second = site.program("-p", "0.5", "--wait", "60")
    until(lambda: "ready" in second.said or second.process.poll() is not None, 90)
    assert "ready" in second.said, second.said


@pytest.mark.thorough
def test_a_start_on_a_frozen_server_goes_to_another_one(site: Site) -> None:
    site.pool()
    first = site.agent("gpu1")
    filler = site.program("-p", "0.3")  # so that gpu1 is the fuller one, which is chosen first
    until(lambda: "ready" in filler.said)
    site.agent("gpu2")
    first.freeze()
    program = site.program("-p", "0.3", "--wait", "30")
    until(lambda: "ready" in program.said or program.process.poll() is not None, 30)
    assert "ready" in program.said, program.said
