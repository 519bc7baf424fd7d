"""Sentences that keep their words on the way from the pool to a page."""

from __future__ import annotations

import copy
import datetime
import pickle

import pytest

import gpukernel.common.proto.words_pb2 as pb
from gpukernel.common.i18n import (
    Sentence,
    day_words,
    in_words,
    say,
    words_behind,
    words_beside,
    words_from,
    words_to,
)


def shout(text: str) -> str:
    return text.upper().replace("%(WHO)S", "%(who)s").replace("%(N)S", "%(n)s")


def test_a_sentence_is_its_english_text_and_can_be_said_otherwise() -> None:
    said = say("%(who)s holds %(n)s of 100 %%", who=say("Course %(n)s", n="ml101"), n=2)
    assert said == "Course ml101 holds 2 of 100 %"
    assert in_words(said, shout) == "COURSE ml101 HOLDS 2 OF 100 %"
    assert in_words("as it is", shout) == "as it is"
    assert in_words(said, lambda text: "%(nothing)s") == said
    assert in_words(said, lambda text: "100 %") == said


def test_it_travels_with_its_figures() -> None:
    inner = say("on %(day)s at %(time)s", day=day_words(datetime.date(2026, 11, 23)), time="10:00")
    said = say("%(who)s begins again %(when)s.", who="50% of anna", when=inner)
    assert said == "50% of anna begins again on Mon 23 Nov at 10:00."
    ((_, packed),) = words_beside(said)
    found = words_behind(packed, str(said))
    assert isinstance(found, Sentence)
    assert in_words(found, lambda text: {"Mon": "lundi"}.get(text, text)) == (
        "50% of anna begins again on lundi 23 Nov at 10:00."
    )


@pytest.mark.parametrize(
    "header", [None, "text", b"", b"\xff\xff\xff", pb.Words(template="%(x)s").SerializeToString()]
)
def test_words_that_make_no_sense_leave_the_text_alone(header: object) -> None:
    found = words_behind(header, "The text.")
    assert found == "The text."
    assert not isinstance(found, Sentence)


def test_words_that_say_something_else_than_the_text_count_for_nothing() -> None:
    message = words_to(say("Pay %(n)s.", n=5))
    assert not isinstance(words_from(message, "Pay 4."), Sentence)
    assert isinstance(words_from(message, "Pay 5."), Sentence)
    deep: str = "x"
    for _ in range(50):
        deep = say("(%(inner)s)", inner=deep)
    assert not isinstance(words_from(words_to(deep), str(deep)), Sentence)


def test_a_copy_of_a_sentence_can_be_said_otherwise_too() -> None:
    said = say("%(who)s holds %(n)s", who=say("Course %(n)s", n="ml101"), n=2)
    for made in (copy.deepcopy(said), copy.copy(said), pickle.loads(pickle.dumps(said))):
        assert made == said
        assert in_words(made, shout) == "COURSE ml101 HOLDS 2"


def test_plain_text_and_very_long_words_travel_without() -> None:
    assert words_beside("plain") == ()
    assert words_beside(say("%(text)s", text="x" * 5000)) == ()
    assert words_to("plain") is None
