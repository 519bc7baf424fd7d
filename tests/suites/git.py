"""Files of other people's repositories, at a commit.

A machine that reaches no GitHub needs only a mirror and Git's own ``url.….insteadOf``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.suites.sources import NotHere, _kept


def checkout(repository: str, commit: str, *paths: str, tag: str = "") -> Path:
    """Return the folder with ``paths`` of a GitHub repository at ``commit``, which ``tag`` must name where it is given.

    Of its files only those are fetched.
    """
    with _kept(f"{repository.replace('/', '-')}-{tag or commit[:10]}") as (folder, fresh):
        if fresh:
            _git("init", "--quiet", cwd=folder)
            wanted = f"refs/tags/{tag}" if tag else commit
            only = ("--depth=1", "--filter=blob:none")
            _git("fetch", "--quiet", *only, f"https://github.com/{repository}", wanted, cwd=folder)
            found = _git("rev-parse", "FETCH_HEAD^{commit}", cwd=folder)
            if not found.startswith(commit):
                raise NotHere(f"{repository} {tag} is {found[:10]} and was {commit}")
        if lacking := [path for path in paths if not (folder / path).exists()]:
            _git("checkout", "--quiet", "FETCH_HEAD", "--", *lacking, cwd=folder)
    return folder


def _git(*words: str, cwd: Path) -> str:
    done = subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotHere(f"git {words[0]} {words[-1]}: {said[-1]}")
    return done.stdout.strip()
