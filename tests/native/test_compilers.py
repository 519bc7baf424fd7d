"""The native part with each compiler of this machine: which level of x86-64 it picks, and which Clang builds the fuzzers.

``make fuzzers`` once stopped where Debian's Clang 15 was the Clang that was found: it does not know every name that GCC
and newer ones take for a feature of the processor.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NATIVE = REPOSITORY / "gpukernel" / "native"
EXEC = NATIVE / "simgpu" / "exec"
COMPILERS = [
    name
    for name in ("g++", *("clang++" + version for version in ("", *(f"-{n}" for n in range(15, 23)))))
    if shutil.which(name)
]
LEVELS = {
    4: {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    3: {"avx2", "bmi2", "fma", "f16c"},
}


def processor_flags() -> set[str]:
    """Return what the kernel says that the processor has and programs may use."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    raise AssertionError("no flags in /proc/cpuinfo")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_level_is_what_the_kernel_says_of_the_processor(compiler: str, tmp_path: Path) -> None:
    main = tmp_path / "main.cpp"
    main.write_text(
        '#include "simgpu/exec/processor.h"\n#include <cstdio>\n'
        'int main() { std::printf("%d", gpukernel::simgpu::processor_level()); }\n'
    )
    program = tmp_path / "level"
    build = [compiler, "-std=gnu++20", f"-I{NATIVE}", main, EXEC / "processor.cpp", "-o", program]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = int(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    assert said == max((level for level, needed in LEVELS.items() if needed <= processor_flags()), default=2)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_compiler_takes_the_choice_of_the_handlers(compiler: str) -> None:
    levels = [f"-DSIMGPU_WITH_V{level}" for level in (2, 3, 4)]
    check = [compiler, "-std=gnu++20", f"-I{NATIVE}", "-fsyntax-only", *levels, EXEC / "levels.cpp"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def clang(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", REPOSITORY / "deploy" / "clang.sh"],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_clang_the_fuzzers_say_how_to_get_one(tmp_path: Path) -> None:
    done = clang(str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "sudo apt-get install clang-19 libclang-rt-19-dev" in done.stderr


def test_a_clang_that_cannot_build_the_fuzzers_is_passed_over(tmp_path: Path) -> None:
    """One without libFuzzer, say, which Debian has in a package of its own."""
    broken = tmp_path / "clang++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert clang(str(tmp_path)).returncode == 1
    usable = tmp_path / "clang++-17"
    usable.write_text("#!/bin/sh\nexec /bin/cat >/dev/null\n")
    usable.chmod(0o755)
    assert clang(str(tmp_path)).stdout.strip() == str(usable)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs the cmake command")
def test_an_openssl_that_cannot_be_linked_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    """Debian 13's ``libcrypto.a`` needs two more archives, which no package brings with it."""
    headers, archives, project = (tmp_path / name for name in ("include/openssl", "lib", "project"))
    for folder in (headers, archives, project):
        folder.mkdir(parents=True)
    parts = "".join(f"#define OPENSSL_VERSION_{part} 9\n" for part in ("MINOR", "PATCH"))
    (headers / "opensslv.h").write_text(
        f'#define OPENSSL_VERSION_MAJOR 3\n{parts}#define OPENSSL_VERSION_STR "3.9.9"\n'
    )
    (headers / "ssl.h").write_text(
        '#define OPENSSL_VERSION_NUMBER 1\nextern "C" unsigned long OpenSSL_version_num();\n'
        'extern "C" void* TLS_method();\nextern "C" void* SSL_CTX_new(void*);\n'
    )
    for name in ("libssl.a", "libcrypto.a"):
        (archives / name).write_bytes(b"!<arch>\n")  # without anything in it
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(alone CXX C)\nfind_package(Threads REQUIRED)\n"
        f"add_subdirectory({NATIVE}/tls tls)\nif(TARGET tls)\n  message(FATAL_ERROR made)\nendif()\n"
    )
    configure = ["cmake", "-S", project, "-B", tmp_path / "build", f"-DOPENSSL_ROOT_DIR={tmp_path}"]
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert (
        "built without TLS for its data path, since the static libraries of OpenSSL 3.9.9 cannot be used"
        in said
    )
    assert "zlib1g-dev libzstd-dev" in said
