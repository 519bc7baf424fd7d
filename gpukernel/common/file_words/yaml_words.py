"""The sentences of YAML's reader about what is no YAML, as templates with figures."""

from __future__ import annotations

from gpukernel.common.i18n import Sentence, later, recognised

__all__ = ["yaml_words"]

NO_YAML = later("this is no YAML: %(why)s")

_YAML = (
    later("found character %(found)s that cannot start any token"),
    later("expected alphabetic or numeric character, but found %(found)s"),
    later("expected a digit or '.', but found %(found)s"),
    later("expected a digit or ' ', but found %(found)s"),
    later("expected a digit, but found %(found)s"),
    later("expected ' ', but found %(found)s"),
    later("expected '!', but found %(found)s"),
    later("expected '>', but found %(found)s"),
    later("expected a comment or a line break, but found %(found)s"),
    later("expected chomping or indentation indicators, but found %(found)s"),
    later("expected indentation indicator in the range 1-9, but found %(found)s"),
    later("expected URI, but found %(found)s"),
    later("expected URI escape sequence of 2 hexadecimal numbers, but found %(found)s"),
    later("expected escape sequence of %(n)s hexadecimal numbers, but found %(found)s"),
    later("found unknown escape character %(found)s"),
    later("found unexpected end of stream"),
    later("found unexpected document separator"),
    later("could not find expected ':'"),
    later("sequence entries are not allowed here"),
    later("mapping keys are not allowed here"),
    later("mapping values are not allowed here"),
    later("expected <block end>, but found %(found)s"),
    later("expected '<document start>', but found %(found)s"),
    later("expected ',' or ']', but got %(found)s"),
    later("expected ',' or '}', but got %(found)s"),
    later("expected the node content, but found %(found)s"),
    later("found duplicate YAML directive"),
    later("found incompatible YAML document (version 1.* is required)"),
    later("duplicate tag handle %(found)s"),
    later("found undefined tag handle %(found)s"),
    later("but found another document"),
    later("expected a scalar node, but found %(found)s"),
    later("expected a sequence node, but found %(found)s"),
    later("expected a mapping node, but found %(found)s"),
    later("expected a mapping or list of mappings for merging, but found %(found)s"),
    later("expected a mapping for merging, but found %(found)s"),
    later("expected a sequence, but found %(found)s"),
    later("expected a mapping of length 1, but found %(found)s"),
    later("expected a single mapping item, but found %(found)s items"),
    later("found unhashable key"),
    later("could not determine a constructor for the tag %(found)s"),
    # Ours.
    later("references are not used in this file"),
    later("this is nested too deeply"),
    later("there is no such date, time or number"),
    later("this is no UTF-8"),
    later("the character %(found)s cannot stand in a file"),
)


_PARTS = {
    "'\\x00'": later("the end of the file"),
    "'<alias>'": later("a reference"),
    "'<anchor>'": later("an anchor"),
    "'<block end>'": later("the end of a block"),
    "'<block mapping start>'": later("a block of entries"),
    "'<block sequence start>'": later("a block of items"),
    "'<directive>'": later("a directive"),
    "'<document end>'": later("the end of a document"),
    "'<document start>'": later("the start of a document"),
    "'<scalar>'": later("a single value"),
    "'<stream end>'": later("the end of the file"),
    "'<tag>'": later("a tag"),
    "mapping": later("a mapping"),
    "scalar": later("a single value"),
    "sequence": later("a sequence"),
}
"""Its names for the parts of a file."""


def yaml_words(problem: str) -> Sentence:
    """Return the sentence of YAML's reader about what is no YAML."""
    if problem.startswith("'utf-8' codec"):  # of a tag's %-escapes
        problem = "this is no UTF-8"
    found = recognised(problem, _YAML) or Sentence(NO_YAML, {"why": problem})
    return Sentence(found.template, {name: _figure(str(text)) for name, text in found.values.items()})


def _figure(text: str) -> str:
    return Sentence(_PARTS[text], {}) if text in _PARTS else _short(text)


def _short(text: str) -> str:
    """Return a figure on one line: somebody may have pasted a whole file there."""
    text = " ".join(text.split())
    return text if len(text) <= 64 else f"{text[:60]}…"
