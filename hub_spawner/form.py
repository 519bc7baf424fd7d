"""The choice page: a card for each course, with what one gets and what is free now.  Plain HTML in JupyterHub's own page and style."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import jinja2

from hub_spawner.choices import Card, Chosen, words

__all__ = ["TEMPLATES", "render_choice"]

TEMPLATES = Path(__file__).parent / "templates"
MIB = 2**20


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["memory"] = _memory
    environment.globals["words"] = words
    return environment


def _memory(size: int) -> str:
    return f"{size // MIB:,} MiB" if size < 10_240 * MIB else f"{size / 2**30:.0f} GiB"


def render_choice(cards: Sequence[Card], last: Chosen, *, without_course: bool) -> str:
    """The form's content, with what was chosen last time chosen again."""
    names = [card.course.name for card in cards]
    chosen = last.course if last.course in names else (names[0] if names else "")
    template = _templates().get_template("choice.html")
    return template.render(cards=cards, chosen=chosen, last=last, without_course=without_course)
