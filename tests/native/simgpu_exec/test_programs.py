"""CUDA C++ kernels, compiled by NVRTC for sm_70, compared with NumPy."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_gpu import REAL, SIMULATED_ONLY

KERNEL = 'extern "C" __global__ void k'
ILLEGAL_ADDRESS, MISALIGNED, ASSERT, LAUNCH_FAILED = 700, 716, 710, 719


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(2)


@pytest.mark.parametrize("tile", [16, 32])
def test_tiled_matrix_multiplication(device: Any, nvrtc: Any, random: Any, tile: int) -> None:
    ptx = nvrtc(
        f"#define T {tile}\n"
        + KERNEL
        + "(const float*A,const float*B,float*C,int n){__shared__ float a[T][T],b[T][T];"
        "int x=threadIdx.x,y=threadIdx.y,r=blockIdx.y*T+y,c=blockIdx.x*T+x;float s=0;"
        "for(int t=0;t<n/T;t++){a[y][x]=A[r*n+t*T+x];b[y][x]=B[(t*T+y)*n+c];__syncthreads();"
        "for(int k=0;k<T;k++)s+=a[y][k]*b[k][x];__syncthreads();}C[r*n+c]=s;}"
    )
    n = 128
    a, b = random.random((2, n, n), dtype=np.float32)
    out = np.zeros((n, n), np.float32)
    device.run(ptx, "k", (n // tile, n // tile), (tile, tile), a, b, out, np.int32(n))
    np.testing.assert_allclose(out, a @ b, rtol=1e-4)


def test_reduction_through_dynamic_shared_memory(device: Any, nvrtc: Any, random: Any) -> None:
    ptx = nvrtc(
        KERNEL + "(const float*a,float*o,int n){extern __shared__ float s[];int t=threadIdx.x;float v=0;"
        "for(int i=blockIdx.x*blockDim.x+t;i<n;i+=gridDim.x*blockDim.x)v+=a[i];s[t]=v;__syncthreads();"
        "for(int k=blockDim.x/2;k;k>>=1){if(t<k)s[t]+=s[t+k];__syncthreads();}if(!t)atomicAdd(o,s[0]);}"
    )
    a, out = random.random(100_000, dtype=np.float32), np.zeros(1, np.float32)
    device.run(ptx, "k", 16, 256, a, out, np.int32(a.size), shared=1024)
    np.testing.assert_allclose(out[0], a.sum(), rtol=1e-4)


def test_histogram_with_shared_atomics(device: Any, nvrtc: Any, random: Any) -> None:
    ptx = nvrtc(
        KERNEL
        + "(const unsigned*a,unsigned*h,int n){__shared__ unsigned s[64];if(threadIdx.x<64)s[threadIdx.x]=0;"
        "__syncthreads();for(int i=blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=gridDim.x*blockDim.x)atomicAdd(&s[a[i]&63],1u);"
        "__syncthreads();if(threadIdx.x<64)atomicAdd(&h[threadIdx.x],s[threadIdx.x]);}"
    )
    a, out = random.integers(0, 2**32, 50_000, dtype=np.uint32), np.zeros(64, np.uint32)
    device.run(ptx, "k", 8, 256, a, out, np.int32(a.size))
    np.testing.assert_array_equal(out, np.bincount(a & 63, minlength=64))


def test_every_atomic(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        KERNEL + "(int*i,unsigned*u,float*f,double*d,unsigned long long*q){int t=threadIdx.x;atomicMin(i,-t);"
        "atomicMax(i+1,t);atomicAnd(u,~(1u<<(t&31)));atomicOr(u+1,1u<<(t&31));atomicXor(u+2,t);atomicInc(u+3,9);"
        "atomicDec(u+4,9);atomicAdd(f,.5f);atomicAdd(d,.25);atomicAdd(q,5ull);atomicMax(q+1,(unsigned long long)t);"
        "atomicSub(i+2,2);}"
    )
    i, u = np.zeros(3, np.int32), np.array([2**32 - 1, 0, 0, 0, 0], np.uint32)
    f, d, q = np.zeros(1, np.float32), np.zeros(1), np.zeros(2, np.uint64)
    device.run(ptx, "k", 1, 64, i, u, f, d, q)
    assert i.tolist() == [-63, 63, -128]
    assert u.tolist() == [0, 2**32 - 1, 0, 4, 6]
    assert (f[0], d[0], q.tolist()) == (32, 16, [320, 63])


def test_scan_by_warp_shuffles(device: Any, nvrtc: Any, random: Any) -> None:
    ptx = nvrtc(
        KERNEL + "(const int*a,int*o){int l=threadIdx.x&31,v=a[threadIdx.x];"
        "for(int d=1;d<32;d*=2){int u=__shfl_up_sync(~0u,v,d);if(l>=d)v+=u;}o[threadIdx.x]=v;}"
    )
    a, out = random.integers(-9, 9, 128).astype(np.int32), np.zeros(128, np.int32)
    device.run(ptx, "k", 1, 128, a, out)
    np.testing.assert_array_equal(out, np.cumsum(a.reshape(4, 32), 1).ravel())


def test_divergent_loops_reconverge_for_a_shuffle(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        KERNEL + "(int*o){int l=threadIdx.x,v=0;for(int i=0;i<l;i++)v+=i*o[0];"
        "o[l+1]=__shfl_xor_sync(~0u,v,1)+__popc(__ballot_sync(~0u,v>10));}"
    )
    out = np.ones(33, np.int32)
    device.run(ptx, "k", 1, 32, out)
    lane = np.arange(32)
    value = lane * (lane - 1) // 2
    np.testing.assert_array_equal(out[1:], value[lane ^ 1] + (value > 10).sum())


def test_recursion(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        "__device__ __noinline__ int fib(int n){return n<2?n:fib(n-1)+fib(n-2);}\n"
        + KERNEL
        + "(int*o){o[threadIdx.x]=fib(threadIdx.x%13);}"
    )
    out = np.zeros(64, np.int32)
    device.run(ptx, "k", 1, 64, out)
    fib = [0, 1]
    while len(fib) < 13:
        fib.append(fib[-1] + fib[-2])
    assert out.tolist() == [fib[i % 13] for i in range(64)]


def test_calls_through_a_table_of_functions(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        "typedef float(*F)(float,int);__device__ __noinline__ float f0(float x,int n){return x+n;}"
        "__device__ __noinline__ float f1(float x,int n){return x*n;}__device__ F tab[2]={f0,f1};"
        + KERNEL
        + "(float*o){int i=threadIdx.x;o[i]=tab[i&1](i,3);}"
    )
    out, i = np.zeros(32, np.float32), np.arange(32)
    device.run(ptx, "k", 1, 32, out)
    np.testing.assert_array_equal(out, np.where(i & 1, i * 3, i + 3))


def test_a_struct_as_parameter(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        "struct S{int a;double b;char c[5];short d;};"
        + KERNEL
        + "(S s,double*o,int i){o[0]=s.a;o[1]=s.b;o[2]=s.c[i];o[3]=s.d;}"
    )
    out = np.zeros(4)
    device.run(ptx, "k", 1, 1, struct.pack("i4xd5bxh", 3, 2.5, 1, 2, 3, 4, 5, -7), out, np.int32(2))
    assert out.tolist() == [3, 2.5, 3, -7]


def test_a_spin_lock_within_one_warp_is_passed_on(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        KERNEL + "(int*l,int*c){bool done=false;while(!done){if(atomicCAS(l,0,1)==0){*(volatile int*)c+=1;"
        "__threadfence();atomicExch(l,0);done=true;}}}"
    )
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    device.run(ptx, "k", 4, 64, lock, count)
    assert count[0] == 256


@pytest.mark.parametrize("double", [False, True])
def test_mathematics(device: Any, nvrtc: Any, random: Any, double: bool) -> None:
    names = [
        "sin",
        "cos",
        "tan",
        "exp",
        "log",
        "log2",
        "log10",
        "exp2",
        "sqrt",
        "tanh",
        "sinh",
        "cosh",
        "log1p",
        "expm1",
        "floor",
        "ceil",
        "rint",
        "trunc",
        "cbrt",
    ]
    real, suffix, dtype, tolerance = (
        ("double", "", np.float64, 1e-14) if double else ("float", "f", np.float32, 3e-6)
    )
    lines = "".join(f"o[{j}*n+i]={f}{suffix}(x);" for j, f in enumerate(names))
    ptx = nvrtc(f"{KERNEL}(const {real}*a,{real}*o,int n){{int i=threadIdx.x;{real} x=a[i];{lines}}}")
    a = random.uniform(0.05, 0.95, 128).astype(dtype)
    out = np.zeros((len(names), 128), dtype)
    device.run(ptx, "k", 1, 128, a, out, np.int32(128))
    for row, name in zip(out, names, strict=True):
        np.testing.assert_allclose(
            row, getattr(np, name)(a.astype(np.float64)), rtol=tolerance, atol=tolerance, err_msg=name
        )


def test_printf_formats_as_c_does(device: Any, nvrtc: Any, capfd: Any) -> None:
    ptx = nvrtc(KERNEL + r'(int n){printf("hello %d %5.2f %s %lld %%\n",n,1.5,"str",123456789012LL);}')
    if REAL:
        device.close()  # the next process writes to where this one does now
    device.run(ptx, "k", 1, 1, np.int32(7))
    assert capfd.readouterr().out == "hello 7  1.50 str 123456789012 %\n"


@pytest.fixture
def failing(tmp_path: Path, device: Any) -> Callable[[str, int, int], int]:
    """Run PTX in a process of its own, since its error is sticky, and give the error's code."""

    def run(ptx: str, threads: int, buffer_bytes: int) -> int:
        file = tmp_path / "kernel.ptx"
        file.write_text(ptx)
        command = [
            sys.executable,
            str(Path(__file__).with_name("fault.py")),
            str(file),
            str(threads),
            str(buffer_bytes),
        ]
        child = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return int(child.stdout.split()[-1])

    return run


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("o[threadIdx.x]=1;", 0),
        ("o[threadIdx.x+(1<<28)]=1;", ILLEGAL_ADDRESS),
        pytest.param("o[threadIdx.x+1]=1;", ILLEGAL_ADDRESS, marks=SIMULATED_ONLY),  # to the byte
        ("*(int*)((char*)o+threadIdx.x)=1;", MISALIGNED),
        ('asm("trap;");', LAUNCH_FAILED),
        ('__assertfail("no","f",1,"g",1);', ASSERT),
    ],
    ids=["no-fault", "far-away", "out-of-bounds", "misaligned", "trap", "assertion"],
)
def test_a_fault_has_its_own_error(failing: Any, nvrtc: Any, body: str, code: int) -> None:
    declared = (
        'extern "C" __device__ void __assertfail(const char*,const char*,unsigned,const char*,unsigned long);'
    )
    assert failing(nvrtc(declared + KERNEL + "(int*o){" + body + "}"), 32, 128) == code


def test_lanes_that_name_different_others_at_one_barrier_go_on(device: Any) -> None:
    """Undefined by the PTX ISA; they waited and were let go by turns for ever, whatever cancelled the kernel."""
    text = """.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out) {
.reg .b32 %l, %m; .reg .pred %p; .reg .b64 %at;
mov.u32 %l, %laneid; ld.param.u64 %at, [out]; mad.wide.u32 %at, %l, 4, %at;
setp.eq.u32 %p, %l, 31; @%p bra END;
setp.gt.u32 %p, %l, 1; @%p exit;
setp.eq.u32 %p, %l, 0; selp.b32 %m, 3, 0x80000002, %p;
bar.warp.sync %m;
END: st.global.u32 [%at], 1; ret; }"""
    out = np.zeros(32, np.uint32)
    device.run(text, "k", 1, 32, out)
    assert np.flatnonzero(out).tolist() == [0, 1, 31]


@SIMULATED_ONLY
def test_a_deadlocked_barrier_ends_the_launch(failing: Any) -> None:
    ptx = (
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(){ .reg .pred %p<2>; .reg .b32 %r<3>;"
        " mov.u32 %r1,%tid.x; setp.lt.u32 %p1,%r1,32; @%p1 bar.sync 1, 64; @!%p1 bar.sync 2, 64; ret; }"
    )
    assert failing(ptx, 64, 0) == LAUNCH_FAILED


def test_a_warp_that_spins_lets_another_warp_run(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        KERNEL + "(int*o){__shared__ volatile int f;if(!threadIdx.x)f=0;__syncthreads();"
        "if(threadIdx.x<32){while(!f);}else f=1;o[threadIdx.x]=f;}"
    )
    out = np.zeros(64, np.int32)
    device.run(ptx, "k", 1, 64, out)
    assert (out == 1).all()


def test_barriers_that_vote(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(
        KERNEL
        + "(int*o){int t=threadIdx.x;o[t]=__syncthreads_count(t&1)*100+__syncthreads_or(t==5)*10+__syncthreads_and(t<99);}"
    )
    out = np.zeros(96, np.int32)
    device.run(ptx, "k", 1, 96, out)
    assert (out == 4811).all()


def test_vector_loads_and_stores(device: Any, nvrtc: Any) -> None:
    ptx = nvrtc(KERNEL + "(const float4*a,float4*o){int t=threadIdx.x;float4 v=a[t];v.x+=1;v.w*=2;o[t]=v;}")
    a = np.arange(128, dtype=np.float32).reshape(32, 4)
    out = np.zeros_like(a)
    device.run(ptx, "k", 1, 32, a, out)
    np.testing.assert_array_equal(out, a * [1, 1, 1, 2] + [1, 0, 0, 0])
