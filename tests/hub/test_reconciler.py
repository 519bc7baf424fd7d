"""The reconciler with a token that may not do everything."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gpukernel.client.hub import HubClient
from hub_spawner.reconciler import Reconciler
from tests.cli.test_tls import Secured, done


class Looked(Reconciler):
    """A reconciler that ends with its first look at the pool's servers."""

    async def look(self, client: HubClient) -> list[tuple[str, str]]:
        await client.servers()
        raise asyncio.CancelledError


@pytest.mark.parametrize("scope", ["service", "admin"])
def test_a_hub_that_may_not_import_courses_says_so_and_looks_after_its_servers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scope: str
) -> None:
    secured, courses = Secured(tmp_path), tmp_path / "courses.yaml"
    try:
        courses.write_text("courses: {ml101: {students: [anna]}}")
        file = str(secured.file("hub", "--scope", scope))
        one = Looked(file, "", str(courses), "hub", "http://127.0.0.1:9", "none")
        with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
            asyncio.run(asyncio.wait_for(one.run(), 60))
        exported = done("quota", "export", "--pool", str(secured.file("rector", "--scope", "admin")))
    finally:
        secured.pool.stop()
    may = scope == "admin"
    assert ("gpukernel quota import courses.yaml" in caplog.text) != may
    assert ("ml101" in exported) == may
