"""The choice before a server starts: the courses that a person may choose, and the check of what they chose.

The pool decides who is in which course; here are only the words and the rules of the choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpukernel.client.hub import HubClient
from gpukernel.common.course import Course, Offered
from gpukernel.common.errors import PoolError, PoolUnreachable
from gpukernel.common.i18n import say, sentence_of
from gpukernel.common.model import Chance
from gpukernel.jupyter.kernelspecs import STANDARD
from gpukernel.jupyter.offers import short_model

__all__ = ["Card", "ChoiceRefused", "Chosen", "cards_of", "choose", "words"]

MIB = 2**20


class ChoiceRefused(Exception):
    """The choice cannot be; the text is one sentence for the person."""


@dataclass(frozen=True)
class Chosen:
    """A course and an environment, both of which may be empty."""

    course: str = ""
    environment: str = ""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Chosen:
        """Return what a form or a REST request says; values of other types count as empty."""
        course, environment = options.get("course"), options.get("environment")
        return cls(
            course if isinstance(course, str) else "", environment if isinstance(environment, str) else ""
        )

    def plain(self) -> dict[str, str]:
        """Return the fields that are not empty, as `user_options` keep them."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class Card:
    """One course as its card shows it: `offers` with their prospects, `trouble` where those are not known."""

    course: Course
    role: str
    environments: tuple[str, ...]
    offers: tuple[tuple[Offered, Chance], ...] = ()
    trouble: str = ""

    @property
    def title(self) -> str:
        """The course's title, or its name where it has none."""
        return self.course.title or self.course.name

    @property
    def usable(self) -> tuple[tuple[Offered, Chance], ...]:
        """The offers that may be had, now or later."""
        return tuple((offer, chance) for offer, chance in self.offers if chance.state != "refused")


def words(chance: Chance) -> str:
    """Return how soon a size can be had, in English; `gpukernel.common.i18n` says it in other languages."""
    if chance.state == "refused":
        return chance.sentence
    if chance.state == "free":
        return say("%(n)s free now", n=chance.free)
    if chance.wait_seconds >= 0:
        minutes = max(round(chance.wait_seconds / 60), 1)
        if minutes < 120:
            return say("would wait about %(n)s min", n=minutes)
        return say("would wait about %(n)s h", n=f"{minutes / 60:.0f}")
    return say("would wait behind %(n)s", n=chance.waiting) if chance.waiting else say("would wait")


async def cards_of(client: HubClient, person: str, environments: Iterable[str]) -> list[Card]:
    """Return the courses of `person` with what they would get now, the ones that they instruct last.

    Parameters
    ----------
    client
        Speaks on behalf of the person.
    environments
        The names that the administrator has set up; a course may offer some of them.
    """
    known = list(environments)
    cards = []
    for entry in await client.courses():
        profile = entry.course.profile
        offered = [name for name in profile.environments if name in known] or known
        sizes = profile.offers or await _usual_sizes(client)
        try:
            chances = await client.estimate(entry.course.name, sizes, person)
        except PoolUnreachable:
            raise
        except PoolError as error:
            cards.append(Card(entry.course, entry.role, tuple(offered), trouble=sentence_of(error)))
            continue
        pairs = tuple(zip(sizes, chances, strict=True))
        cards.append(Card(entry.course, entry.role, tuple(offered), pairs))
    return sorted(cards, key=lambda card: (card.role == "instructor", card.title))


async def _usual_sizes(client: HubClient) -> tuple[Offered, ...]:
    models = sorted({short_model(device.name) for device in await client.devices() if device.available})
    return tuple(Offered(spec.share, model) for model in models for spec in STANDARD)


def choose(cards: Iterable[Card], asked: Chosen, *, without_course: bool) -> tuple[Chosen, Card | None]:
    """Return what a server starts with, and its course's card.

    Raises
    ------
    ChoiceRefused
        With a sentence that says what may be chosen.
    """
    by_name = {card.course.name: card for card in cards}
    card = by_name.get(asked.course)
    if card is None and asked.course:
        others = ", ".join(by_name) or say("none")
        raise ChoiceRefused(
            say(
                "You are not in course %(course)s; your courses: %(others)s.",
                course=asked.course[:60],
                others=others,
            )
        )
    if card is None and len(by_name) == 1 and not without_course:
        card = next(iter(by_name.values()))
    if card is None and not without_course:
        if by_name:
            raise ChoiceRefused(say("Choose one of your courses: %(courses)s.", courses=", ".join(by_name)))
        raise ChoiceRefused(say("You are in no course that uses GPUs; ask your instructor to add you."))
    if card is None:
        return Chosen(environment=asked.environment), None
    environment = asked.environment
    if environment and environment not in card.environments:
        known = ", ".join(card.environments) or say("none")
        raise ChoiceRefused(
            say(
                "%(course)s has no environment %(name)s; it has: %(known)s.",
                course=card.title,
                name=environment[:60],
                known=known,
            )
        )
    if not environment and card.environments:
        environment = card.environments[0]
    return Chosen(card.course.name, environment), card
