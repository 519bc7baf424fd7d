"""Whole kernels in both tiers: paths that lanes take apart, memory, barriers, what goes wrong, and what never ends."""

from __future__ import annotations

import ctypes as c
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import eventually
from tests.native.simgpu_compiler.conftest import Tiers, beside_the_array
from tests.native.simgpu_exec import fault

PATHS = (Path(__file__).parent / "cases" / "paths.ptx").read_text()
KERNEL = 'extern "C" __global__ void k'


@pytest.mark.parametrize("threads", [32, 96, 70, 1])
def test_lanes_part_and_meet_as_in_the_interpreter(tiers: Tiers, threads: int) -> None:
    random = np.random.default_rng(threads)
    words = random.integers(0, 2**32, (4, threads, 4), np.uint32)
    words[..., 1] %= 20
    (out,) = tiers.same(PATHS, "paths", 4, threads, words, np.uint32(4 * threads - 3))
    assert tiers.handlers() == 0
    assert (out[..., 0] != words[..., 0]).any()


def test_a_line_that_leaves_its_bits_within_a_warp_is_the_interpreter_s(tiers: Tiers) -> None:
    values, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint64)
    _, got = tiers.same(PATHS, "wraps", 1, 64, values, out)
    want = np.concatenate([(np.arange(5, dtype=np.uint64) + 2**32 - 5) * 4, np.arange(59, dtype=np.uint64)])
    np.testing.assert_array_equal(got, want)


def test_lanes_of_a_warp_that_wait_for_each_other_make_progress(tiers: Tiers) -> None:
    words = np.zeros(2, np.uint32)
    (got,) = tiers.same(PATHS, "locks", 3, 64, words)
    assert got.tolist() == [0, 192]


PROGRAMS = {
    "a tiled product": (
        "(const float*a,const float*b,float*o){__shared__ float s[16][16],t[16][16];int x=threadIdx.x,y=threadIdx.y;float r=0;"
        "for(int k=0;k<64;k+=16){s[y][x]=a[(blockIdx.y*16+y)*64+k+x];t[y][x]=b[(k+y)*64+blockIdx.x*16+x];__syncthreads();"
        "for(int j=0;j<16;++j)r=fmaf(s[y][j],t[j][x],r);__syncthreads();}o[(blockIdx.y*16+y)*64+blockIdx.x*16+x]=r;}",
        (4, 4), (16, 16), (4096, 4096, 4096)),
    "a sum by shuffles": (
        "(const float*a,const float*b,float*o){int i=blockIdx.x*blockDim.x+threadIdx.x;float v=a[i]*b[i];"
        "for(int d=16;d;d/=2)v+=__shfl_down_sync(~0u,v,d);if(threadIdx.x%32==0)o[i/32]=v;}",
        8, 128, (1024, 1024, 32)),
    "a scan with barriers": (
        "(const float*a,const float*b,float*o){__shared__ float s[128];int t=threadIdx.x,i=blockIdx.x*128+t;s[t]=a[i];__syncthreads();"
        "for(int d=1;d<128;d*=2){float v=t>=d?s[t-d]:0.f;__syncthreads();s[t]+=v;__syncthreads();}o[i]=s[t]+b[i];}",
        8, 128, (1024, 1024, 1024)),
    "scattered reads and writes": (
        "(const float*a,const float*b,float*o){int i=blockIdx.x*blockDim.x+threadIdx.x,j=(i*37)%1024;double d=a[j];"
        "o[(j*5+3)%1024]=(float)(d/(b[i]+2.0))+(float)(i%3?sqrtf(fabsf(a[i])):rsqrtf(b[j]*b[j]+1.f));}",
        8, 128, (1024, 1024, 1024)),
    "bytes, halves and long words": (
        "(const unsigned char*a,const short*b,long long*o){int i=blockIdx.x*blockDim.x+threadIdx.x;"
        "long long s=0;for(int j=0;j<=i%7;++j)s=s*31+a[(i+j)%512]*(long long)b[(i*3+j)%512];o[i]=s/(1+i%5)+(s>>3)%(i+1);}",
        2, 128, (512, 1024, 2048)),
    "a switch and early ends": (
        "(const float*a,const float*b,float*o){int i=blockIdx.x*blockDim.x+threadIdx.x;float v=a[i];if(v<-1.5f)return;"
        "for(int n=0;n<40;++n){switch((i+n)%5){case 0:v+=1;break;case 1:v*=b[i];break;case 2:if(v>3)continue;v-=2;break;"
        "case 3:if(v<-50)goto out;v=sinf(v);default:v=-v;}if(v>100)break;}out:o[i]=v;}",
        8, 128, (1024, 1024, 1024)),
    "atomics and votes": (
        "(const float*a,unsigned*b,unsigned*o){int i=blockIdx.x*blockDim.x+threadIdx.x;bool p=a[i]>0;"
        "unsigned m=__ballot_sync(~0u,p);if(p)atomicAdd(&o[m%64],__popc(m&((1u<<(threadIdx.x%32))-1)));atomicMax(&b[i%8],m>>3);}",
        8, 128, (1024, 1024, 64)),
    "blocks of two rows": (
        "(const float*a,const float*b,float*o){int x=blockIdx.x*32+threadIdx.x,y=blockIdx.y*3+threadIdx.y;if(x>60||y>20)return;"
        "float s=0;for(int d=-1;d<=1;++d)if(y+d>=0)s+=a[(y+d)*64+x]*b[abs(x+d)];o[y*64+x]=s;}",
        (2, 8), (32, 3), (4096, 4096, 4096)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_same_bits(tiers: Tiers, nvrtc: Any, name: str) -> None:
    text, grid, block, sizes = PROGRAMS[name]
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(n).astype(np.float32) for n in sizes]
    results = tiers.same(nvrtc(KERNEL + text), "k", grid, block, *arrays)
    assert ": compiled: " in tiers.said[-1]
    assert any((a != b).any() for a, b in zip(arrays, results, strict=True))


FAULTS = {
    "past the end": "(int*o){int i=threadIdx.x;o[i+(i==37)*1000]=1;}",
    "misaligned": "(int*o){int i=threadIdx.x;if(i>40)*(int*)((char*)o+i)=1;}",
    "in a loop": "(int*o){int s=0;if(threadIdx.x<32)for(int n=0;n<1000;++n)s+=o[threadIdx.x+n];o[0]=s;}",
    "one address for all": "(int*o){o[64+threadIdx.x]=o[1<<20];}",
    "of shared memory": "(int*o){__shared__ int s[64];int i=threadIdx.x;s[i]=i;__syncthreads();o[i]=s[i*i];}",
    "a trap of one lane": '(int*o){if(threadIdx.x==50)asm("trap;");o[threadIdx.x]=1;}',
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_by_the_same_place_thread_and_line(nvrtc: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(nvrtc(KERNEL + FAULTS[name], "--generate-line-info"))
    said = []
    for tier in ("interpreter", "compiled"):
        environment = {**os.environ, "GPUKERNEL_SIMGPU_TIER": tier, "GPUKERNEL_SIMGPU_TIER_LOG": "1"}
        command = [sys.executable, fault.__file__, str(path), "64", "256"]
        done = subprocess.run(
            ["setarch", "-R", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert (": compiled: " in done.stderr) == (tier == "compiled")
        lines = [
            beside_the_array(line) for line in done.stdout.splitlines() if line.startswith("gpukernel: ")
        ]
        said.append((lines, done.stdout.splitlines()[-1]))
    assert said[0] == said[1]
    assert "by thread (" in said[0][0][0]


ENDLESS = """
import ctypes as c, os, sys, time
sys.path.insert(0, {root!r})
from tests.native.simgpu_exec.conftest import Device
device = Device({library!r})
cuda, module, function, address = device._cuda, c.c_void_p(), c.c_void_p(), c.c_uint64()
cuda.gpukernel_work_for(c.c_uint64(7))
stream = c.c_void_p()
assert cuda.cuStreamCreate(c.byref(stream), 1) == 0
assert cuda.cuModuleLoadData(c.byref(module), open({ptx!r}, "rb").read()) == 0
assert cuda.cuModuleGetFunction(c.byref(function), module, b"endless") == 0
assert cuda.cuMemAlloc_v2(c.byref(address), c.c_size_t(256)) == 0
limit = c.c_uint(int(sys.argv[1]))
pointers = (c.c_void_p * 2)(c.addressof(address), c.addressof(limit))
assert cuda.cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, pointers, None) == 0
time.sleep(0.3)
assert cuda.cuStreamQuery(stream) == 600
start = time.monotonic()
cuda.gpukernel_end_program(c.c_uint64(7))
cuda.cuStreamSynchronize(stream)
print(time.monotonic() - start, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("limit", [64, 20], ids=["all-lanes", "some-lanes"])
def test_a_compiled_loop_without_an_end_is_cancelled(limit: int, tmp_path: Path) -> None:
    from gpukernel.native import simgpu_library

    ptx = tmp_path / "paths.ptx"
    ptx.write_text(PATHS + "\0")
    script = ENDLESS.format(root=str(Path(__file__).parents[3]), library=str(simgpu_library()), ptx=str(ptx))
    environment = {
        **os.environ,
        "GPUKERNEL_SIMGPU": "v100",
        "GPUKERNEL_SIMGPU_TIER": "compiled",
        "GPUKERNEL_SIMGPU_TIER_LOG": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script, str(limit)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "endless: compiled: " in done.stderr
    assert float(done.stdout) < 0.1


def test_auto_compiles_what_is_launched_again(tiers: Tiers, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "auto")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "1")
    cuda, module, function, address = tiers.device._cuda, c.c_void_p(), c.c_void_p(), c.c_uint64()
    assert cuda.cuModuleLoadData(c.byref(module), c.c_char_p(PATHS.encode())) == 0
    assert cuda.cuModuleGetFunction(c.byref(function), module, b"locks") == 0
    assert cuda.cuMemAlloc_v2(c.byref(address), c.c_size_t(8)) == 0
    assert cuda.cuMemsetD32_v2(address, 0, c.c_size_t(2)) == 0
    pointers = (c.c_void_p * 1)(c.addressof(address))
    said = []

    def compiled() -> bool:
        said.append(capfd.readouterr().err.count("locks: compiled: "))
        return sum(said) == 1

    for launch in range(3):
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, pointers, None) == 0
        assert cuda.cuCtxSynchronize() == 0
        if launch == 0:
            assert not compiled()
        else:
            eventually(compiled)  # in the background, and once
    words = (c.c_uint * 2)()
    assert cuda.cuMemcpyDtoH_v2(words, address, c.c_size_t(8)) == 0
    assert list(words) == [0, 96]


def test_a_kernel_with_an_operation_that_is_not_known_is_the_interpreter_s(tiers: Tiers, nvrtc: Any) -> None:
    text = (
        '(unsigned*o){unsigned n;asm("{.reg .u64 p; alloca.u64 p, 16; st.local.u32 [p], 1; ld.local.u32 %0, [p];}":"=r"(n));'
        "o[threadIdx.x]=n;}"
    )
    ptx = nvrtc(KERNEL + text).replace(".target sm_70", ".target sm_90")
    (got,) = tiers.same(ptx, "k", 1, 64, np.zeros(64, np.uint32))
    assert got.tolist() == [1] * 64
    assert tiers.handlers() == -1
    assert tiers.said[-1].endswith("the compiler does not know 'alloca'")
