"""``python -m tools.openssl``: build the OpenSSL that wheels link in for this checkout's own builds, too, into ``build/openssl``.

``make openssl`` runs it.  A distribution's static libraries may be those of OpenSSL 3.0, whose AES-GCM takes twice the time of 3.1 and newer on
processors with VAES; a build that finds ``build/openssl`` links that (``gpukernel/native/tls/CMakeLists.txt``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path

__all__ = ["OPENSSL", "build_openssl", "run", "say"]

ROOT = Path(__file__).parents[1]

OPENSSL = "3.5.7"
OPENSSL_SHA256 = "a8c0d28a529ca480f9f36cf5792e2cd21984552a3c8e4aa11a24aa31aeac98e8"
OPENSSL_URL = (
    f"https://github.com/openssl/openssl/releases/download/openssl-{OPENSSL}/openssl-{OPENSSL}.tar.gz"
)
# TLS with a pre-shared key needs no module that is loaded at run time, and none of the old ciphers.
OPENSSL_OPTIONS = [
    "no-shared",
    "no-tests",
    "no-apps",
    "no-docs",
    "no-module",
    "no-legacy",
    "no-engine",
    "no-dso",
]


def say(what: str) -> None:
    print(f"{what[0].upper()}{what[1:]} …", flush=True)


def run(*command: str | Path, where: Path = ROOT, log: Path, environment: Mapping[str, str]) -> None:
    """Run a command with its output in `log`; raises `SystemExit`, with the output's end, where it fails."""
    with log.open("ab") as out:
        done = subprocess.run(
            [str(word) for word in command], cwd=where, env=dict(environment), stdout=out, stderr=out
        )
    if done.returncode:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise SystemExit(f"{end}\n“{' '.join(map(str, command))[:200]}” failed; {log} has all of it.")


def source(folder: Path, given: str) -> Path:
    """Return OpenSSL's sources, of the archive `given` or of its release; raises `SystemExit` where they are not those that are expected."""
    archive = Path(given) if given else folder / f"openssl-{OPENSSL}.tar.gz"
    if not archive.exists():
        if given:
            raise SystemExit(f"There is no {given}; name an archive of OpenSSL {OPENSSL}'s sources.")
        say(f"fetching OpenSSL {OPENSSL}")
        try:
            with urllib.request.urlopen(OPENSSL_URL) as response, archive.open("wb") as out:
                shutil.copyfileobj(response, out)
        except OSError as error:
            archive.unlink(missing_ok=True)
            raise SystemExit(
                f"OpenSSL could not be fetched ({error}); name an archive that is here (make openssl OPENSSL_SOURCE=FILE, or tools.wheels --openssl-source FILE)."
            ) from None
    if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != OPENSSL_SHA256:
        raise SystemExit(f"{archive} is not OpenSSL {OPENSSL}: its SHA-256 is {found}, not {OPENSSL_SHA256}.")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / f"openssl-{OPENSSL}"


def build_openssl(folder: Path, given: str, environment: Mapping[str, str]) -> Path:
    """Build OpenSSL's static libraries; return where they are installed."""
    installed = folder / f"openssl-{OPENSSL}-installed"
    if (installed / "lib64" / "libssl.a").exists():
        return installed
    sources, log = source(folder, given), folder / "openssl.log"
    say(f"building OpenSSL {OPENSSL} (five minutes)")
    run("./Configure", "linux-x86_64", *OPENSSL_OPTIONS, f"--prefix={installed}", "--openssldir=/etc/ssl", where=sources, log=log, environment=environment)  # fmt: skip
    run("make", f"-j{os.cpu_count()}", "build_sw", where=sources, log=log, environment=environment)
    run("make", "install_dev", where=sources, log=log, environment=environment)
    return installed


def main(arguments: list[str]) -> None:
    """Build it once; `arguments` may name an archive of its sources.

    Raises
    ------
    SystemExit
        A step failed, with its sentence.
    """
    folder = ROOT / "build" / "openssl"
    folder.mkdir(parents=True, exist_ok=True)
    installed = build_openssl(folder, arguments[0] if arguments else "", os.environ)
    newest = folder / "installed"
    newest.unlink(missing_ok=True)
    newest.symlink_to(installed.name)
    print(f"OpenSSL {OPENSSL} is in {installed.relative_to(ROOT)}; the next build links it.")


if __name__ == "__main__":
    main(sys.argv[1:])
