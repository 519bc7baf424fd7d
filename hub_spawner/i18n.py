"""Translations of the pages: English in the source, other languages from ``locale/*.po``, read when the service starts.

No compiled catalogues and no build step: `babel` reads the ``.po`` files themselves.
"""

from __future__ import annotations

import functools
from pathlib import Path

from babel.core import Locale
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po

from gpukernel.common.i18n import Sentence, in_words, later

__all__ = ["LANGUAGES", "Texts", "choose_language", "later"]

LANGUAGES = {"en": "English", "zh": "中文"}
_TAGS = {"zh": "zh-CN"}
_FOLDER = Path(__file__).parent / "locale"


@functools.cache
def _catalog(language: str) -> Catalog:
    path = _FOLDER / f"{language}.po"
    if not path.exists():
        return Catalog(locale=language)
    with path.open("rb") as file:
        return read_po(file, locale=language)


class Texts:
    """The words of one language, with the functions that templates and handlers call as `gettext` does."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._catalog = _catalog(language)
        self._form = Locale(language).plural_form
        # gettext numbers a language's forms in this order.
        known = {*self._form.tags, "other"}
        self._forms = [name for name in ("zero", "one", "two", "few", "many", "other") if name in known]

    @property
    def tag(self) -> str:
        """The language as the attribute ``lang`` names it."""
        return _TAGS.get(self.language, self.language)

    def gettext(self, text: str) -> str:
        """Return `text` in this language, or as it is where nobody has translated it."""
        message = self._catalog.get(text)
        return str(message.string) if message and message.string else text

    def of(self, sentence: str) -> str:
        """Return a sentence of the pool's or of ours in this language; figures and names stay what they are."""
        if isinstance(sentence, Sentence):
            return in_words(sentence, self.gettext)
        return self.gettext(sentence)

    def ngettext(self, one: str, many: str, count: int) -> str:
        """Return `one` or `many`, as this language counts."""
        message = self._catalog.get(one)
        if message and isinstance(message.string, tuple | list) and any(message.string):
            number = [str(name) for name in self._forms].index(self._form(count))
            return str(message.string[min(number, len(message.string) - 1)])
        return one if count == 1 else many


def choose_language(cookie: str | None, accepted: str) -> str:
    """Return the language of the cookie, else the first known one that the browser asks for, else English."""
    if cookie in LANGUAGES:
        return str(cookie)
    asked = []
    for place, part in enumerate(accepted.split(",")[:20]):
        name, _, quality = part.strip().partition(";q=")
        try:
            asked.append((-float(quality or 1), place, name.partition("-")[0].lower()))
        except ValueError:
            continue
    return next((name for _, _, name in sorted(asked) if name in LANGUAGES), "en")
