"""HeCBench: its CUDA programs as their makefiles build them, for sizes that a simulated GPU does in seconds.

Not in the list: what needs data files, or minutes at a size that its source fixes; what checks nothing, or its results
for its own size alone (``crc64``).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

# Program and arguments; it says that its results are those of the host, and else FAIL, or ends with an error.
PROGRAMS = {
    "accuracy": "128 200 10 1",
    "adam": "1000 20 2",
    "adamw": "10000 2",
    "aidw": "1 1 1",
    "all-pairs-distance": "1",
    "asmooth": "64 50 9 1",
    "atomicCAS": "1",
    "atomicIntrinsics": "12 1",
    "atomicPerf": "1",
    "atomicReduction": "1048576 1",
    "attention": "256 64 0 2",
    "axpby": "1",
    "background-subtract": "64 48 0 4",
    "backprop": "1024",
    "bilateral": "64 48 0.5 0.5 1",
    "bincount": "10000 1",
    "bitonic-sort": "8 2",
    "burger": "64 64 5",
    "bwt": "1000",
    "cbsfil": "64 64 1",
    "chacha20": "1",
    "chi2": "20 2000 10 10 256 1",
    "colorwheel": "10 64 1",
    "complex": "10000 1",
    "concurrentKernels": "2",
    "convolution1D": "10000 1",
    "convolutionSeparable": "256 256 1",
    "cooling": "1000 2",
    "cross": "10000 1",
    "dct8x8": "64 64 1",
    "ecdh": "1000 1",
    "eigenvalue": "64 2",
    "entropy": "64 64 1",
    "epistasis": "16 256 1",
    "f8cast": "65536 1",
    "fft": "0 1",
    "filter": "100000 256 1",
    "flip": "3 16 1",
    "floydwarshall": "64 1 16",
    "fpc": "16 1",
    "fwt": "1",
    "ga": "1000 10 11 1",
    "gabor": "64 64 1",
    "gaussian": "-q -t -s 64",
    "glu": "3 16 1",
    "goulash": "2 1",
    "groupnorm": "2 32 4 4 32 1",
    "gru": "64 32 1",
    "haccmk": "1",
    "hausdorff": "500 500 1",
    "heat2d": "64 64 10",
    "hwt1d": "4096 1",
    "is": "32 16 16",
    "ising": "-x 128 -y 128 -w 1 -n 10",
    "iso2dfd": "64 64 2",
    "jenkins-hash": "256 4096 1",
    "kalman": "10 10 3 1",
    "keogh": "32 5000 1",
    "laplace3d": "32 32 32 2 1",
    "layout": "1",
    "lebesgue": "100 2",
    "libor": "1",
    "lif": "100 32 1000",
    "logprob": "8 2 1000 1",
    "lombscargle": "1",
    "mandelbrot": "1",
    "mask": "8 16 16 1",
    "matrix-rotate": "64 1",
    "matrixT": "64 64 1",
    "maxpool3d": "32 32 4 1",
    "merge": "1000 1",
    "mixbench": "64 1",
    "moe-sum": "4 64 1",
    "morphology": "3 3 64 64 1",
    "mr": "1",
    "mrc": "10000 1",
    "murmurhash3": "1000 1",
    "mxfp4": "65536 1",
    "nlll": "64 10 1",
    "nw": "64 10 1",
    "overlap": "",
    "page-rank": "-n 100 -i 2",
    "particle-diffusion": "10 5",
    "perplexity": "100 5 1",
    "pointwise": "2 1 16 4 1",
    "pool": "2 4 16 16 8 8 1",
    "popcount": "4096 1",
    "projectile": "1",
    "pso": "30 10",
    "radixsort": "1",
    "rainflow": "100 1",
    "relu": "10000 1",
    "reverse": "1",
    "rfs": "10 1000",
    "romberg": "128 32 1",
    "rtm8": "1",
    "s8n": "16 32 1",
    "scan": "65536 1",
    "scan2": "1 4096 256",
    "scatter": "10000 1",
    "scatterAdd": "1000 16 8 1",
    "secp256k1": "1",
    "silu": "2 4 8 8 1",
    "sobol": "100 10 1",
    "softmax": "64 128 0 1",
    "split": "65536 1",
    "stddev": "64 64 1",
    "stencil1d": "65536 1",
    "surfel": "16 32 24 1",
    "tensorAccessor": "64 64 1",
    "threadfence": "1 65536",
    "tissue": "4 1",
    "tsa": "32 32 1",
    "unfold": "10000 1",
    "upsample": "2 4 8 8 1",
    "vadd": "256 256 1",
    "vanGenuchten": "8 8 8 2",
    "wedford": "4 8 64 1",
    "winograd": "",
    "wmma": "0 16 16 64 1 1",
    "wyllie": "1000 1 1",
    "zeropoint": "10000 1",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hecbench(name: str, tmp_path: Path) -> None:
    source = Path(os.environ["GPUKERNEL_SUITES_PROGRAMS"], "src", f"{name}-cuda")
    options = ["ARCH=compute_80", "CC=nvcc -cudart shared -w"]
    built = subprocess.run(
        ["make", "-s", "-B", *options], cwd=source, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    done = subprocess.run(
        ["./main", *PROGRAMS[name].split()],
        cwd=source,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-2000:]
    assert not re.search(r"\bFAIL(ED)?\b|^error|mismatch", said, re.IGNORECASE | re.MULTILINE), said[-2000:]
    assert re.search(r"\bPASS(ED)?\b|success|verified", said, re.IGNORECASE), said[-2000:]
