"""A crowd of students at a JupyterHub: two hundred start a server and a kernel within a minute, against one pool.

``GPUKERNEL_BENCH_STUDENTS`` and ``GPUKERNEL_BENCH_LABS`` change how many they are, and how many of them have a real JupyterLab.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.report import Table
from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import resolve_address
from gpukernel.embedded import EmbeddedPool
from tests.hub.crowd import LAB, LIGHT, Crowd, Student, courses_yaml
from tests.hub.hub import Hub, environment_of

STUDENTS = int(os.environ.get("GPUKERNEL_BENCH_STUDENTS", "200"))
LABS = int(os.environ.get("GPUKERNEL_BENCH_LABS", "20"))
WITHIN, HOLD, AT_ONCE = 60.0, 90.0, 24


def _students() -> list[Student]:
    """Return the students: three of four are in the big course; every tenth (of 200, for 20) has JupyterLab, spread over the
    minute and the courses.
    """
    every = STUDENTS // LABS if LABS else 0
    return [
        Student(
            f"student{number:03}",
            "small" if number % 4 == 3 else "big",
            "lab" if every and number % every == 0 and number < every * LABS else "light",
        )
        for number in range(STUDENTS)
    ]


async def measure() -> list[Table]:
    """Return the table, of one run."""
    return await asyncio.to_thread(_measure)


def _measure() -> list[Table]:
    students = _students()
    with tempfile.TemporaryDirectory(prefix="gpukernel-hub-") as folder, EmbeddedPool("v100:1") as pool:
        home, address = Path(folder), resolve_address(None, pool.state)
        courses = {c: [s.name for s in students if s.course == c] for c in ("big", "small")}
        asyncio.run(_import(address, courses_yaml(courses)))
        options = {"pool": address, "environments": {"light": LIGHT, "lab": LAB}}
        extra = (
            "c.Spawner.http_timeout = c.Spawner.start_timeout = 600\n"
            f"c.JupyterHub.concurrent_spawn_limit = {AT_ONCE}\n"
            "c.JupyterHub.spawn_throttle_retry_range = (2, 6)\n"
        )
        with Hub(home, environment_of(pool.state, home), options, extra=extra) as hub:
            crowd = Crowd(hub, address, students, "gpu-v100-0.02", WITHIN, HOLD)
            crowd.run()
            for reason, times in Counter(crowd.lost()).items():
                print(f"{times} leases ended early: {reason}", file=sys.stderr)
            return [_table(crowd)]


async def _import(address: str, courses: str) -> None:
    async with AdminClient(address) as client:
        await client.import_courses(courses)


def _table(crowd: Crowd) -> Table:
    students = crowd.students
    begin = min(student.arrived for student in students)
    errors = [student for student in students if student.error]
    for student in errors[:5]:
        print(f"{student.name} ({student.environment}): {student.error}", file=sys.stderr)
    ahead = crowd.leads()
    rows: list[list[str]] = []

    def spans(what: str, some: Iterable[Student], of: Callable[[Student], float]) -> None:
        seconds = sorted(of(student) for student in some if not student.error)
        if seconds:
            rows.append([what, f"{statistics.median(seconds):.1f} s", f"{seconds[-1]:.1f} s"])

    for name, environment in (("light server", "light"), ("JupyterLab", "lab")):
        some = [student for student in students if student.environment == environment]
        label = f"{len(some)} × {name}: from the request to ready"
        spans(label, some, lambda student: student.server_ready - student.arrived)
    for course in ("big", "small"):
        some = [student for student in students if student.course == course]
        label = f"{course} course, {len(some)} students: from the kernel's start to its slice"
        spans(label, some, lambda student: max(student.granted - student.kernel_asked, 0.0))
    last_server = max(student.server_ready for student in students) - begin
    last_grant = max(student.granted for student in students) - begin
    rows += [
        ["errors (aim: 0)", str(len(errors)), ""],
        ["leases given", str(len(crowd.leases)), ""],
        ["leases that ended before they were given back (aim: 0)", str(len(crowd.lost())), ""],
        ["longest queue", str(crowd.most_waiting), ""],
        ["slices that the course served was ahead of the other, while both waited", *_ahead(ahead)],
        ["last server ready, after the first request", "", f"{last_server:.0f} s"],
        ["last grant, after the first request", "", f"{last_grant:.0f} s"],
    ]
    least = len(students) * HOLD / 50
    return Table(
        f"{len(students)} students at a JupyterHub",
        ["figure", "median", "longest"],
        rows,
        f"They arrive within {WITHIN:.0f} s, in two courses that are alike but for their size; each starts a server through the Hub and in it a kernel with "
        f"V100 × 0.02, holds the slice for {HOLD:.0f} s, and gives it back. One simulated V100 has 50 of them, so the last grant cannot come before "
        f"{least - HOLD:.0f} s. The Hub starts {AT_ONCE} servers at a time (`concurrent_spawn_limit`) and tells others to come again in a moment, which they do. "
        "Hub, proxy, pool, agent, workers and all servers share the machine's cores, the servers with less priority (`nice`). A light server is `tests/hub/light_server.py`: "
        "the same requests of the Hub and of the pool, without Jupyter.",
    )


def _ahead(found: list[int]) -> tuple[str, str]:
    return (f"{statistics.median(found):.0f}", f"{max(found)}") if found else ("", "")
