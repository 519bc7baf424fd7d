"""The page of all messages: each sentence that the code can say has its topic, and each topic its section with what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import message_list
from docs.message_list import MARK, TOPICS, listed, messages, topic_of

PAGE = Path(message_list.__file__).with_name("troubleshooting.md")


def test_every_sentence_has_a_topic_and_stands_on_the_page() -> None:
    found = messages()
    assert sum(map(len, found.values())) > 400
    assert [path for path in found if not topic_of(path)] == []
    page = message_list.on_page_markdown(PAGE.read_text())
    for path, sentences in found.items():
        for sentence in sentences:
            assert message_list.escaped(sentence) in page, path


def test_every_topic_has_one_section_with_what_to_do() -> None:
    text = PAGE.read_text()
    assert sorted(MARK.findall(text)) == sorted(TOPICS)
    for section in text.split("\n## ")[1:]:
        (topic,) = MARK.findall(section)
        advice = section.partition("**\n")[2].partition("<!--")[0]
        assert len(advice.split()) > 10, topic
        assert next(iter(listed(topic)), None), topic


@pytest.mark.parametrize(
    ("source", "sentences"),
    [
        (
            'raise Refused("full", f"There is no room on {device} for that.")',
            {"There is no room on … for that."},
        ),
        ('reason = say("All %(models)s are in use now.", models=m)', {"All … are in use now."}),
        (
            'raise Problem("It cannot be read: " + why + " Mend it.", FAILED)',
            {"It cannot be read: … Mend it."},
        ),
        ('raise KeyError("nothing for people here")', set()),
    ],
)
def test_sentences_are_found_as_they_are_written(source: str, sentences: set[str]) -> None:
    found = {" ".join(re.sub(r"%\(\w+\)s", "…", one).split()) for one in message_list.of_python(source)}
    assert {one for one in found if " " in one} == sentences


def test_what_the_shim_complains_of_is_found() -> None:
    source = 'if (x) complain(\n    "the slice is "\n    "over.");'
    assert list(message_list.of_cpp(source)) == ["the slice is over."]
    assert any("undocumented functions" in one for one in listed("program"))
