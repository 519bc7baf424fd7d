"""The profile of what ``gpukernel run`` runs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import TracebackType

from gpukernel.cli.terminal.output import USAGE, Problem, complain
from gpukernel.common.model import Lease
from gpukernel.remoting.profile.picture import html_page
from gpukernel.remoting.profile.question import NotCounted, begin_profile, end_profile
from gpukernel.remoting.profile.table import text_table
from gpukernel.remoting.worker_query import WorkerSilent

__all__ = ["CountedRun", "check_target"]

FORMS = (".json", ".html")


def check_target(profile: bool, target: Path | None, direct: bool) -> bool:
    """Return whether a profile is wanted.

    Raises
    ------
    Problem
        It cannot be had, or written where it is to go; before anything was started for it.
    """
    if not profile and target is None:
        return False
    if direct:
        raise Problem(
            "With --direct the program uses the GPU itself, and nobody can count what its kernels do: leave out --direct or --profile.",
            USAGE,
        )
    if target is not None and target.suffix not in FORMS:
        raise Problem(f"A profile is written as JSON or HTML: “{target}” must end in .json or .html.", USAGE)
    if target is not None and not target.absolute().parent.is_dir():
        raise Problem(f"There is no folder for “{target}”.", USAGE)
    return True


class CountedRun:
    """Counts the kernels of a lease while it is entered, and shows what was counted: on standard error, or in `target`."""

    def __init__(self, lease: Lease, target: Path | None, title: str) -> None:
        self._devices = [piece.endpoints for piece in lease.slices]
        self._secret, self._target, self._title = lease.secret, target, title

    async def __aenter__(self) -> None:
        try:
            await asyncio.to_thread(begin_profile, self._devices, self._secret)
        except (NotCounted, WorkerSilent) as error:
            raise Problem(str(error)) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            profile = await asyncio.to_thread(end_profile, self._devices, self._secret)
        except (NotCounted, WorkerSilent) as silent:
            complain(f"there is no profile: {silent}.")
            return
        if self._target is None:
            print(f"\n{text_table(profile)}", file=sys.stderr)
            return
        text = (
            json.dumps(profile.data(), indent=2) + "\n"
            if self._target.suffix == ".json"
            else html_page(profile, self._title)
        )
        try:
            await asyncio.to_thread(self._target.write_text, text, encoding="utf-8")
        except OSError as failed:
            complain(f"the profile cannot be written to “{self._target}”: {failed.strerror}.")
