"""JupyterHub's roles ``gpukernel-instructor-COURSE`` and ``gpukernel-admin``, and the scopes by which the console knows who has them.

A scope counts where the token or the session has it, whatever its owner may besides: JupyterHub gives a token no more than it was made for.
JupyterHub's names of roles and scopes have small letters and digits only, so what a course's name has besides is written as ``_`` and
two hexadecimal digits for each byte of its UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "ADMIN_ROLE",
    "ADMIN_SCOPE",
    "PREFIX",
    "ROLE",
    "admin_role",
    "administers",
    "course_of_role",
    "courses_of",
    "instructor_roles",
    "role_of",
    "scope_of",
    "scopes_of_sessions",
]

PREFIX = "custom:gpukernel:instruct:"
"""The beginning of every such scope; the course's name follows."""

ROLE = "gpukernel-instructor-"

ADMIN_SCOPE = "custom:gpukernel:admin"
"""The scope with which the console administers the pool."""

ADMIN_ROLE = "gpukernel-admin"
"""The role that has it, for people who are no administrators of the Hub."""

HUB_ADMINS_SCOPE = "admin-ui"
"""The scope that JupyterHub's role ``admin`` has and that opens nothing by itself.  JupyterHub refuses additions to that role, so
a Hub's administrator is one whose token or session has this scope."""
_LONGEST = 200  # of the 255 characters that a role's name may have


def _encoded(course: str) -> str:
    plain = re.sub(r"[^a-z0-9-]", lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), course)
    return f"{plain[:-1]}_2d" if plain.endswith("-") else plain  # neither kind of name may end with one


def _decoded(text: str) -> str:
    """Return the course; empty where no course is written so."""
    if not re.fullmatch(r"(?:[a-z0-9-]|_[0-9a-f]{2})+", text):
        return ""
    plain = re.sub("_(..)", lambda found: chr(int(found[1], 16)), text)
    try:
        course = plain.encode("latin-1").decode()
    except UnicodeDecodeError:
        return ""
    return course if _encoded(course) == text else ""


def scope_of(course: str) -> str:
    """Return the scope that makes instructors of a course."""
    return PREFIX + _encoded(course)


def role_of(course: str) -> str:
    """Return the name of the role that has a course's scope."""
    return ROLE + _encoded(course)


def course_of_role(name: str) -> str:
    """Return the course of a role's name; empty for other roles."""
    return _decoded(name.removeprefix(ROLE)) if name.startswith(ROLE) else ""


def courses_of(scopes: Iterable[str]) -> frozenset[str]:
    """Return the courses that these scopes of a token make instructors of.  A scope that JupyterHub narrowed with a
    filter counts for none.
    """
    named = (_decoded(scope.removeprefix(PREFIX)) for scope in scopes if scope.startswith(PREFIX))
    return frozenset(course for course in named if course)


def administers(model: Mapping[str, Any]) -> bool:
    """Return whether the token or session that the Hub's model of a user was asked with administers the pool.

    It has the scope `ADMIN_SCOPE`, or it belongs to an administrator of the Hub and may open the Hub's own administration.  That somebody
    is an administrator is not enough: their token was perhaps made for less.
    """
    scopes = model.get("scopes") or ()
    return ADMIN_SCOPE in scopes or (bool(model.get("admin")) and HUB_ADMINS_SCOPE in scopes)


def scopes_of_sessions(scopes: Iterable[str]) -> list[str]:
    """Return those of a configuration's custom `scopes`, and of the Hub's own, that a browser session of the console may have, where
    its person has them.
    """
    ours = (scope for scope in scopes if scope.startswith(PREFIX) or scope == ADMIN_SCOPE)
    return sorted({*ours, HUB_ADMINS_SCOPE})


def admin_role(
    roles: Iterable[Mapping[str, Any]], scopes: Mapping[str, Any], *needed: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the roles and custom scopes of a configuration with `ADMIN_ROLE` added; parameters as of `instructor_roles`."""
    found = [dict(role) for role in roles]
    role = next((role for role in found if role.get("name") == ADMIN_ROLE), None)
    if role is None:
        role = {"name": ADMIN_ROLE}
        found.append(role)
    role.setdefault("description", "Administrators of the GPU pool, in the gpukernel console")
    role["scopes"] = list(dict.fromkeys([*role.get("scopes", ()), ADMIN_SCOPE, *needed]))
    defined = {"description": "Administer the GPU pool: devices, tokens, every course"}
    return found, {ADMIN_SCOPE: defined, **scopes}


def instructor_roles(
    roles: Iterable[Mapping[str, Any]], scopes: Mapping[str, Any], courses: Iterable[str], *needed: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the roles and custom scopes of a configuration, with those of each course added.

    Parameters
    ----------
    roles, scopes
        ``JupyterHub.load_roles`` and ``custom_scopes`` as they were written: an entry with the name of a course's role says who holds it.
    courses
        The courses that are known; a role that is written for another one gets its scope too.
    needed
        What an instructor needs besides, to open the console.
    """
    found, defined = [dict(role) for role in roles], dict(scopes)
    by_name = {str(role.get("name")): role for role in found}
    written = (course_of_role(name) for name in by_name)
    for course in sorted({*courses, *written} - {""}):
        name, scope = role_of(course), scope_of(course)
        if len(name) > _LONGEST:
            continue
        defined.setdefault(scope, {"description": f"Instructor of {course}: its quotas, queue and slices"})
        if name not in by_name:
            by_name[name] = {"name": name}
            found.append(by_name[name])
        role = by_name[name]
        role.setdefault("description", f"Instructors of {course}, in the gpukernel console")
        role["scopes"] = list(dict.fromkeys([*role.get("scopes", ()), scope, *needed]))
    return found, defined
