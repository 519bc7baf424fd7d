"""The calls of instructors; a part of `gpukernel.client.admin.AdminClient`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass

import gpukernel.common.proto.teaching_pb2 as pb
import gpukernel.common.proto.teaching_pb2_grpc as rpc
from gpukernel.client.pool import PoolClient
from gpukernel.common.model import DailyUse

__all__ = ["QuotaEffect", "TeachingClient"]


@dataclass(frozen=True)
class QuotaEffect:
    """The effect of a new bound on those who hold or wait; see `gpukernel.pool.policy.changes.Effect`."""

    kind: str
    bound: str
    limit: str
    people: tuple[str, ...]
    count: int
    sentence: str


class TeachingClient(PoolClient):
    """A `PoolClient` with the calls of instructors for their courses, and of administrators for all."""

    @property
    def _teaching(self) -> rpc.TeachingStub:
        return rpc.TeachingStub(self._channel)

    async def quota_effects(
        self, subject: str, bounds: Mapping[str, str], *, check: bool, held: bool = False
    ) -> tuple[list[str], list[QuotaEffect]]:
        """Set bounds of one subject, or with `check` only look; return what changes, and what it means for people.

        With `held` new idle limits and longest times count for slices that are held now, too; an effect of kind ``held`` says for how many.
        """
        request = pb.QuotaChange(subject=subject, bounds=bounds, check=check, held=held)
        reply = await self._call(self._teaching.SetQuota, request)
        effects = [
            QuotaEffect(e.kind, e.bound, e.limit, tuple(e.people), e.count, e.sentence) for e in reply.effects
        ]
        return list(reply.lines), effects

    async def set_course(
        self, course: str, fields: Mapping[str, object], *, check: bool = False
    ) -> list[str]:
        """Change settings of a course that its instructors may change, named as in ``courses.yaml``; return what changes."""
        request = pb.CourseChange(course=course, fields=json.dumps(fields), check=check)
        return list((await self._call(self._teaching.SetCourse, request)).lines)

    async def send_message(self, lease_id: str, text: str) -> str:
        """Show a text to the holder of a lease, or with an empty one take it back; return the text with the sender."""
        reply = await self._call(self._teaching.SendMessage, pb.MessageToHolder(lease_id=lease_id, text=text))
        return str(reply.notice)

    async def move_request(self, key: str, before: str = "") -> bool:
        """Serve a waiting request before another one of the same course, or before all; False where it stood there."""
        return bool(
            (await self._call(self._teaching.MoveRequest, pb.RequestMove(key=key, before=before))).moved
        )

    async def course_use(self, course: str, begin: float, end: float = 0) -> list[DailyUse]:
        """Return the GPU time of a course between two times by day and person; end 0: now."""
        reply = await self._call(
            self._teaching.CourseUse, pb.CourseUseRequest(course=course, begin=begin, end=end)
        )
        return [
            DailyUse(datetime.date.fromisoformat(d.day), d.person, d.device_hours, d.memory_hours)
            for d in reply.days
        ]
