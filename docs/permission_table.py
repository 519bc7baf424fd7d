"""MkDocs hook: replaces ``<!-- permissions -->`` by the tables of who may call which RPC, from the descriptors and the permissions of the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MARK = "<!-- permissions -->"


def _instructor(permission: Any) -> str:
    return str(permission.instructor if permission.instructor == "course" else permission.person)


ROLES: dict[str, Callable[[Any], str]] = {
    "stranger": lambda permission: "–",
    "person's token": lambda permission: str(permission.person),
    "person by unix socket": lambda permission: str(permission.person),
    "server's token": lambda permission: str(permission.server),
    "instructor": _instructor,
    "service": lambda permission: str(permission.service),
    "agent": lambda permission: str(permission.agent),
    "engine": lambda permission: str(permission.engine),
    "supply": lambda permission: str(permission.supply),
    "administrator": lambda permission: str(permission.administrator),
    "pool's account": lambda permission: str(permission.administrator),
}
"""The columns of the tables, with what a permission says of each."""


def services() -> Iterator[Any]:
    """Return the descriptor of every service of the control path."""
    from google.protobuf.descriptor_pool import Default

    from gpukernel.common.proto import (
        admin_pb2,
        engines_pb2,
        hub_pb2,
        pool_pb2,
        reservations_pb2,
        teaching_pb2,
    )

    for module in (pool_pb2, hub_pb2, engines_pb2, reservations_pb2, teaching_pb2, admin_pb2):
        yield from Default().FindFileByName(module.DESCRIPTOR.name).services_by_name.values()


def table() -> Iterator[str]:
    """Return a table for each service."""
    from gpukernel.pool.auth.permissions import PERMISSIONS

    names = " | ".join(f"<span>{role}</span>" for role in ROLES)
    yield '<div class="roles" markdown>'
    for service in services():
        yield f"\n| `{service.name}` | {names} |\n| --- |{' --- |' * len(ROLES)}"
        for method in service.methods:
            permission = PERMISSIONS[f"{service.name}/{method.name}"]
            yield f"| `{method.name}` | {' | '.join(role(permission) for role in ROLES.values())} |"
    yield "\n</div>"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the mark."""
    return markdown.replace(MARK, "\n".join(table())) if MARK in markdown else markdown
