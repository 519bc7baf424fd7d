"""Pydantic's errors about an entry as sentences: its own by their type, ours as they were raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpukernel.common.bounds import plain_number
from gpukernel.common.i18n import Sentence, later, sentence_of

__all__ = ["entry_words"]

_ENTRIES = later("has entries of its own, each on a line")
_DATE = later("write a date as 2026-12-01")
_KINDS = {
    "bool_parsing": later("write true or false"),
    "bool_type": later("write true or false"),
    "date_from_datetime_inexact": _DATE,
    "date_from_datetime_parsing": _DATE,
    "date_parsing": _DATE,
    "date_type": _DATE,
    "dict_type": _ENTRIES,
    "extra_forbidden": later("is not known here"),
    "finite_number": later("input should be a finite number"),
    "float_parsing": later("input should be a valid number"),
    "float_type": later("input should be a valid number"),
    "greater_than": later("input should be greater than %(gt)s"),
    "greater_than_equal": later("input should be greater than or equal to %(ge)s"),
    "int_from_float": later("input should be a whole number"),
    "int_parsing": later("input should be a whole number"),
    "int_parsing_size": later("input should be a whole number"),
    "int_type": later("input should be a whole number"),
    "invalid_key": later("a name is text; put it into quotes"),
    "less_than_equal": later("input should be less than or equal to %(le)s"),
    "list_type": later("input should be a valid list"),
    "missing": later("field required"),
    "model_attributes_type": _ENTRIES,
    "model_type": _ENTRIES,
    "string_too_long": later("a text has at most %(max_length)s characters here"),
    "string_type": later("input should be text; put it into quotes"),
    "string_unicode": later("input should be text; put it into quotes"),
    "too_long": later("a list has at most %(max_length)s entries here"),
}
"""By pydantic's types of errors; of ours (``value_error``) the sentence is the error's own."""
_WITHOUT_VALUE = frozenset(
    {"extra_forbidden", "model_attributes_type", "model_type", "dict_type", "invalid_key"}
)


def entry_words(error: Mapping[str, Any]) -> tuple[str, str]:
    """Return the sentence of one of pydantic's errors, and the value that is wrong; empty where it says nothing."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _KINDS:
        figures = {name: plain_number(x) if isinstance(x, float) else x for name, x in context.items()}
        said: str = Sentence(_KINDS[kind], figures)
    elif isinstance(own := context.get("error"), ValueError):
        said = sentence_of(own)
    else:
        message = str(error["msg"])
        said = message[:1].lower() + message[1:]
    given = error.get("input")
    if kind in _WITHOUT_VALUE or not isinstance(given, str | int | float):
        return said, ""
    return said, _repr(given)


def _repr(value: str | int | float) -> str:
    """Return a value as a sentence shows it."""
    if isinstance(value, bool):
        return str(value).lower()  # as YAML has it
    if isinstance(value, str):
        value = value[:80]
    elif isinstance(value, int) and value.bit_length() > 256:
        return f"{value:#x}"[:60] + "…"  # Python writes no decimal number of thousands of digits
    return repr(value)[:74]
