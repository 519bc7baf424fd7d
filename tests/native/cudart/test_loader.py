"""The loader: a program on a remote slice gets this package's CUDA runtime from wherever it asks for NVIDIA's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.remoting.environment import shim_environment, without_runtime


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a library of NVIDIA's name, as a wheel has it, and a program with a DT_RPATH to it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "other.c").write_text("int cudaRuntimeGetVersion(int* v) { *v = -1; return 0; }\n")
    (folder / "main.c").write_text(
        '#include <stdio.h>\nint cudaRuntimeGetVersion(int*); int main(void) { int v; cudaRuntimeGetVersion(&v); printf("%d\\n", v); return 0; }\n'
    )
    (folder / "versions").write_text("libcudart.so.12 { global: cuda*; local: *; };\n")
    library = folder / "libcudart.so.12"
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{library.name},--version-script={folder / 'versions'}"]
    subprocess.run([compiler, *shared, "-o", str(library), str(folder / "other.c")], check=True)
    linked = ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{folder}", str(library)]
    subprocess.run([compiler, "-o", str(folder / "program"), str(folder / "main.c"), *linked], check=True)
    (folder / "libcudart.so").symlink_to(library)
    return folder


def version(*words: str, **environment: str) -> int:
    done = subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return int(done.stdout)


def dlopened(name: str) -> list[str]:
    code = f"import ctypes; v = ctypes.c_int(); ctypes.CDLL({name!r}).cudaRuntimeGetVersion(ctypes.byref(v)); print(v.value)"
    return [sys.executable, "-c", code]


def test_a_place_that_was_linked_in_loses(installed: Path) -> None:
    program = str(installed / "program")
    slice_ = shim_environment(Path("/nowhere"), {})
    assert version(program) == -1
    assert version(program, LD_LIBRARY_PATH=slice_["LD_LIBRARY_PATH"]) == -1  # what is linked in comes first
    assert version(program, **slice_) == 12090


@pytest.mark.parametrize("way", ["by path", "by its link", "by its place in LD_LIBRARY_PATH"])
def test_it_is_found_however_a_program_opens_it(way: str, installed: Path) -> None:
    path = {"by path": installed / "libcudart.so.12", "by its link": installed / "libcudart.so"}
    words = dlopened(str(path.get(way, "libcudart.so.12")))
    slice_ = shim_environment(Path("/nowhere"), {})
    first = {"LD_LIBRARY_PATH": f"{installed}:{slice_['LD_LIBRARY_PATH']}"}
    assert version(*words, **first) == -1
    assert version(*words, **{**slice_, **first}) == 12090


def test_it_is_found_where_nvidias_is_not_installed() -> None:
    slice_ = shim_environment(Path("/nowhere"), {})
    for name, found in (("libcudart.so.11.0", 11080), ("libcudart.so.12", 12090), ("libcudart.so.13", 13050)):
        if (native.runtime_dir() / name).exists():
            assert version(*dlopened(name), **slice_) == found


def test_direct_mode_keeps_nvidias(installed: Path) -> None:
    """A program on a remote slice may start one on a slice in direct mode: a real driver serves NVIDIA's runtime."""
    remote = shim_environment(Path("/nowhere"), {"LD_AUDIT": "/a.so", "LD_LIBRARY_PATH": "/b"})
    assert remote["LD_AUDIT"] == f"/a.so:{native.runtime_auditor()}"
    direct = without_runtime(remote)
    assert direct["LD_AUDIT"] == "/a.so"
    assert direct["LD_LIBRARY_PATH"] == f"{native.shim_dir()}:/b"
    assert without_runtime({"A": "b"}) == {"A": "b"}
    del direct["LD_AUDIT"]
    assert version(str(installed / "program"), **direct) == -1


def test_the_auditor_needs_no_other_library() -> None:
    environment = {**os.environ, "LD_AUDIT": str(native.runtime_auditor())}
    code = "print(open('/proc/self/maps').read())"
    maps = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    lines = [line for line in maps.splitlines() if "libc.so.6" in line and line.split()[2] == "00000000"]
    assert str(native.runtime_auditor()) in maps
    assert len(lines) == 1, maps  # a second one would be the auditor's
