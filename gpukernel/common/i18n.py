"""Sentences for people that can be translated: their template and figures travel beside the English text.

`say` makes one out of a template and its figures.  It is the English text for whoever looks no closer; a page takes the template to its
catalogue of translations and puts the figures into what it finds there.  Templates are written out where they are said, so that
`pybabel` finds them.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gpukernel.common.proto.words_pb2 as pb

__all__ = [
    "WORDS",
    "Sentence",
    "day_words",
    "in_words",
    "later",
    "lines_of",
    "recognised",
    "say",
    "sentence_of",
    "words_behind",
    "words_beside",
    "words_from",
    "words_to",
]

WORDS = "gpukernel-words-bin"
"""The trailing header with the words of a call's refusal."""

_DEEPEST = 8
_LONGEST = 1500  # of the 8192 bytes that a call's status may have, in which the text stands as well


class Sentence(str):
    """An English sentence that knows its `template` and the `values` in it, of which some are such sentences themselves.

    Decisions of a full pool make many of them that nobody reads, so that they are made of what is at hand.
    """

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, object]

    def __new__(cls, template: str, values: Mapping[str, object]) -> Sentence:
        made = super().__new__(cls, template % values)
        made.template, made.values = template, values
        return made

    def __getnewargs__(self) -> tuple[str, Mapping[str, object]]:  # type: ignore[override]
        return self.template, self.values  # for copies


def say(template: str, /, **values: object) -> Sentence:
    """Return `template` with its ``%(name)s`` filled in; a percent sign is written twice."""
    return Sentence(template, values)


def later(text: str) -> str:
    """Return `text`, marked as one that is translated where it is shown: a template, or what errors say."""
    return text


def lines_of(sentences: Sequence[str]) -> Sentence:
    """Return several sentences as one, a line each."""
    return Sentence(
        "\n".join(f"%(line{n})s" for n in range(len(sentences))),
        {f"line{n}": one for n, one in enumerate(sentences)},
    )


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"%\((\w+)\)s", template)
    found = (f"(?P<{part}>.+?)" if place % 2 else re.escape(part) for place, part in enumerate(parts))
    return re.compile("".join(found), re.DOTALL)


def recognised(text: str, templates: Iterable[str]) -> Sentence | None:
    """Return an English text as the sentence that it is, with its figures, by the first template that makes it; None where none does."""
    for template in templates:
        if match := _pattern(template).fullmatch(text):
            return Sentence(template, match.groupdict())
    return None


_WEEKDAYS = (say("Mon"), say("Tue"), say("Wed"), say("Thu"), say("Fri"), say("Sat"), say("Sun"))
_MONTHS = (
    say("Jan"),
    say("Feb"),
    say("Mar"),
    say("Apr"),
    say("May"),
    say("Jun"),
    say("Jul"),
    say("Aug"),
    say("Sep"),
    say("Oct"),
    say("Nov"),
    say("Dec"),
)


def day_words(day: datetime.date) -> Sentence:
    """Return a day as ``Mon 23 Nov``."""
    return say(
        "%(weekday)s %(day)s %(month)s",
        weekday=_WEEKDAYS[day.weekday()],
        day=f"{day.day:02}",
        month=_MONTHS[day.month - 1],
    )


def in_words(text: str, translate: Callable[[str], str]) -> str:
    """Return `text` in the language of `translate`, as far as it knows the words; other text as it is."""
    if not isinstance(text, Sentence):
        return text
    found = {
        name: in_words(value, translate) if isinstance(value, Sentence) else value
        for name, value in text.values.items()
    }
    try:
        return translate(text.template) % found
    except (KeyError, TypeError, ValueError):  # a translation of another version's figures
        return str(text)


def sentence_of(error: BaseException) -> str:
    """Return the sentence of an error, with its words where it has them."""
    return error.args[0] if error.args and isinstance(error.args[0], str) else str(error)


def words_to(text: str) -> pb.Words | None:
    """Return the message of a sentence; None where nobody could translate it."""
    # Imported late: programs without a pool do not load the messages.
    import gpukernel.common.proto.words_pb2 as pb

    if not isinstance(text, Sentence):
        return None
    message = pb.Words(template=text.template)
    for name, value in text.values.items():
        if (words := words_to(value) if isinstance(value, Sentence) else None) is not None:
            message.figures[name].words.CopyFrom(words)
        else:
            message.figures[name].text = str(value)
    return message


def words_from(message: pb.Words, text: str, depth: int = 0) -> str:
    """Return the sentence of a message; `text` where it is empty, or makes another English sentence than that."""
    if not message.template or depth > _DEEPEST:
        return text
    values = {
        name: words_from(one.words, "", depth + 1) if one.HasField("words") else one.text
        for name, one in message.figures.items()
    }
    try:
        made = Sentence(message.template, values)
    except (KeyError, TypeError, ValueError):
        return text
    return made if depth or made == text else text


def words_beside(text: str) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing header of a call that is refused with `text`; none where there is nothing to say, or too much."""
    message = words_to(text)
    packed = message.SerializeToString() if message is not None else b""
    return ((WORDS, packed),) if 0 < len(packed) <= _LONGEST else ()


def words_behind(header: object, text: str) -> str:
    """Return the sentence of a call that was refused with `text`, and with this header."""
    from google.protobuf.message import DecodeError

    import gpukernel.common.proto.words_pb2 as pb

    if not isinstance(header, bytes):
        return text
    try:
        return words_from(pb.Words.FromString(header), text)
    except DecodeError:
        return text
