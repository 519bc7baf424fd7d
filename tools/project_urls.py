"""``python -m tools.project_urls HOME``: print the table ``[project.urls]`` for the project at this address of a forge, to append to ``pyproject.toml``.

The tree names no address, since it has none of its own: the workflow that publishes a release says where it runs.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

__all__ = ["table"]

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def table(home: str) -> str:
    """Return the table for `home`, such as ``https://forge.example/owner/gpukernel``, with the pages of this version.

    Raises
    ------
    ValueError
        It is no address of the web.
    """
    if not home.startswith("https://") or any(one in home for one in '"\\ \n'):
        raise ValueError(f"“{home}” is no address that begins with https://.")
    home = home.rstrip("/")
    version = tomllib.loads(PROJECT.read_text())["project"]["version"]
    pages = {
        "Homepage": home,
        "Documentation": f"{home}/blob/v{version}/docs/index.md",
        "Changelog": f"{home}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    return "\n".join(["[project.urls]", *(f'{name} = "{address}"' for name, address in pages.items())])


if __name__ == "__main__":
    print(f"\n{table(sys.argv[1])}")
