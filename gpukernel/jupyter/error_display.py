"""The display of `SliceUnavailable` as its one sentence, in programs that would print a traceback around it.

``jupyter_server`` hands the sentence to JupyterLab by itself.  ``jupyter execute``, ``jupyter console`` and
``papermill`` let it reach the interpreter's ``sys.excepthook``, and ``KernelManager`` logs it on the way.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from gpukernel.jupyter.errors import SliceUnavailable

__all__ = ["show_as_sentence"]


class _WithoutTraceback(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], SliceUnavailable):
            record.exc_info = None
            record.exc_text = None
        return True


_FILTER = _WithoutTraceback()


def show_as_sentence(log: object) -> None:
    """Have uncaught `SliceUnavailable` errors, and those in `log`, appear without a traceback from now on."""
    logger = getattr(log, "logger", log)
    if isinstance(logger, logging.Logger):
        logger.addFilter(_FILTER)
    before = sys.excepthook
    if getattr(before, "shows_sentences", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, SliceUnavailable):
            print(error, file=sys.stderr)
        else:
            before(kind, error, trace)

    hook.shows_sentences = True  # type: ignore[attr-defined]
    sys.excepthook = hook
