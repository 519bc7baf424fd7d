"""``systemctl`` for machines without systemd: it starts what a unit says, as the unit says, and supervises nothing.

It reads ``ExecStart``, ``User``, ``Environment``, ``EnvironmentFile``, ``StateDirectory``, ``WorkingDirectory`` and ``ConditionPathExists``, with drop-ins and
the specifiers ``%h``, ``%H`` and ``%i``.  Outputs are in ``/run/units/NAME.log``, or ``~/.units/NAME.log`` of a person's own.
"""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import subprocess
import sys
from pathlib import Path


def settings_of(folder: Path, unit: str) -> list[tuple[str, str]]:
    """The settings of a unit and its drop-ins, in order."""
    plain, _, _ = unit.partition("@")
    file = folder / (f"{plain}@.service" if "@" in unit else f"{unit}.service")
    found = list[tuple[str, str]]()
    for one in [file, *sorted(Path(f"{file}.d").glob("*.conf"))]:
        for line in one.read_text().splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith(("#", ";")):
                if not value:
                    found = [entry for entry in found if entry[0] != name]
                else:
                    found.append((name.strip(), value.strip()))
    return found


def start(folder: Path, unit: str, logs: Path) -> None:
    """Start a unit."""
    home = os.path.expanduser("~")
    specifiers = {"%h": home, "%H": socket.gethostname(), "%i": unit.partition("@")[2]}

    def expanded(text: str) -> str:
        for specifier, value in specifiers.items():
            text = text.replace(specifier, value)
        return text

    settings = [(name, expanded(value)) for name, value in settings_of(folder, unit)]
    first = dict(reversed(settings))
    if (needed := first.get("ConditionPathExists")) and not Path(needed).exists():
        sys.exit(f"{unit}: {needed} is not there")
    account = pwd.getpwnam(first["User"]) if "User" in first else pwd.getpwuid(os.getuid())
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LANG": "C.UTF-8",
    }
    for name, value in settings:
        if name == "Environment":
            environment |= dict(word.split("=", 1) for word in shlex.split(value))
        elif name == "EnvironmentFile" and Path(value.lstrip("-")).exists():
            words = shlex.split(Path(value.lstrip("-")).read_text())
            environment |= dict(word.split("=", 1) for word in words)
    if state := first.get("StateDirectory"):
        place = Path("/var/lib", state)
        place.mkdir(exist_ok=True)
        place.chmod(int(first.get("StateDirectoryMode", "755"), 8))
        os.chown(place, account.pw_uid, account.pw_gid)
    words = list[str]()
    for word in shlex.split(dict(settings)["ExecStart"]):
        words += environment[word[1:]].split() if word.startswith("$") else [word]
    logs.mkdir(exist_ok=True)
    as_whom = (
        {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
    )
    with (logs / f"{unit}.log").open("ab") as log:
        subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            cwd=first.get("WorkingDirectory", "/"), umask=int(first.get("UMask", "022"), 8), **as_whom,  # type: ignore[call-overload]
        )  # fmt: skip


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if word not in ("--user", "--now")]
    if len(arguments) != 2 or arguments[0] not in ("enable", "start"):
        sys.exit(f"only “enable --now” and “start” are there, not {arguments}")
    own = "--user" in sys.argv
    place = Path.home() / ".config/systemd/user" if own else Path("/etc/systemd/system")
    start(place, arguments[1].removesuffix(".service"), Path.home() / ".units" if own else Path("/run/units"))
