"""Programs that NVRTC has compiled on a slice of a simulated device, found again by the next process."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pool

CODE = """
import json, os, sys
from cuda.bindings import nvrtc
def ok(result):
    code, *values = result
    if int(code): raise SystemExit(f"{code!r}")
    return values[0] if len(values) == 1 else values
def text(program, what):
    out = bytes(ok(getattr(nvrtc, f"nvrtcGet{what}Size")(program))); ok(getattr(nvrtc, f"nvrtcGet{what}")(program, out))
    return out.decode(errors="replace")
for each in json.loads(sys.argv[1]):
    names = list(each.get("headers", {}))
    program = ok(nvrtc.nvrtcCreateProgram(each["source"].encode(), b"a.cu", len(names), [each["headers"][n].encode() for n in names], [n.encode() for n in names]))
    for name in each.get("names", []): ok(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    words = [word.encode() for word in each.get("options", ["-arch=compute_80"])]
    if int(nvrtc.nvrtcCompileProgram(program, len(words), words)[0]):
        print(json.dumps([text(program, "ProgramLog")])); continue
    print(json.dumps([text(program, what) for what in ("PTX", "CUBIN", "ProgramLog", *each.get("more", []))] + [ok(nvrtc.nvrtcGetLoweredName(program, n.encode())).decode() for n in each.get("names", [])]
        + ([str(nvrtc.nvrtcGetLoweredName(program, each["unknown"].encode())[0]), text(program, "PTX")] if "unknown" in each else [])))
"""
PLAIN = 'extern "C" __global__ void fill(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = threadIdx.x * 3 + 1; }'
TEMPLATE = "template <class T> __global__ void set(T* a) { *a = T(7); }"

Compile = Callable[..., list[list[str]]]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool("a100:1", tmp_path_factory.mktemp("pool")) as one:
        yield one


@pytest.fixture
def compiled(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compiles programs in a process of their own, and returns what NVRTC says of each."""

    def run(*programs: dict[str, Any], folder: str = str(tmp_path / "kept")) -> list[list[str]]:
        monkeypatch.setitem(pool.environment, "GPUKERNEL_NVRTC_CACHE", folder)
        done: subprocess.CompletedProcess[str] = pool.gpukernel(
            "run", "-m", "64", "--", sys.executable, "-c", CODE, json.dumps(programs)
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "kept").iterdir()) if (tmp_path / "kept").exists() else []


def changed(path: Path, before: bytes, after: bytes) -> None:
    """Change a program that is kept, so that nobody notices."""
    assert len(before) == len(after)
    data = path.read_bytes()[32:]
    assert before in data
    data = data.replace(before, after)
    path.write_bytes(hashlib.sha256(data).digest() + data)


def test_a_program_is_found_again_with_all_that_it_answers(compiled: Compile, tmp_path: Path) -> None:
    programs = [
        {"source": PLAIN},
        {"source": PLAIN, "options": ["-arch=sm_80"]},
        {"source": TEMPLATE, "names": ["set<int>", "set<double>"]},
        {"source": '#include "a.h"\n' + PLAIN, "headers": {"a.h": "#pragma once\n// twice\n"}},
        {"source": "#warning so\n" + PLAIN},
    ]
    first = compiled(*programs)
    files = kept(tmp_path)
    assert len(files) == len(programs)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert compiled(*programs) == first
    assert kept(tmp_path) == files
    assert first[1][1] == first[1][0] != ""  # the cubin
    assert first[2][3:] == ["_Z3setIiEvPT_", "_Z3setIdEvPT_"]
    assert "so" in first[4][2]
    # It is the file that answers, and nobody compiles.
    (alone,) = [
        file for file in files if b"#warning" not in file.read_bytes() and b"_Z3set" in file.read_bytes()
    ]
    changed(alone, b"_Z3setIiEvPT_", b"_Z3setIiEvPT0")
    assert compiled(programs[2])[0][3] == "_Z3setIiEvPT0"


def test_what_nobody_has_kept_is_asked_of_a_program_that_is_compiled_after_all(
    compiled: Compile, tmp_path: Path
) -> None:
    program = {"source": PLAIN, "unknown": "nobody"}
    first = compiled(program)[0]
    (file,) = kept(tmp_path)
    changed(file, b"fill", b"full")
    again = compiled(program)[0]
    assert "full" in again[0]
    assert "full" not in again[-1]  # behind the question
    assert again[-2:] == first[-2:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:40],
        lambda data: b"",
        lambda data: data[:200] + b"x" + data[201:],
        lambda data: data + b"x",
        lambda data: hashlib.sha256(data[32:-5]).digest() + data[32:-5],
        lambda data: (lambda rest: hashlib.sha256(rest).digest() + rest)(
            struct.pack("<Q", 2**63) + data[40:]
        ),
    ],
)
def test_a_file_that_is_not_whole_is_passed_over(
    compiled: Compile, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = compiled({"source": PLAIN})
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert compiled({"source": PLAIN}) == first
    assert file.read_bytes() == whole


def test_a_file_of_another_program_or_that_others_may_write_is_passed_over(
    compiled: Compile, tmp_path: Path
) -> None:
    other = PLAIN.replace("3", "5")
    first = compiled({"source": PLAIN}, {"source": other})
    one, two = kept(tmp_path)
    texts = one.read_bytes(), two.read_bytes()
    one.write_bytes(texts[1]), two.write_bytes(texts[0])
    assert compiled({"source": PLAIN}, {"source": other}) == first
    assert (one.read_bytes(), two.read_bytes()) == texts
    for file in (one, two):
        changed(file, b"fill", b"full")
        file.chmod(0o666)
    assert compiled({"source": PLAIN}, {"source": other}) == first


HEADER = "#pragma once\n"
OPEN = {
    "a file": '#include "there.h"\n',
    "a file of the library's": "#include <cuda_fp16.h>\n",
    "a file by a macro": "#define A <cuda_fp16.h>\n#include A\n",
    "a file in two lines": '#inc\\\nlude "there.h"\n',
    "a file behind a comment": '/* so */ # /* it\n is */ include "there.h"\n',
    "a file behind a comment that has another mark": '# /* it\n # is */ include "there.h"\n',
    "a file behind a comment of a second directive": '/* # so */ # /* it\n is */ include "there.h"\n',
    "a file by other letters": '%:include "there.h"\n',
    "whether there is a file": '#if __has_include("there.h")\n#endif\n',
    "the time": "__device__ const char* when = __TIME__;\n",
}


@pytest.mark.parametrize("what", OPEN)
def test_programs_that_read_something_else_are_not_kept(compiled: Compile, tmp_path: Path, what: str) -> None:
    (tmp_path / "there.h").write_text(HEADER)
    source = OPEN[what] + PLAIN
    there = [f"-I{tmp_path}", *(f"-I{path}" for path in _headers())]
    (told,) = compiled({"source": source, "options": ["-arch=compute_80", *there]})
    assert ".entry fill" in told[0], told
    assert kept(tmp_path) == []
    # Without such options it is the text alone that says so.
    compiled({"source": source})
    assert kept(tmp_path) == []


@pytest.mark.parametrize("option", ["-DNOW=__TIME__", "-lineinfo", "--generate-line-info", "-G"])
def test_programs_whose_options_read_something_else_are_not_kept(
    compiled: Compile, tmp_path: Path, option: str
) -> None:
    """The time, and the working directory, which debuggers are told."""
    assert ".entry fill" in compiled({"source": PLAIN, "options": ["-arch=compute_80", option]})[0][0]
    assert kept(tmp_path) == []


def _headers() -> list[str]:
    import nvidia

    return [str(path) for root in nvidia.__path__ for path in Path(root).glob("*/include")]


def test_what_cannot_be_compiled_is_not_kept(compiled: Compile, tmp_path: Path) -> None:
    for _ in range(2):
        ((log,),) = compiled({"source": "__global__ void f() { nonsense; }"})
        assert "nonsense" in log
    assert kept(tmp_path) == []


def test_nothing_is_kept_where_the_user_says_so(compiled: Compile, tmp_path: Path) -> None:
    assert ".entry fill" in compiled({"source": PLAIN}, folder="off")[0][0]
    assert kept(tmp_path) == []


def test_the_folder_has_a_bound_and_nobody_else_s_files_make_way(compiled: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    names = [f"{n:064x}" for n in range(69)] + [f"{69:064x}.tmp123"]
    others = ["thesis.pdf", "f" * 63, "F" * 64, f"{70:064x}.pdf"]
    for n, name in enumerate(others + names):
        with (folder / name).open("wb") as file:
            file.truncate(4 << 20)
        os.utime(folder / name, (1000 + n, 1000 + n))
    compiled({"source": PLAIN})
    left = {path.name for path in kept(tmp_path)}
    # The oldest are gone, down to three quarters of the bound.
    assert left & set(names) == set(names[23:])
    assert left >= set(others)
    assert len(left) == len(others) + 48
