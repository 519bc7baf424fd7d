"""What a JupyterHub asks of a pool, and what people are shown before they choose; see `gpukernel.pool.client` for errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import gpukernel.pool.proto.hub_pb2 as pb
import gpukernel.pool.proto.hub_pb2_grpc as rpc
from gpukernel.pool.client import PoolClient
from gpukernel.pool.connection import Connection
from gpukernel.pool.course import Course, Offered, Profile
from gpukernel.pool.model import Chance
from gpukernel.pool.sentences import words_from

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
    """As `PoolClient`."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._hub: Any = rpc.HubStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)

    async def courses(self) -> list[KnownCourse]:
        """The courses that the caller is in, or instructs; all of them for those who may speak for others."""
        reply = await self._call("ListCourses", pb.ListCoursesRequest(), self._hub)
        return [_course_from(message) for message in reply.courses]

    async def estimate(self, course: str, sizes: Iterable[Offered], person: str = "") -> list[Chance]:
        """What the caller (or `person`, for those who may speak for others) would get now, in the order of `sizes`."""
        request = pb.EstimateRequest(course=course, person=person)
        request.sizes.extend(pb.Size(share=size.share, model=size.model) for size in sizes)
        reply = await self._call("Estimate", request, self._hub)
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
        """The person is in these groups of JupyterHub, and in no others."""
        await self._call("SetGroups", pb.SetGroupsRequest(person=person, groups=list(groups)), self._hub)

    async def open_server(self, person: str, server: str, course: str = "") -> str:
        """A token for a single-user server that starts; what an earlier one of that name had is ended."""
        return (await self.open_connection(person, server, course)).token

    async def open_connection(self, person: str, server: str, course: str = "") -> Connection:
        """As `open_server`, with the certificate that belongs to the token where the pool is reached over TLS; without an address."""
        request = pb.OpenServerRequest(person=person, server=server, course=course)
        reply = await self._call("OpenServer", request, self._hub)
        return Connection("", reply.token, certificate=reply.certificate)

    async def close_server(self, person: str, server: str, reason: str = "") -> int:
        """The server is gone: its token and its leases end; returns how many leases.  Repeating it changes nothing."""
        request = pb.CloseServerRequest(person=person, server=server, reason=reason)
        return int((await self._call("CloseServer", request, self._hub)).leases)

    async def servers(self) -> list[OpenedServer]:
        """Those that have a token, the oldest first."""
        reply = await self._call("ListServers", pb.ListServersRequest(), self._hub)
        return [OpenedServer(one.person, one.server, one.course, one.since) for one in reply.servers]


def _course_from(message: Any) -> KnownCourse:
    profile = Profile(
        message.term,
        tuple(message.groups),
        tuple(message.instructor_groups),
        tuple(Offered.parse(text) for text in message.offers),
        tuple(message.environments),
        message.start,
        tuple(message.notebooks),
    )
    course = Course(message.name, message.title, message.weight, dict(message.members), profile)
    return KnownCourse(course, message.role)
