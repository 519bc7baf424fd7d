"""``-o``: one listing as a table for people, or as JSON, YAML or names for programs."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from gpukernel.cli.terminal.charset import is_ascii, make_console, terminal_width, write_data
from gpukernel.cli.terminal.listing import Listing
from gpukernel.cli.terminal.output import Problem

__all__ = [
    "Format",
    "FormatOption",
    "chosen",
    "plain",
    "present",
    "print_data",
    "print_listing",
    "print_names",
]

Row = TypeVar("Row")


class Format(enum.StrEnum):
    """The forms of a listing."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


FormatOption = Annotated[
    Format,
    typer.Option(
        "-o",
        "--output",
        help="A table as wide as the terminal; with every column; or, for programs, JSON, YAML or a name a line.",
    ),
]


def chosen(form: Format, as_json: bool) -> Format:
    """Return the format of ``-o`` and ``--json`` together; a `Problem` where they contradict each other."""
    if as_json and form not in (Format.TABLE, Format.JSON):
        raise Problem(f"--json is -o json; leave one of --json and -o {form} out.", 2)
    return Format.JSON if as_json else form


def plain(value: Any) -> Any:
    """Return an object as dictionaries, lists and figures; secrets stay away."""
    data = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else dict(value)  # type: ignore[arg-type]
    data.pop("secret", None)
    return data


def print_data(objects: Iterable[Any], form: Format = Format.JSON) -> None:
    """Print a list of objects as JSON or YAML; dataclasses become objects."""
    found = [plain(value) for value in objects]
    if form is Format.YAML:
        import yaml

        # By way of JSON: tuples are lists, names of enumerations texts.
        text = yaml.safe_dump(
            json.loads(json.dumps(found)), sort_keys=False, allow_unicode=not is_ascii(), width=120
        )
    else:
        text = json.dumps(found, indent=2) + "\n"
    write_data(text)


def print_names(names: Iterable[str]) -> None:
    """Print a name a line."""
    write_data("".join(f"{name}\n" for name in names))


def print_listing(listing: Listing[Row], form: Format, empty: str | Text) -> None:
    """Print a listing as a table, or `empty` where it has no row."""
    console = make_console()
    if not listing.rows:
        console.print(empty, markup=False)
    else:
        console.print(listing.text(terminal_width(), wide=form is Format.WIDE), soft_wrap=form is Format.WIDE)


def present(objects: Iterable[Any], listing: Listing[Row], form: Format, empty: str) -> None:
    """Print one listing in any format; `objects` are what programs get."""
    if form in (Format.JSON, Format.YAML):
        print_data(objects, form)
    elif form is Format.NAME:
        print_names(listing.names())
    else:
        print_listing(listing, form, empty)
