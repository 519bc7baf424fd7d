"""The error of a kernel that gets no slice, and what the pool's errors are to the person at a notebook."""

from __future__ import annotations

import os

from gpukernel.common.errors import NoPoolAnswers

__all__ = ["SliceUnavailable", "problem_words"]

AWAY = "The GPU pool does not answer now; what runs on a slice goes on. If this lasts, tell whoever runs this JupyterHub."


class SliceUnavailable(RuntimeError):
    """The kernel got no slice; the text is one sentence for the person who started it."""


def problem_words(error: Exception) -> str:
    """Return why the pool said nothing, as one sentence for the person here: of a JupyterHub's people nobody can start a pool."""
    if "JUPYTERHUB_USER" in os.environ and isinstance(error, NoPoolAnswers):
        return AWAY
    return str(error) or "The pool is slow to answer."
