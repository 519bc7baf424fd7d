"""The wheel of this version in ``dist/``, where ``make wheels`` has left one: what is in it, and that it works beside these packages."""

from __future__ import annotations

import re
import site
import subprocess
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NEWEST_GLIBC = (2, 28)


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = sorted(ROOT.glob(f"dist/gpukernel-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"))
    if not found:
        pytest.skip("no wheel of this version in dist/: make wheels builds one")
    return found[0]


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
