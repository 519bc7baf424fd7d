"""“gpukernel why”: the reason of a decision, as the pool knows it."""

from __future__ import annotations

import json
from dataclasses import replace

from gpukernel.cli.queue.why import about_lease, about_request
from gpukernel.common.model import Holder, Lease, SliceRequest, Waiting
from tests.conftest import Pool

LEASE = Lease("3f2a", "k", Holder("anna", course="ml101"), (), "live", 5.0, 9.0, 60.0, 1, priority="batch")
REQUEST = Waiting("k", Holder("ben"), SliceRequest(0.5, priority="batch"), 3, 1000.0)


def test_a_request_says_its_class_its_place_and_what_holds_it_back() -> None:
    found = about_request(REQUEST, 1060.0)
    assert "at place 3" in found.sentences[0]
    assert found.sentences[1].startswith("Its class is batch: until ")
    assert found.sentences[2] == "No quota holds it back: it waits for room, after those before it."
    assert found.sentences[3] == "When it starts is not known."
    assert "counts as interactive" in about_request(REQUEST, 1000.0 + 4 * 3600).sentences[1]
    full = replace(REQUEST, reason="ben holds 1.00 of their 1 devices.", estimate_seconds=60.0)
    assert about_request(full, 1060.0).sentences[2:3] == ("ben holds 1.00 of their 1 devices.",)
    assert about_request(full, 1060.0).sentences[3].startswith("It can start at ")
    plain = replace(REQUEST, slice=SliceRequest(0.5))
    assert not any("class" in sentence for sentence in about_request(plain, 1060.0).sentences)


def test_a_lease_says_who_decided_and_why_it_ended() -> None:
    assert any("in the class batch." in sentence for sentence in about_lease(LEASE).sentences)
    placed = about_lease(replace(LEASE, decided_by="slurm", priority=""))
    assert any(sentence.startswith("Slurm placed it") for sentence in placed.sentences)
    over = about_lease(replace(LEASE, state="ended", ended=60.0, end_reason="it was idle for 5 min"))
    assert over.sentences[-1].endswith(": it was idle for 5 min.")


def test_the_command_answers_in_words_and_for_programs(gpu1_pool: Pool) -> None:
    done = gpu1_pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--class", "scavenger", "--", "true")
    assert done.returncode == 0
    last = max(gpu1_pool.leases(ended=True)[0], key=lambda lease: lease.created)
    told = gpu1_pool.gpukernel("why", last.id)
    assert told.returncode == 0, told.stderr
    assert "in the class scavenger." in told.stdout
    assert "the program ended" in told.stdout
    (data,) = json.loads(gpu1_pool.gpukernel("why", last.id[:12], "--json").stdout)
    assert (data["kind"], data["id"], data["state"]) == ("lease", last.id, "ended")
    none = gpu1_pool.gpukernel("why", "nothing-begins-so")
    assert none.returncode == 5
    assert "No lease or request of yours begins with “nothing-begins-so”." in none.stderr
