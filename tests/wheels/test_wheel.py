"""The wheel of this version in ``dist/``, where ``make wheels`` has left one: what is in it, and that it works beside these packages."""

from __future__ import annotations

import re
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tests.wheels.minute import interpreter

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
VERSIONS = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if " :: 3." in one]
NEWEST_GLIBC = (2, 28)


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = sorted(ROOT.glob(f"dist/gpukernel-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"))
    if not found:
        pytest.skip("no wheel of this version in dist/: make wheels builds one")
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_that_is_here_runs_a_kernel(wheel: Path, tmp_path: Path, version: str) -> None:
    if (python := interpreter(f"python{version}")) is None:
        pytest.skip(f"no Python {version} on this machine")
    subprocess.run([python, "-m", "venv", str(tmp_path / "env")], check=True)
    own = str(tmp_path / "env" / "bin" / "python")
    install = [own, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--only-binary", ":all:"]
    done = subprocess.run([*install, str(wheel)], capture_output=True, text=True)
    if done.returncode and "No matching distribution" not in done.stderr:
        pytest.skip(f"pip cannot fetch what the wheel depends on: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr  # something that it depends on has no wheel for this Python
    check = [own, "-W", "error::DeprecationWarning:gpukernel", str(ROOT / "tests" / "wheels" / "check.py")]
    tried = subprocess.run(check, capture_output=True, text=True, cwd=tmp_path)
    assert tried.returncode == 0, tried.stderr
    assert "a kernel ran on 655 MiB" in tried.stdout


def test_a_python_that_is_not_here_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.99: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter("python3.99") is None
    own = tmp_path / "versions" / "3.99.0" / "bin" / "python3.99"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert interpreter("python3.99") == str(own)


def test_it_is_for_every_python_and_names_its_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        information = f"gpukernel-{VERSION}.dist-info"
        head = HeaderParser().parsestr(packed.read(f"{information}/METADATA").decode())
    assert head["Requires-Python"] == ">=3.11"
    licences = {Path(name).name for name in names if name.startswith(f"{information}/licenses/")}
    assert licences >= {"LICENSE", "OpenSSL.txt", "libcxx.txt", "zig.txt"}
    assert any(name.endswith("share/gpukernel/notebooks/02-classification.ipynb") for name in names)
    assert not any(name.endswith((".cpp", ".h", ".proto")) for name in names)


def test_no_library_needs_more_than_old_distributions_have(wheel: Path) -> None:
    needs: dict[str, tuple[int, ...]] = {}
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            content = packed.read(name)
            if content.startswith(b"\x7fELF"):
                versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", content)
                needs[name] = max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
                assert b"GLIBCXX_" not in content, name
    assert len(needs) > 20
    assert {name: version for name, version in needs.items() if version > NEWEST_GLIBC} == {}
    assert any(version > (2, 2) for version in needs.values()), "nothing was read"


def test_a_kernel_runs_and_tls_has_openssl_3_5(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*map(str, pip), str(wheel)], check=True)
    # What it depends on is here; a line in a .pth file brings no editable installation of that place.
    (own,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    (own / "here.pth").write_text("\n".join(site.getsitepackages()))
    done = subprocess.run(
        [str(python), str(ROOT / "tests" / "wheels" / "check.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "a kernel ran on 655 MiB" in done.stdout
    assert re.search(r"OpenSSL 3\.5\.\d+", done.stdout), done.stdout
