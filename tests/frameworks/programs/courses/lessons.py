"""A course's lessons, each by itself, and what they give as JSON.

``python NAME_course.py cuda|cpu [LESSON …]`` prints, for each lesson, the list of its numbers or its error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable

__all__ = ["Lessons"]

Lesson = Callable[[], Iterable[float]]


class Lessons:
    """The lessons of one framework, in their order."""

    def __init__(self) -> None:
        self.all: dict[str, Lesson] = {}

    def __call__(self, lesson: Lesson) -> Lesson:
        """Add a function, by its name, that returns numbers which are the same on every device."""
        self.all[lesson.__name__] = lesson
        return lesson

    def run(self, begin: Callable[[], None] = lambda: None) -> None:
        """Run those that the command line names, or all, and print their numbers."""
        found: dict[str, object] = {}
        for name in sys.argv[2:] or self.all:
            start = time.perf_counter()
            try:
                begin()
                found[name] = [float(one) for one in self.all[name]()]
            except Exception as error:
                found[name] = f"{type(error).__name__}: {' '.join(str(error).split())[-600:]}"
                if "LESSONS_TRACE" in os.environ:
                    traceback.print_exc()
            print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        print(json.dumps(found))
