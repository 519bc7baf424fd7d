"""The tables of math libraries: strict words, and what NVIDIA's public headers say where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gpukernel import native

NATIVE = Path(__file__).parents[3] / "gpukernel/native"


@pytest.fixture(name="generator")
def _generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(NATIVE / "codegen")
    return importlib.import_module("library_calls")


def headers(library: str = "cublas", header: str = "cublas_api.h", megabytes: int = 580) -> Path:
    """Return the folder of a library's headers: of its wheel, or what for cuBLAS GPUKERNEL_CUBLAS_INCLUDE names."""
    variable = f"GPUKERNEL_{library.upper()}_INCLUDE"
    named = os.environ.get(variable)
    found = None if named else importlib.util.find_spec("nvidia")
    folders = (
        [Path(named)]
        if named
        else [Path(p, library, "include") for p in (found.submodule_search_locations or [])]
        if found
        else []
    )
    for folder in folders:
        if (folder / header).exists():
            return folder
    pytest.skip(f"{header} is not installed (wheel nvidia-{library}-cu12, {megabytes} MB; or {variable}=DIR)")


def wheel_header(library: str, name: str) -> Path:
    """Return a public header of the wheel of another library of NVIDIA's."""
    found = importlib.util.find_spec("nvidia")
    for place in (found.submodule_search_locations or []) if found else []:
        if (header := Path(place, library, "include", name)).exists():
            return header
    pytest.skip(f"the header {name} is not installed (wheel nvidia-{library}-cu12)")


def declarations(header: Path, prefix: str = "cublas") -> dict[str, list[str]]:
    """Return the types of each function's parameters as the table has them: pointer, int, int64, long long, size, enum."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.DOTALL)
    text = re.sub(r"CUSPARSE_DEPRECATED\w*\([^)]*\)", "", text)
    kinds = {
        "int": "int",
        "int64_t": "int64",
        "long long int": "long long",
        "long long": "long long",
        "size_t": "size",
        "float": "float",
        "signed char": "char",
        "double": "double",
    }
    found = {}
    for name, parameters in re.findall(rf"\b({prefix}\w+)\s*\(([^()]*)\)\s*;", text):
        types = []
        for parameter in " ".join(parameters.split()).split(","):
            plain = re.sub(r"\s*\b\w+(\[\])?$", "", parameter.strip()).removeprefix("const ").strip()
            pointer = (
                "*" in parameter
                or "[]" in parameter
                or plain.endswith(
                    ("Handle_t", "Stream_t", "Descriptor_t", "Params_t", "jInfo_t", "MatDescr_t")
                )
            )
            types.append("pointer" if pointer else kinds.get(plain, "enum"))
        found.setdefault(name, types)  # what follows are calls, in inline functions
    return found


def test_the_table_of_cublas_is_what_its_header_declares(generator: Any) -> None:
    declared = declarations(headers() / "cublas_api.h")
    table = generator.read_library_table(NATIVE / "libraries/cublas/calls.txt")
    kinds = {"int": "int", "enum": "enum", "i64": "long long", "size": "size"}
    wrong = {}
    for call in table.calls:
        roles = [
            "int64" if p.role == "int" and call.wide else kinds.get(p.role, "pointer")
            for p in call.parameters
        ]
        if declared.get(call.name) != ["pointer", *roles]:
            wrong[call.name] = (declared.get(call.name), roles)
    assert wrong == {}
    assert len(table.calls) > 200


@pytest.mark.parametrize(
    ("library", "header", "least"), [("cusolver", "cusolverDn.h", 100), ("cusparse", "cusparse.h", 30)]
)
def test_the_tables_of_other_libraries_are_what_their_headers_declare(
    generator: Any, library: str, header: str, least: int
) -> None:
    declared = declarations(wheel_header(library, header), library)
    table = generator.read_library_table(NATIVE / "libraries" / library / "calls.txt")
    kinds = {role: role for role in ("int", "enum", "size", "char")} | {"i64": "int64"}
    # Ordinary words of C for what is an enumeration by its meaning, and the two names of 64 bits.
    alike = {"int": "enum", "long long": "int64"}
    wrong = {}
    for call in table.calls:
        roles = ["pointer", *(kinds.get(p.role, "pointer") for p in call.parameters)]
        types = declared.get(call.name, [])
        if [alike.get(t, t) for t in types] != [alike.get(r, r) for r in roles]:
            wrong[call.name] = (types, roles)
    assert wrong == {}
    assert len(table.calls) > least


@pytest.mark.parametrize("header", ["cufft.h", "cufftXt.h"])
def test_every_name_that_cuffts_header_declares_is_exported(header: str) -> None:
    declared = declarations(wheel_header("cufft", header), "cufft")
    assert len(declared) > 5
    names = (NATIVE / "libraries/cufft/names.txt").read_text().split()
    assert declared.keys() - names == set()


def test_the_table_of_cudnn_is_what_its_headers_declare(generator: Any) -> None:
    folder = headers("cudnn", "cudnn_ops.h", 700)
    declared = {}
    for header in ("cudnn_ops.h", "cudnn_cnn.h", "cudnn_adv.h"):
        declared |= declarations(folder / header, "cudnn")
    table = generator.read_library_table(NATIVE / "libraries/cudnn/calls.txt")
    kinds = {"int": "int", "enum": "enum", "size": "size", "double": "double"}
    wrong = {}
    for call in table.calls:
        roles = [kinds.get(p.role, "pointer") for p in call.parameters]
        if declared.get(call.name) != ["pointer", *roles]:
            wrong[call.name] = (declared.get(call.name), roles)
    assert wrong == {}
    assert len(table.calls) > 30


def test_no_library_of_a_program_asks_for_undocumented_tables() -> None:
    folder = native.simgpu_library().parents[1]
    libraries = [
        *folder.glob("libraries/lib*.so*"),
        *folder.glob("cudart/lib*.so*"),
        *folder.glob("compilers/lib*.so*"),
    ]
    assert len(libraries) > 20
    assert [path.name for path in libraries if b"cuGetExportTable" in path.read_bytes()] == []


def test_every_name_that_a_header_declares_is_exported(generator: Any) -> None:
    declared = {
        *declarations(headers() / "cublas_api.h"),
        *declarations(headers() / "cublasLt.h"),
    }
    names = {
        line
        for library in ("cublas", "cublaslt")
        for line in (NATIVE / "libraries" / library / "names.txt").read_text().split()
    }
    inline = {
        "cublasLtMatrixLayoutInit",
        "cublasLtMatmulDescInit",
        "cublasLtMatmulPreferenceInit",
        "cublasLtMatrixTransformDescInit",
    }
    assert (
        declared - names - inline
        == {"cublasLtDisableCpuInstructionsSetMask", "cublasMigrateComputeType"} & declared
    )


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("call cublasX later as=f\n    n:int", "'later'"),
        ("call cublasX queued loud as=f\n    n:int", "'loud'"),
        ("call cublasX queued as=f\n    n:number", "'number'"),
        ("call cublasX queued as=f\n    x:scalar", "say their bytes"),
        ("call cublasX queued as=f\n    n:int=4", "say their bytes"),
        ("call cublasX queued\n    n:int", "implements"),
        ("cal cublasX queued as=f", "'cal'"),
        ("    n:int", "continues nothing"),
    ],
)
def test_an_unknown_word_is_an_error_with_its_line(
    generator: Any, tmp_path: Path, line: str, word: str
) -> None:
    (tmp_path / "calls.txt").write_text(line)
    with pytest.raises(SystemExit, match=r"calls\.txt:1") as error:
        generator.read_library_table(tmp_path / "calls.txt")
    assert word in str(error.value)


def test_numbers_travel_before_scalars_whose_bytes_depend_on_them(generator: Any) -> None:
    table = generator.read_library_table(NATIVE / "libraries/cublas/calls.txt")
    call = next(call for call in table.calls if call.name == "cublasGemmEx")
    for text in (generator.client_function(call), generator.worker_function(call)):
        assert text.index("computeType") < text.index("scale_bytes(computeType") or "require" in text
    roles = [p.role for p in call.as_sent]
    assert roles.index("scalar") > max(i for i, role in enumerate(roles) if role in ("int", "enum"))


def test_the_size_of_a_workspace_is_asked_for_with_the_arrays_addresses(generator: Any) -> None:
    """NVIDIA's library refuses null pointers there; the worker takes no address that is not the lease's."""
    table = generator.read_library_table(NATIVE / "libraries/cusparse/calls.txt")
    call = next(call for call in table.calls if call.name == "cusparseCsr2cscEx2_bufferSize")
    assert "call.place(csrVal);" in generator.client_function(call)
    assert "csrVal = in.place();" in generator.worker_function(call)


def test_what_a_library_does_not_support_is_refused_in_the_program(generator: Any) -> None:
    table = generator.read_library_table(NATIVE / "libraries/cublas/calls.txt")
    call = next(call for call in table.calls if call.name == "cublasGemmEx")
    line = "if (!(gemm_takes(Atype, Btype, Ctype, computeType, lda, ldb))) return NOT_SUPPORTED;"
    assert line in generator.client_function(call)
    assert line in generator.simulated_function(call)
    assert line not in generator.worker_function(call)  # whose library may be newer than the tables
