"""Compare what the simulated GPU takes for PTX with what ptxas takes: ``python -m tests.native.simgpu_ptx.acceptance``."""

from __future__ import annotations

import argparse
import ctypes as c
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from gpukernel.native import simgpu_library
from tests import sanitizers
from tests.native.simgpu_ptx import corpus, declarations

# ptxas knows which GPU it compiles for, and which version of PTX a text names; the simulated GPU does not ask.
NEEDS_ANOTHER = re.compile(
    r"not supported (on|for|with) \.?target|requires? (target|\.target|PTX|sm_)|PTX ISA \.?version|supported on|ptxas itself failed"
)
# Differences that docs/simulated-gpu.md states, "What is taken for PTX".
STATED = re.compile(
    r"^(addc|subc|madc)\.\S*16 |^rcp\.\S*ftz\S*f64|\.pred\b\S* "  # modifiers that ptxas passes over
    r"|\bdevice\b"  # a function's address in place of a number
    r"|\w\+\d"  # what a number is added to has its type checked here
    r"|%q\d"  # numbers of less than 128 bits in registers of 128
    r"|^barrier\.(\S+\.)?cta|^fma\.r[zmp]\S*bf16"
    r"|^madc\.\S*\.sat|\.sat\S*\.sat\b|^testp\.f\d+ |^cvt\.f16\.bf16 "
    r"|^red\.\S* _,|^set\.\S*bf16x2 .*%p|^atom\.\S*\.exch\.b32 .*, %b\d;$"  # operands that nobody reads
)

ELSEWHERE = re.compile("Unresolved extern (function|variable)|ptxas itself failed")  # what a linker says


@dataclass(frozen=True)
class Stated:
    """A difference of modules that the docs state: who alone takes lines with that text, and what the other says of them."""

    taken_by: str
    text: str
    refusal: str

    def is_of(self, text: str, ours: str, theirs: str) -> bool:
        refusal = ours if self.taken_by == "ptxas" else theirs
        other = theirs if self.taken_by == "ptxas" else ours
        return bool(not other and refusal and re.search(self.text, text) and re.search(self.refusal, refusal))


STATED_OF_MODULES = (
    # What ptxas overlooks, or does not read.
    Stated("ptxas", r"\.target sm_90 \w", "unexpected '.target' in a function"),
    Stated("ptxas", r"\.reg \.u32;", "expected a name, not ';'"),
    Stated("ptxas", "x01", "the result goes to a register"),
    Stated("ptxas", r"%v\.z", "has no element 'z'"),
    Stated("ptxas", r"st\.global\.u64 \[far\], device;", "'device' is no register"),
    Stated("ptxas", r"\[%h1\]|far\[far\]", "is no integer of 32 or 64 bits|is no address: it has not"),
    Stated("ptxas", r"cvta\.\w+\.u64 %d1, 4;", "an address in a register is needed"),
    Stated("ptxas", r"\.f16x2 .*=", "expected a constant as an initial value"),
    Stated("ptxas", r"\.v2 \.u32 x\).*f#, \(", "a constant is passed, and the parameter is a vector"),
    Stated("ptxas", r"\.reg \.u32 x\[2\]\) *;", "there are no arrays of registers"),
    Stated("ptxas", r"\.extern \.func .*\)\s*$", "unknown directive '.visible' of a function"),
    Stated("ptxas", r"\.extern \.func .*\.pred", "a predicate is a register"),
    Stated("ptxas", r"\.extern \.func .*\b([rx])\b.*\b\1\b", "is declared twice in one block"),
    # What is taken here beside what ptxas takes.
    Stated("us", r'\.file 1 "a" ', "Parsing error near '.file'"),
    Stated("us", r"mov\.u64 %d1, k;", "Arguments mismatch for instruction 'mov'"),
    Stated("us", r"\[%v\.x\]|\(%v\.x\)", r"Parsing error near '\.x'"),
    Stated(
        "us", r"prefetch\S* (\w+\[|\[%r1)", "Arguments mismatch for instruction 'prefetch'|32-bit address"
    ),
    Stated("us", r"\[(2\+2|1<<2)\]", r"Parsing error near '(<<|\+)'"),
    Stated("us", r"\{_, _\}", "Unable to infer type of vector elements"),
    Stated("us", r"\.common \.(const|shared)", r"\.common variables must be declared in \.global"),
    Stated(
        "us",
        r"\.(tex|surf|sampler)ref",
        "cannot be allocated in .param|Parsing error near '}'|only allowed over basic|must be at module or entry",
    ),
    Stated("us", r", \(far\)", "has illegal state space"),
    Stated("us", r"call \(_\), f#, \(%r1\+1\)|generic\(far\+4\)", r"Parsing error near '\+'"),
    Stated("us", r"= (generic\(|\{-|\{0d|\{\{far)", "Initial value type mismatch"),
    Stated("us", r"\.func \(\.param .*, \.reg ", "Multiple return parameters require .register"),
    Stated("us", r"\.reg \.pred x", "passing predicate, 8-bit and 16-bit parameters"),
    Stated("us", r"^\.extern \.param ", "may not be declared at module scope"),
    Stated("us", r"\bcall \(", "(Type|Alignment) of argument does not match formal parameter"),
    Stated("us", r"ADD\.", "Not a name of any known instruction: 'ADD'"),
    Stated("us", r"\.extern \.const .* = \{\}", "No initial value is allowed for external symbol"),
)


@dataclass(frozen=True)
class Corpus:
    """Lines that are valid or not, the text around them, how many of them ptxas reads at once, and known differences."""

    program: Callable[[list[str]], str]
    first_line: int
    batch: int
    stated: re.Pattern[str] | None  # by the text alone


INSTRUCTIONS = Corpus(corpus.program, corpus.FIRST_LINE, 250, STATED)
MODULES = Corpus(declarations.program, declarations.FIRST_LINE, 60, None)


def ptxas() -> str | None:
    return shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")


def _errors(text: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".ptx", delete=False) as file:
        file.write(text)
    try:
        command = [ptxas() or "ptxas", f"-arch={corpus.TARGET}", "-O0", file.name, "-o", os.devnull]
        done = subprocess.run(
            command, env=sanitizers.without(), capture_output=True, text=True, timeout=120, check=False
        )
        said = (done.stderr + done.stdout).strip()
        if said and all(line.startswith("ptxas info") for line in said.splitlines()):
            return ""  # its back end gives up on a wgmma that stands alone, which its front end has taken by then
        return (said or "ptxas itself failed") if done.returncode else ""
    finally:
        Path(file.name).unlink()


def ptxas_says(lines: list[str], kind: Corpus = INSTRUCTIONS) -> list[str]:
    """Return what ptxas has against each line; an empty text: nothing."""
    found = ["" for _ in lines]
    left = list(range(len(lines)))
    while left:
        errors = _errors(kind.program([lines[n] for n in left]))
        if not errors:
            break
        bad: dict[int, str] = {}
        for at, what in re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", errors):
            place = int(at) - kind.first_line
            if 0 <= place < len(left):
                bad.setdefault(left[place], what)
        if not bad:
            if len(left) == 1:
                found[left[0]] = errors.strip() or "?"
                break
            for n in left:
                found[n] = ptxas_says([lines[n]], kind)[0]
            break
        for n, what in bad.items():
            found[n] = what
        left = [n for n in left if n not in bad]
    return found


class Simulated:
    """A context of the simulated GPU's own library."""

    def __init__(self) -> None:
        self.cuda = c.CDLL(str(simgpu_library()))
        context = c.c_void_p()
        with patch.dict(
            os.environ, GPUKERNEL_SIMGPU="h100"
        ):  # programs that this process starts have their own
            assert not self.cuda.cuInit(0)
        assert not self.cuda.cuCtxCreate_v2(c.byref(context), 0, 0)

    def says(self, text: str, kernel: bytes = b"k") -> str:
        """Return what it has against a program; an empty text: it loads, and the kernel runs."""
        module, function = c.c_void_p(), c.c_void_p()
        log = c.create_string_buffer(2000)
        options = (c.c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER, and its size
        values = (c.c_void_p * 2)(c.cast(log, c.c_void_p), len(log))
        if code := self.cuda.cuModuleLoadDataEx(
            c.byref(module), c.c_char_p(text.encode()), 2, options, values
        ):
            return log.value.decode(errors="replace").strip() or f"error {code}"
        try:
            if code := self.cuda.cuModuleGetFunction(c.byref(function), module, kernel):
                return f"cuModuleGetFunction: {code}"
            argument = c.c_uint64()
            arguments = (c.c_void_p * 1)(c.addressof(argument))
            one = c.c_uint(1)
            code = self.cuda.cuLaunchKernel(function, *[one] * 6, c.c_uint(0), None, arguments, None)
            code = code or self.cuda.cuCtxSynchronize()
            return f"not supported: {code}" if code else ""
        finally:
            self.cuda.cuModuleUnload(module)


def compare(
    lines: list[str], simulated: Simulated, jobs: int = 2, kind: Corpus = INSTRUCTIONS
) -> list[tuple[str, str, str]]:
    """Return the lines that only one of both takes, with what the other says."""
    batches = [lines[n : n + kind.batch] for n in range(0, len(lines), kind.batch)]
    different = []
    with ThreadPoolExecutor(jobs) as pool:
        for batch, verdicts in zip(batches, pool.map(lambda b: ptxas_says(b, kind), batches), strict=True):
            for text, theirs in zip(batch, verdicts, strict=True):
                if NEEDS_ANOTHER.search(theirs) or (kind.stated and kind.stated.search(text)):
                    continue
                ours = simulated.says(kind.program([text]))
                # What is wrong with a line's neighbours is said of the line, too, where it does not end.
                alone = (
                    theirs
                    if kind is INSTRUCTIONS or bool(ours) == bool(theirs)
                    else ptxas_says([text], kind)[0]
                )
                if bool(ours) == bool(alone) or ELSEWHERE.search(alone) or NEEDS_ANOTHER.search(alone):
                    continue
                if kind is INSTRUCTIONS or not any(
                    each.is_of(text, ours, alone) for each in STATED_OF_MODULES
                ):
                    different.append((text, ours, alone))
    return different


def sample(count: int, seed: int) -> list[str]:
    """Return ``count`` instructions, the same for the same seed: one half as they are, the other mutated."""
    chance = random.Random(seed)
    every = list(corpus.every_form())
    plain = chance.sample(every, min(count // 2, len(every)))
    return plain + [corpus.mutated(chance.choice(every), chance) for _ in range(count - len(plain))]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=20000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--modules", action="store_true", help="declarations and functions, not instructions"
    )
    options.add_argument("--only", default="", help="instructions whose text begins so")
    chosen = options.parse_args()
    if not ptxas():
        print("ptxas is not installed: nothing to compare with", file=sys.stderr)
        return 2
    kind, drawn = (MODULES, declarations.sample) if chosen.modules else (INSTRUCTIONS, sample)
    lines = [text for text in drawn(chosen.count, chosen.seed) if text.startswith(chosen.only)]
    different = compare(lines, Simulated(), kind=kind)
    for text, ours, theirs in different:
        print(f"only {'ptxas' if ours else 'we'}: {text}   -- {ours or theirs}")
    groups = Counter(
        ((text.split(".")[0].split() or ["module"])[0], "only ptxas" if ours else "only we")
        for text, ours, _ in different
    )
    for (name, who), count in sorted(groups.items()):
        print(f"{count:6} {name} {who}")
    print(f"{len(lines)} lines, {len(different)} differences")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
