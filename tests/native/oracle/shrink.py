"""A shorter kernel that still shows a difference: statements are dropped for as long as it stays."""

from __future__ import annotations

from collections.abc import Callable

from tests.native.oracle.kernels import Kernel


def shrunk(kernel: Kernel, differs: Callable[[Kernel], str], attempts: int) -> tuple[Kernel, str]:
    """Drop statements of a kernel, in place, and return it with what ``differs`` last said of it.

    Large groups of neighbours are tried first.  What no longer compiles, or has no one answer, does not differ.
    """
    what = differs(kernel)
    while what:
        changed = False
        for statements in kernel.lists():
            size = len(statements)
            while size:
                for at in range(0, len(statements), size):
                    kept = statements[:]
                    del statements[at : at + size]
                    if len(kept) == len(statements):
                        continue
                    attempts -= 1
                    if attempts > 0 and (now := differs(kernel)):
                        what, changed = now, True
                    else:
                        statements[:] = kept
                    if attempts <= 0:
                        return kernel, what
                size //= 2
        if not changed:
            return kernel, what
    return kernel, "the difference does not come again"
