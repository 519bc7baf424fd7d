"""The choice page: a card for each course, with its sizes and what is free now, as plain HTML in JupyterHub's own
page and style.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import jinja2

from gpukernel.jupyter.offers import memory_words
from hub_spawner.choices import Card, Chosen, words
from hub_spawner.i18n import Texts

__all__ = ["TEMPLATES", "render_choice"]

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def _templates(language: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    texts = Texts(language)
    environment.install_gettext_callables(texts.gettext, texts.ngettext, newstyle=True)  # type: ignore[attr-defined]
    environment.filters["memory"] = memory_words
    environment.filters["said"] = texts.of
    environment.globals["words"] = words
    environment.globals["language"] = texts.tag
    return environment


def render_choice(
    cards: Sequence[Card],
    last: Chosen,
    *,
    without_course: bool,
    console: str = "",
    language: str = "en",
) -> str:
    """Return the form's content, with the last choice chosen again; `console` is the instructors' address."""
    names = [card.course.name for card in cards]
    chosen = last.course if last.course in names else (names[0] if names else "")
    template = _templates(language).get_template("choice.html")
    return template.render(
        cards=cards, chosen=chosen, last=last, without_course=without_course, console=console
    )
