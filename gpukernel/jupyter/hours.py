"""The GPU-hours that this person has used since Monday, of those that they may use, for one line of the side panel."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from dataclasses import dataclass

from gpukernel.client.admin import AdminClient
from gpukernel.common.model import LeaseUse

__all__ = ["OwnWeek", "own_page_address", "own_week"]

WEEKLY = "gpu_hours_per_week"


@dataclass(frozen=True)
class OwnWeek:
    """GPU-hours of a person in a course, or in all where there is none; `allowed` is 0 where nothing bounds them.

    `page` is the address of their page in the Hub; empty outside one.
    """

    used: float
    allowed: float
    course: str
    page: str = ""


def own_page_address() -> str:
    """Return the address of the console's page *My GPU*; empty where no JupyterHub started this server."""
    base = os.environ.get("JUPYTERHUB_BASE_URL")
    return f"{os.environ.get('JUPYTERHUB_HOST', '')}{base}services/gpukernel/my" if base else ""


def _used(uses: Iterable[LeaseUse], course: str) -> float:
    return sum(use.device_hours for use in uses if not course or use.course == course)


async def own_week(address: str, person: str, course: str) -> OwnWeek:
    """Return the hours of `person`, in `course` where it is not empty.

    Raises
    ------
    gpukernel.common.errors.PoolError
        The pool does not say.
    """
    now = datetime.datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    monday = (now - datetime.timedelta(days=now.weekday())).timestamp()
    async with AdminClient(address) as pool:
        uses = await pool.report(monday, course=course, person=person)
        lines = await pool.quotas()
        roles = {known.course.name: known.role for known in await pool.courses()} if course else {}
    bounds = {line.subject: float(line.value) for line in lines if line.bound == WEEKLY}
    whose = [f"{roles.get(course, '')}:{course}", f"person:{person}", "person:*"]
    allowed = next((bounds[subject] for subject in whose if subject in bounds), 0.0)
    return OwnWeek(_used(uses, course), allowed, course, own_page_address())
