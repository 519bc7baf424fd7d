"""The options of the commands that log."""

from __future__ import annotations

from typing import Annotated

import typer

from gpukernel.logs import Form, Level

__all__ = ["Form", "Level", "LogFormat", "LogLevel"]

LogLevel = Annotated[
    Level,
    typer.Option(
        "--log-level",
        envvar="GPUKERNEL_LOG_LEVEL",
        help="Leave less important lines out of the log, which goes to standard error.",
    ),
]
LogFormat = Annotated[
    Form,
    typer.Option(
        "--log-format",
        envvar="GPUKERNEL_LOG_FORMAT",
        help="Lines for people, or a JSON object a line.",
    ),
]
