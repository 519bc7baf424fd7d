"""Launches within the ranges that a program marks with the package ``nvtx``, as it comes from PyPI."""

from __future__ import annotations

import pytest

from gpukernel import native
from gpukernel.remoting.profile.figures import ProfiledKernels
from gpukernel.remoting.profile.picture import html_picture
from gpukernel.remoting.profile.table import text_table
from tests.native.simgpu_profile.conftest import HEAD, counted

pytest.importorskip("nvtx")

KERNEL = HEAD + ".visible .entry touch() { ret; }"
PROGRAM = f"""
import os, threading
os.environ["NVTX_INJECTION64_PATH"] = {str(native.shim_dir() / "libcuda.so.1")!r}
import nvtx
PTX = '''{KERNEL}'''
def go(times=1, kernel="touch"): launch(PTX, kernel, 1, 32, times=times)
"""


def ranges(code: str) -> dict[str, int]:
    """Run a program, and return the launches in each of its ranges."""
    return {one.range: one.launches for one in counted(PROGRAM + code)}


def test_pushed_and_popped_ranges_are_around_what_is_launched_in_them() -> None:
    code = """
go()
with nvtx.annotate("epoch", color="red"):
    go(2)
    for step in range(3):
        with nvtx.annotate("forward"): go(4)
        with nvtx.annotate("backward", payload=step): go(5)
@nvtx.annotate("sum of all", domain="my library")
def total(): go(6)
total()
nvtx.push_range("outer"); total(); nvtx.pop_range(); nvtx.pop_range(); go()
"""
    assert ranges(code) == {
        "": 2,
        "epoch": 2,
        "epoch/forward": 12,
        "epoch/backward": 15,
        "my library: sum of all": 6,
        "outer/my library: sum of all": 6,
    }


def test_started_ranges_are_around_what_any_thread_launches_until_they_end() -> None:
    code = """
first = nvtx.start_range("loading"); second = nvtx.start_range("training", domain="other"); go()
def another():
    ok(d.cuCtxSetCurrent(context)); go(2)
    with nvtx.annotate("of a thread"): go(3)
context = ok(d.cuCtxGetCurrent())
thread = threading.Thread(target=another); thread.start(); thread.join()
with nvtx.annotate("of the first"): nvtx.end_range(first); go(4)
nvtx.end_range(second); nvtx.end_range(first); go(5)
"""
    assert ranges(code) == {
        "loading/other: training": 3,
        "loading/other: training/of a thread": 3,
        "other: training/of the first": 4,
        "": 5,
    }


def test_domains_pop_their_own_ranges() -> None:
    code = """
one, two = nvtx.get_domain("one"), nvtx.get_domain("two")
def push(domain, name): domain.push_range(domain.get_event_attributes(message=name))
push(one, "a"); push(two, "b"); push(one, "c"); go()
two.pop_range(); go(2); one.pop_range(); go(3); two.pop_range(); one.pop_range(); go(4)
"""
    assert ranges(code) == {"one: a/two: b/one: c": 1, "one: a/one: c": 2, "one: a": 3, "": 4}


def test_names_of_all_kinds_are_shown_and_bounded() -> None:
    code = """
for name in ("größer 数", "a/b", "x\\x1b[31m\\n", "y" * 100, "数" * 50, ""):
    with nvtx.annotate(name): go()
for n in range(3000): nvtx.push_range("deep" + str(n))
go()
for n in range(3000): nvtx.pop_range()
go()
"""
    found = ranges(code)
    assert {"größer 数", "a∕b", "x [31m ", "y" * 61 + "…", "数" * 20 + "…", ""} <= set(found)
    (deep,) = (text for text in found if text.startswith("deep0/deep1/"))
    assert len(deep.encode()) <= 256
    assert deep.endswith("…")
    assert sum(found.values()) == 8


def test_a_program_with_more_ranges_than_the_table_has_room_for() -> None:
    code = """
for n in range(400):
    with nvtx.annotate(f"step {n}"): go()
for n in range(40_000): nvtx.start_range(f"leak {n}")
go(7)
"""
    found = ranges(code)
    assert len(found) == 256
    assert set(found.values()) == {1}


def test_the_table_and_the_picture_have_the_ranges() -> None:
    code = """
go()
for n in range(3):
    with nvtx.annotate("outer <b>"):
        go(2)
        with nvtx.annotate("inner"): go(1)
"""
    profile = ProfiledKernels(tuple(counted(PROGRAM + code)))
    told = [(one.path, one.launches) for one in profile.ranges()]
    assert told == [(("outer <b>",), 9), (("outer <b>", "inner"), 3)]
    outer, inner = profile.ranges()
    assert 0 < inner.share < outer.share < 1
    assert outer.seconds == pytest.approx(sum(one.seconds for one in profile.kernels if one.range))
    lines = text_table(profile).splitlines()
    at = next(n for n, line in enumerate(lines) if line.split() == ["Range", "Launches", "Time", "Share"])
    assert lines[at + 1].startswith("outer <b>  ")
    assert lines[at + 1].split()[2] == "9"
    assert lines[at + 2].startswith("  inner  ")
    picture = html_picture(profile)
    assert "range outer &lt;b&gt;: " in picture
    assert "<b>inner" not in picture
    assert profile.data()["ranges"][1]["path"] == ["outer <b>", "inner"]
