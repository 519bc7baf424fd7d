"""A course: its members, and what it offers beyond its quotas.  The pool keeps it; JupyterHub acts on it.

Nothing in a profile bounds a request: an offer is a choice that people are shown, a quota is what they may take.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpukernel.common.i18n import say
from gpukernel.common.model import PRIORITIES

__all__ = ["STARTS", "Course", "Offered", "Profile"]

STARTS = ("", "at_start", "on_first_use")
_OFFER = re.compile(
    r"(?:(?P<model>[^×]*?[^×\s])\s*(?:×|\bx\b)\s*)?(?P<share>\d*\.?\d+)"
    rf"(?:\s+(?P<priority>{'|'.join(PRIORITIES)}))?"
)


@dataclass(frozen=True)
class Offered:
    """A size to choose: a `share` of a device whose name contains `model`, any device where that is empty, in the class `priority`; as
    the course says where that is empty."""

    share: float
    model: str = ""
    priority: str = ""

    @classmethod
    def parse(cls, text: str) -> Offered:
        """Return the size of ``V100 × 0.02``, ``V100 x 0.02``, ``0.02`` or ``V100 x 1 batch``.

        Raises
        ------
        ValueError
            With what would be right.
        """
        match = _OFFER.fullmatch(text.strip())
        if match is None or not 0.001 <= (share := float(match["share"])) <= 1 or len(text) > 80:
            raise ValueError(
                say(
                    "write an offer as V100 x 0.02, or as 0.02 of any model, and a class behind it, as in V100 x 1 batch; "
                    "a share lies from 0.001 to 1"
                )
            )
        model = match["model"] or ""
        return cls(share, "" if model == "GPU" else model, match["priority"] or "")

    def __str__(self) -> str:
        return f"{self.size} {self.priority}" if self.priority else self.size

    @property
    def size(self) -> str:
        """Return it without its class, ``V100 × 0.02``."""
        return f"{self.model or 'GPU'} × {self.share:g}"


@dataclass(frozen=True)
class Profile:
    """The offers and groups of one course.

    Attributes
    ----------
    term
        For people: “autumn 2026”.
    groups, instructor_groups
        Groups of JupyterHub whose members are the course's students and instructors.
    offers
        Empty: the usual sizes of every model in the pool.
    environments
        Names of environments that JupyterHub's administrator has set up; the first is the usual one.
    start
        When a kernel asks for its slice, as the provisioner's `acquire`; empty: as the administrator says.
    notebooks
        Files and folders, as a single-user server sees them, that are copied into the home directory at its first start.
    priority
        The class in which kernels ask where their offer names none; empty: interactive.
    """

    term: str = ""
    groups: tuple[str, ...] = ()
    instructor_groups: tuple[str, ...] = ()
    offers: tuple[Offered, ...] = ()
    environments: tuple[str, ...] = ()
    start: str = ""
    notebooks: tuple[str, ...] = ()
    priority: str = ""

    def plain(self) -> dict[str, Any]:
        """Return what is set, as files and messages have it."""
        values = asdict(self) | {"offers": [str(one) for one in self.offers]}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Profile:
        """Return the profile of `plain`'s result."""
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in plain.items()}
        values["offers"] = tuple(Offered.parse(text) for text in plain.get("offers", ()))
        return cls(**values)

    def dump(self) -> str:
        """Return the profile as the database keeps it; empty where nothing is set."""
        plain = self.plain()
        return json.dumps(plain, ensure_ascii=False) if plain else ""

    @classmethod
    def load(cls, text: str) -> Profile:
        """Return the profile of `dump`'s result."""
        return cls.of(json.loads(text)) if text else cls()


@dataclass(frozen=True)
class Course:
    """A course: `weight` is its part of the pool where several wait; `members` says who has which role (``*``: everybody),
    beside the groups in its `profile`.
    """

    name: str
    title: str = ""
    weight: float = 1.0
    members: Mapping[str, str] = field(default_factory=dict)
    profile: Profile = field(default_factory=Profile)
