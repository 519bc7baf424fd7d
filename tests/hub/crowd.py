"""Many students who start servers and kernels at about the same time, through the REST APIs of a real Hub and of their servers."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse

from gpukernel.client.pool import PoolClient
from gpukernel.common.errors import PoolUnreachable
from gpukernel.common.model import Lease
from tests.hub.hub import Hub

__all__ = ["LAB", "LIGHT", "Crowd", "Student", "courses_yaml"]

# Servers are usually on other machines than the Hub and the pool, or in control groups of their own: not what starves those.
AFTER_THE_HUB = ["nice", "-n", "10"]
LIGHT = {"cmd": [*AFTER_THE_HUB, sys.executable, str(Path(__file__).parent / "light_server.py")]}
"""The environment, in the sense of `hub_spawner.configure`, in which a server is `tests.hub.light_server`."""
LAB = {"cmd": [*AFTER_THE_HUB, str(Path(sys.executable).parent / "jupyterhub-singleuser")]}
"""The one with JupyterLab."""

PATIENCE = 900.0


@dataclass
class Student:
    """One of the crowd; times are seconds since the epoch, 0.0 for what has not happened."""

    name: str
    course: str
    environment: str
    arrived: float = 0.0
    server_ready: float = 0.0
    kernel_asked: float = 0.0
    kernel_started: float = 0.0
    granted: float = 0.0
    error: str = ""


def courses_yaml(courses: dict[str, list[str]]) -> str:
    """A ``courses.yaml`` with these people in courses that are alike."""
    lines = ["courses:"]
    for name, people in courses.items():
        lines += [f"  {name}:", f"    students: [{', '.join(people)}]", "    offers: [V100 x 0.02]"]
    return "\n".join(lines) + "\n"


@dataclass
class Crowd:
    """The `students` arrive one after the other within `within` seconds; each holds a slice for `hold` seconds and goes.

    Attributes
    ----------
    leases
        Every lease that the pool has given; it lists only some of those that have ended, so they are gathered.
    looks
        The pool's queue whenever it was looked at: when that began and ended, and the course of each request by its key.
    """

    hub: Hub
    pool: str
    students: Sequence[Student]
    kernel: str
    within: float
    hold: float
    leases: list[Lease] = field(default_factory=list)
    looks: list[tuple[float, float, dict[str, str]]] = field(default_factory=list)
    _gone: dict[str, float] = field(default_factory=dict)  # when a lease was first seen without workers
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self) -> None:
        """Let them come, and return when all have had a slice, or an error."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        AsyncHTTPClient.configure(None, max_clients=2 * len(self.students) + 10)
        looking = asyncio.create_task(self._look())
        pause = self.within / len(self.students)
        await asyncio.gather(
            *(self._one(student, number * pause) for number, student in enumerate(self.students))
        )
        self._over.set()
        await looking

    async def _one(self, student: Student, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._story(student)
        except HTTPClientError as error:
            said = error.response.body[:500] if error.response else b""
            student.error = f"{error} {said.decode(errors='replace')}"
        except (OSError, TimeoutError, RuntimeError) as error:
            student.error = f"{type(error).__name__}: {error}"

    async def _story(self, student: Student) -> None:
        student.arrived = time.time()
        await self._hub("POST", f"/users/{student.name}")
        choice = {"course": student.course, "environment": student.environment}
        while True:
            try:
                await self._hub("POST", f"/users/{student.name}/server", choice)
                break
            except HTTPClientError as error:
                if error.code != 429 or error.response is None:
                    raise
                # As many servers start as the Hub starts at a time: it says when to come again.
                await asyncio.sleep(float(error.response.headers.get("Retry-After", 5)))
        await self._until_ready(student)
        student.server_ready = student.kernel_asked = time.time()
        if student.environment == "light":
            body: dict[str, Any] = {"name": self.kernel, "hold_seconds": self.hold}
            await self._server(student, "POST", "api/kernels", body)
            student.kernel_started = time.time()
            await self._until_granted(student)
        else:
            body = {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": self.kernel}}
            session = await self._server(student, "POST", "api/sessions", body)
            student.kernel_started = time.time()
            await self._until_granted(student)
            await asyncio.sleep(self.hold)
            await self._server(student, "DELETE", f"api/sessions/{session['id']}")

    async def _until_ready(self, student: Student) -> None:
        """Follow the start's progress, as the Hub's page does."""
        heard = bytearray()
        await self._fetch(
            "GET",
            f"{self.hub.url}/hub/api/users/{student.name}/server/progress",
            streaming_callback=heard.extend,
        )
        events = [json.loads(line[5:]) for line in heard.splitlines() if line.startswith(b"data:")]
        if not events or not events[-1].get("ready"):
            raise RuntimeError(f"the server did not start: {events[-1:]}")

    async def _until_granted(self, student: Student) -> None:
        while not student.granted:
            await asyncio.sleep(0.2)

    async def _look(self) -> None:
        """Note what the pool has given, twice a second."""
        async with PoolClient(self.pool) as client:
            seen: dict[str, Lease] = {}
            by_name = {student.name: student for student in self.students}
            last = False
            while not last:
                last = self._over.is_set()
                begin = time.time()
                try:
                    leases, waiting = await client.leases(include_ended=True)
                except PoolUnreachable:  # too slow for this look
                    continue
                self.looks.append((begin, time.time(), {one.key: one.holder.course for one in waiting}))
                seen |= {lease.id: lease for lease in leases}
                self.leases = list(seen.values())
                for lease in leases:
                    if lease.state == "ended":
                        self._gone.setdefault(lease.id, time.time())
                    student = by_name.get(lease.holder.person)
                    if student and not student.granted and lease.state != "starting":
                        student.granted = lease.created
                await asyncio.sleep(0.5)

    async def _hub(self, method: str, path: str, body: Any = None) -> Any:
        return await self._fetch(method, f"{self.hub.url}/hub/api{path}", body)

    async def _server(self, student: Student, method: str, path: str, body: Any = None) -> Any:
        return await self._fetch(method, f"{self.hub.url}/user/{student.name}/{path}", body)

    async def _fetch(self, method: str, url: str, body: Any = None, **options: Any) -> Any:
        request = HTTPRequest(
            url,
            method=method,
            body=json.dumps(body) if body is not None else "" if method == "POST" else None,
            headers={"Authorization": f"token {self.hub.token}"},
            connect_timeout=PATIENCE,
            request_timeout=PATIENCE,
            **options,
        )
        answer: HTTPResponse = await AsyncHTTPClient().fetch(request)
        return json.loads(answer.body) if answer.body else None

    @property
    def most_waiting(self) -> int:
        """The longest that the pool's queue was seen."""
        return max((len(waiting) for _, _, waiting in self.looks), default=0)

    def lost(self) -> list[str]:
        """Return the reasons for which leases ended that nobody had given back."""
        reasons = [lease.end_reason for lease in self.leases if lease.state in ("ending", "ended")]
        return [reason for reason in reasons if reason != "the kernel was shut down"]

    def leads(self) -> list[int]:
        """For each grant while people of another course waited: how many slices its course held more than the one that held the least.

        The pool gives the next slice to the course that holds the least (`gpukernel.pool.domain.fairness`), so no lead is above 0.  Who waited is who
        stood in the queue at the looks before and after the grant; a slice that is being given back counts for the other courses only.
        """
        found = []
        for lease in self.leases:
            now, own = lease.created, lease.holder.course
            before = next((keys for _, end, keys in reversed(self.looks) if end < now), {})
            after = next((keys for begin, _, keys in self.looks if begin > now), {})
            waited = {course for key, course in before.items() if key in after} - {own}
            held = dict.fromkeys({own, *waited}, 0)
            for other in self.leases:
                course = other.holder.course
                end = other.ended if course == own else self._gone.get(other.id)
                if other.id != lease.id and course in held and other.created <= now < (end or math.inf):
                    held[course] += 1
            if waited:
                found.append(held[own] - min(held[course] for course in waited))
        return found
