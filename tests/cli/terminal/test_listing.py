"""Listings of any rows at any width."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpukernel.cli.terminal.listing import Column, Listing

Row = tuple[str, str, str]


def listing(rows: list[Row]) -> Listing[Row]:
    """Return one whose name stays whole, whose words may be cut, and whose note goes first."""
    return Listing(
        [
            Column("Name", lambda row: row[0]),
            Column("Words", lambda row: row[1], drop=1, least=8),
            Column("Note", lambda row: row[2], drop=2, right=True),
            Column("More", lambda row: row[2], wide=True),
        ],
        rows,
        lambda row: row[0],
    )


ROWS = [("a", "some words that are long", "12"), ("bb", "short", "3456")]


def test_what_fits_is_aligned_and_whole() -> None:
    assert listing(ROWS).lines(80) == [
        "Name  Words                     Note",
        "a     some words that are long    12",
        "bb    short                     3456",
    ]


def test_long_words_are_cut_before_nothing_else_helps_and_columns_go_by_priority() -> None:
    assert listing(ROWS).lines(30) == [
        "Name  Words               Note",
        "a     some words that a…    12",
        "bb    short               3456",
    ]
    assert listing(ROWS).lines(18) == ["Name  Words", "a     some words…", "bb    short"]
    assert listing(ROWS).lines(10) == ["Name", "a", "bb"]


def test_a_pipe_has_all_of_it_on_one_line_a_row_and_wide_the_rest() -> None:
    rows = [("a", "", "12\n\x1b[2J")]
    assert listing(rows).lines(None) == ["Name  Words         Note", r"a     -      12\n\x1b[2J"]
    assert listing(rows).lines(10, wide=True)[0].split() == ["Name", "Words", "Note", "More"]


def test_a_column_in_which_nothing_stands_is_left_out_at_a_terminal() -> None:
    assert listing([("a", "", "1")]).lines(80) == ["Name  Note", "a        1"]


def test_rows_of_one_thing_say_it_once_at_a_terminal_and_each_time_in_a_pipe() -> None:
    two = Listing(
        [Column("Lease", lambda row: row[0], once=True), Column("Device", lambda row: row[1])],
        [("x", "0"), ("x", "1"), ("y", "0")],
        lambda row: row[0],
    )
    assert two.lines(80) == ["Lease  Device", "x      0", "       1", "y      0"]
    assert two.lines(None)[2] == "x      1"
    assert two.names() == ["x", "y"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=12), st.text(max_size=60), st.text(max_size=8)), max_size=5),
    st.integers(4, 120),
)
def test_no_line_is_wider_than_the_terminal_where_what_stays_whole_fits(rows: list[Row], width: int) -> None:
    lines = listing(rows).lines(width)
    assert len(lines) == len(rows) + 1
    assert all(line.isprintable() for line in lines)
    names = listing(rows).lines(None)
    whole = max(
        itertools.chain([4], (cell_len(line) for line in (row[0] for row in rows) if line.isprintable()))
    )
    if whole <= width and all(row[0].isprintable() for row in rows):
        assert max(map(cell_len, lines)) <= width
    assert len(names) == len(rows) + 1
