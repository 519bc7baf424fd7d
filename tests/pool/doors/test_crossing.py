"""The crossing from the I/O thread to the deciding thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from gpukernel.pool.doors.crossing import IoThread, answer, answers


def test_a_call_that_is_given_up_before_it_has_begun_never_begins() -> None:
    """Else who gives each call up at once would send the next one after it, and all of them would lie before everybody else's."""
    begun: list[str] = []
    sent = threading.Event()

    async def work(name: str) -> str:
        begun.append(name)
        return name

    async def replies(name: str) -> AsyncIterator[str]:
        begun.append(name)
        yield name

    async def one(deciding: asyncio.AbstractEventLoop, name: str) -> str:
        return await answer(deciding, lambda: work(name), lambda: None)

    async def several(deciding: asyncio.AbstractEventLoop, name: str) -> list[str]:
        return [reply async for reply in answers(deciding, lambda _: replies(name), lambda: None)]

    async def give_up(deciding: asyncio.AbstractEventLoop) -> None:
        calls = [
            asyncio.ensure_future(one(deciding, "given up")),
            asyncio.ensure_future(several(deciding, "given up")),
        ]
        await asyncio.sleep(0)  # both are on their way
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        sent.set()

    async def decide() -> None:
        deciding = asyncio.get_running_loop()
        with IoThread() as io:
            asyncio.run_coroutine_threadsafe(give_up(deciding), io.loop)
            sent.wait(60)  # the deciding thread is busy meanwhile
            assert await io.run(one(deciding, "kept")) == "kept"
            assert await io.run(several(deciding, "kept, too")) == ["kept, too"]

    asyncio.run(decide())
    assert begun == ["kept", "kept, too"]
