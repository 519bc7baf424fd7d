"""The console's server, before anybody is known: what is not sent whole is not waited for."""

from __future__ import annotations

import asyncio

import pytest
from tornado.web import Application

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
