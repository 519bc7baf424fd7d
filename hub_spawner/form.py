"""The choice page: a card for each course, with what one gets and what is free now.  Plain HTML in JupyterHub's own page and style."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import jinja2

from gpukernel.jupyter.offers import memory_words
from hub_spawner.choices import Card, Chosen, words

__all__ = ["TEMPLATES", "render_choice"]

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["memory"] = memory_words
    environment.globals["words"] = words
    return environment


def render_choice(cards: Sequence[Card], last: Chosen, *, without_course: bool, console: str = "") -> str:
    """The form's content, with what was chosen last time chosen again; `console` is the instructors' address."""
    names = [card.course.name for card in cards]
    chosen = last.course if last.course in names else (names[0] if names else "")
    template = _templates().get_template("choice.html")
    return template.render(
        cards=cards, chosen=chosen, last=last, without_course=without_course, console=console
    )
