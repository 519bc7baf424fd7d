"""What those who teach ask of a pool; a part of `gpukernel.pool.admin_client.AdminClient`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gpukernel.pool.proto.teaching_pb2 as pb
import gpukernel.pool.proto.teaching_pb2_grpc as rpc
from gpukernel.pool.client import PoolClient

__all__ = ["DayOfUse", "QuotaEffect", "TeachingClient"]


@dataclass(frozen=True)
class QuotaEffect:
    """What a new bound means for those who hold or wait; see `gpukernel.pool.changing.Effect`."""

    kind: str
    bound: str
    limit: str
    people: tuple[str, ...]
    count: int
    sentence: str


@dataclass(frozen=True)
class DayOfUse:
    """What a person held in one day of the pool's calendar: `device_hours` is share × hours, `memory_hours` GiB × hours."""

    day: datetime.date
    person: str
    device_hours: float
    memory_hours: float


class TeachingClient(PoolClient):
    """As `PoolClient`, with what instructors may ask for their courses, and administrators for all."""

    async def _teach(self, method: str, request: Any) -> Any:
        stub: Any = rpc.TeachingStub(self._channel)  # type: ignore[no-untyped-call]
        return await self._call(method, request, stub)

    async def quota_effects(
        self, subject: str, bounds: Mapping[str, str], *, check: bool
    ) -> tuple[list[str], list[QuotaEffect]]:
        """Set bounds of one subject, or with `check` only look; returns what changes, and what it means for people."""
        reply = await self._teach("SetQuota", pb.QuotaChange(subject=subject, bounds=bounds, check=check))
        effects = [
            QuotaEffect(e.kind, e.bound, e.limit, tuple(e.people), e.count, e.sentence) for e in reply.effects
        ]
        return list(reply.lines), effects

    async def set_course(self, course: str, fields: Mapping[str, Any], *, check: bool = False) -> list[str]:
        """Change what an instructor may say about a course, named as in ``courses.yaml``; returns what changes."""
        request = pb.CourseChange(course=course, fields=json.dumps(fields), check=check)
        return list((await self._teach("SetCourse", request)).lines)

    async def send_message(self, lease_id: str, text: str) -> str:
        """Show a text to the holder of a lease, or with an empty one take it back; returns the text with the sender."""
        reply = await self._teach("SendMessage", pb.MessageToHolder(lease_id=lease_id, text=text))
        return str(reply.notice)

    async def move_request(self, key: str, before: str = "") -> bool:
        """Serve a waiting request before another one of the same course, or before all; False where it stood there."""
        return bool((await self._teach("MoveRequest", pb.RequestMove(key=key, before=before))).moved)

    async def course_use(self, course: str, begin: float, end: float = 0) -> list[DayOfUse]:
        """GPU time of a course between two times by day and person; end 0: now."""
        reply = await self._teach("CourseUse", pb.CourseUseRequest(course=course, begin=begin, end=end))
        return [
            DayOfUse(datetime.date.fromisoformat(d.day), d.person, d.device_hours, d.memory_hours)
            for d in reply.days
        ]
