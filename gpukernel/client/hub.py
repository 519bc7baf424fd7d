"""The calls of a JupyterHub, and the prospects that people see before they choose; `gpukernel.client.pool` describes errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import gpukernel.common.proto.hub_pb2 as pb
import gpukernel.common.proto.hub_pb2_grpc as rpc
from gpukernel.client.pool import PoolClient
from gpukernel.common.connection import Connection
from gpukernel.common.course import Course, Offered, Profile
from gpukernel.common.i18n import words_from
from gpukernel.common.model import Chance

__all__ = ["Chance", "HubClient", "KnownCourse", "OpenedServer"]


@dataclass(frozen=True)
class KnownCourse:
    """A course, and the caller's `role` in it; members and groups only for those who instruct or administer."""

    course: Course
    role: str


@dataclass(frozen=True)
class OpenedServer:
    """A single-user server that has a token; `since` in seconds since the epoch."""

    person: str
    server: str
    course: str
    since: float


class HubClient(PoolClient):
    """A `PoolClient` with the calls of a JupyterHub."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._hub = rpc.HubStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)

    async def courses(self) -> list[KnownCourse]:
        """Return the courses that the caller is in, or instructs; all of them for those who may speak for others."""
        reply = await self._call(self._hub.ListCourses, pb.ListCoursesRequest())
        return [_course_from(message) for message in reply.courses]

    async def estimate(self, course: str, sizes: Iterable[Offered], person: str = "") -> list[Chance]:
        """Return what the caller (or `person`, for those who may speak for others) would get now, in the order of `sizes`."""
        request = pb.EstimateRequest(course=course, person=person)
        request.sizes.extend(
            pb.Size(share=size.share, model=size.model, priority=size.priority) for size in sizes
        )
        reply = await self._call(self._hub.Estimate, request)
        return [
            Chance(
                one.state,
                one.memory_bytes,
                one.free,
                one.waiting,
                one.wait_seconds,
                words_from(one.words, one.sentence),
            )
            for one in reply.chances
        ]

    async def set_groups(self, person: str, groups: Iterable[str]) -> None:
        """Put the person into these groups of JupyterHub, and into no others."""
        await self._call(self._hub.SetGroups, pb.SetGroupsRequest(person=person, groups=list(groups)))

    async def open_server(self, person: str, server: str, course: str = "") -> str:
        """Return a token for a single-user server that starts; what an earlier one of that name had is ended."""
        return (await self.open_connection(person, server, course)).token

    async def open_connection(
        self, person: str, server: str, course: str = "", *, inside: bool = False
    ) -> Connection:
        """Do as `open_server`, and return the certificate of the token too where the pool is reached over TLS; without an address.

        `inside`: what it leases lies inside of the claim of its pod, and nothing else is granted to it.
        """
        request = pb.OpenServerRequest(person=person, server=server, course=course, inside=inside)
        reply = await self._call(self._hub.OpenServer, request)
        return Connection("", reply.token, certificate=reply.certificate)

    async def close_server(self, person: str, server: str, reason: str = "") -> int:
        """End the token and the leases of a server that is gone, and return how many leases; repeating it changes nothing."""
        request = pb.CloseServerRequest(person=person, server=server, reason=reason)
        return int((await self._call(self._hub.CloseServer, request)).leases)

    async def servers(self) -> list[OpenedServer]:
        """Return the servers that have a token, the oldest first."""
        reply = await self._call(self._hub.ListServers, pb.ListServersRequest())
        return [OpenedServer(one.person, one.server, one.course, one.since) for one in reply.servers]


def _course_from(message: pb.Course) -> KnownCourse:
    classes = message.offer_classes or [""] * len(message.offers)  # a pool of before says none
    profile = Profile(
        message.term,
        tuple(message.groups),
        tuple(message.instructor_groups),
        tuple(
            replace(Offered.parse(text), priority=name)
            for text, name in zip(message.offers, classes, strict=True)
        ),
        tuple(message.environments),
        message.start,
        tuple(message.notebooks),
        message.priority,
    )
    course = Course(message.name, message.title, message.weight, dict(message.members), profile)
    return KnownCourse(course, message.role)
