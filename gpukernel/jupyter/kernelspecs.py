"""Kernelspecs of slices: their content, and how they are installed, found and removed.

The set in ``kernelspecs/`` is what ``write`` makes of `STANDARD`; one source, so that a wheel needs no copies.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukernel.jupyter import logo

__all__ = ["DIRECT_AT_START", "STANDARD", "InvalidSpec", "SliceSpec", "figure", "installed", "write"]

DIRECT_AT_START = (
    "A kernel in direct mode has its slice from the start, since what its programs load depends on it; "
    "on_first_use goes with the modes remote and auto."
)


class InvalidSpec(ValueError):
    """A kernelspec that cannot be; the text is a sentence for the person who asked for it."""


def figure(share: float) -> str:
    """Return a share as names have it."""
    return "1.0" if share == 1 else f"{share:g}"


@dataclass(frozen=True)
class SliceSpec:
    """A kernel on `share` of one device of `model`.

    Attributes
    ----------
    share
        Part of the device's memory, 0 < share <= 1.
    model
        Part of the device's name, as in a slice request.
    name, display_name
        Directory name and launcher name; made of model and share where empty.
    wait_seconds
        How long a start waits for its slice; None leaves the provisioner's 5 s.
    mode
        ``remote``, ``direct`` or ``auto``, as the provisioner's.
    acquire
        The start policy, ``at_start`` or ``on_first_use``; empty leaves the provisioner's.
    priority
        The class, ``interactive``, ``batch`` or ``scavenger``; empty leaves the provisioner's.
    """

    share: float
    model: str = "V100"
    name: str = ""
    display_name: str = ""
    wait_seconds: float | None = None
    mode: str = "remote"
    acquire: str = ""
    priority: str = ""

    def __post_init__(self) -> None:
        if not 0.001 <= self.share <= 1:
            raise InvalidSpec(f"A share lies between 0.001 and 1, for example 0.02; {self.share:g} does not.")
        if self.mode not in ("remote", "direct", "auto"):
            raise InvalidSpec(f"A mode is remote, direct or auto; “{self.mode}” is none.")
        if self.acquire not in ("", "at_start", "on_first_use"):
            raise InvalidSpec(f"A start policy is at_start or on_first_use; “{self.acquire}” is none.")
        if self.priority not in ("", "interactive", "batch", "scavenger"):
            raise InvalidSpec(f"A class is interactive, batch or scavenger; “{self.priority}” is none.")
        if (self.mode, self.acquire) == ("direct", "on_first_use"):
            raise InvalidSpec(DIRECT_AT_START)
        if not self.name:
            model = re.sub(r"[^a-z0-9._-]+", "-", self.model.lower())
            later = f"-{self.priority}" if self.priority not in ("", "interactive") else ""
            object.__setattr__(self, "name", f"gpu-{model or 'any'}-{figure(self.share)}{later}")
        if not self.display_name:
            words = f", {self.priority}" if self.priority not in ("", "interactive") else ""
            object.__setattr__(self, "display_name", f"{self.model or 'GPU'} × {figure(self.share)}{words}")
        if not re.fullmatch(r"[a-z0-9._-]+", self.name):
            raise InvalidSpec(
                f"A kernel's name has only small letters, figures, dots, dashes and underscores; “{self.name}” has others."
            )

    def kernel_json(self, python: str) -> dict[str, Any]:
        """Return the content of ``kernel.json``, running ipykernel with the interpreter `python`."""
        config: dict[str, Any] = {"share": self.share, "model": self.model}
        if self.wait_seconds is not None:
            config["wait_seconds"] = self.wait_seconds
        if self.mode != "remote":
            config["mode"] = self.mode
        if self.acquire:
            config["acquire"] = self.acquire
        if self.priority:
            config["priority"] = self.priority
        return {
            "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": self.display_name,
            "language": "python",
            "interrupt_mode": "signal",
            "metadata": {
                "debugger": True,
                "kernel_provisioner": {"provisioner_name": "gpu-slice", "config": config},
            },
        }


STANDARD = tuple(SliceSpec(share) for share in (0.02, 0.05, 0.1, 0.25, 1.0))


def write(spec: SliceSpec, kernels: Path, python: str = sys.executable) -> Path:
    """Write `spec` into the directory `kernels`, replacing an older one; return its own directory."""
    directory = kernels / spec.name
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(spec.kernel_json(python), indent=1, ensure_ascii=False)
    (directory / "kernel.json").write_text(text + "\n", encoding="utf-8")
    (directory / "logo-svg.svg").write_text(logo.svg(spec.share), encoding="utf-8")
    for side in (32, 64):
        (directory / f"logo-{side}x{side}.png").write_bytes(logo.png(spec.share, side))
    return directory


def installed() -> list[tuple[SliceSpec, Path]]:
    """Return the slice kernelspecs that Jupyter finds from here, by name."""
    from jupyter_client.kernelspec import KernelSpecManager

    found = []
    for name, place in sorted(KernelSpecManager().find_kernel_specs().items()):
        try:
            content = json.loads(Path(place, "kernel.json").read_text(encoding="utf-8"))
            provisioner = content["metadata"]["kernel_provisioner"]
            config = provisioner["config"]
            if provisioner["provisioner_name"] != "gpu-slice":
                continue
            spec = SliceSpec(
                float(config["share"]),
                config["model"],
                name,
                content["display_name"],
                config.get("wait_seconds"),
                config.get("mode", "remote"),
                config.get("acquire", ""),
                config.get("priority", ""),
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found.append((spec, Path(place)))
    return found


def remove(directory: Path) -> None:
    """Remove one installed kernelspec."""
    shutil.rmtree(directory)
