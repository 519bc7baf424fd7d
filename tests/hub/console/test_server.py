"""The console's server, before anybody is known: what is not sent whole is not waited for."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tornado.web import Application

import hub_spawner.console
from hub_spawner.console import application
from hub_spawner.console.application import make_server
from tests.ports import free_port


def test_a_form_that_never_ends_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "BODY_SECONDS", 0.2)

    async def work() -> None:
        server, port = make_server(Application()), free_port()
        server.listen(port, "127.0.0.1")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: hub\r\nContent-Length: 5000000\r\n\r\nhalf of it")
            async with asyncio.timeout(20):
                while await reader.read(1000):
                    pass
            writer.close()
        finally:
            server.stop()

    asyncio.run(work())


def test_every_field_for_a_line_of_text_has_its_longest() -> None:
    """A longer text has the whole form refused, on a page of its own: the browser takes no more.

    The forms of one slice and one server say at their field what is too long; there the browser would drop the rest of it unasked.
    """
    templates = Path(hub_spawner.console.__path__[0]) / "templates"
    fields = {
        (path.name, field)
        for path in templates.glob("*.html")
        if path.name not in ("lease.html", "drain.html")
        for field in re.findall(r"<input (?:[^<>]|<[^<>]*>|\{%.*?%\})*?>", path.read_text())
        if 'type="' not in field
    }
    assert len(fields) > 8
    assert [one for one in sorted(fields) if "maxlength=" not in one[1]] == []
