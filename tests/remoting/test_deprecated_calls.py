"""Deprecated calls of the driver API, and the questions that a slice answers by itself."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, Worker, worker

# The library itself, for calls that the bindings have not.
RAW = """
cuda = ctypes.CDLL("libcuda.so.1")
def raw(name, *arguments): return getattr(cuda, name)(*arguments)
def handle(value): return ctypes.c_void_p(int(value))
"""


def _lines(code: str, **options: object) -> list[str]:
    async def story() -> list[str]:
        one: Worker
        async with worker(**options) as one:  # type: ignore[arg-type]
            done = await one.run(RAW + code)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return asyncio.run(story())


def test_contexts_are_made_by_every_version_of_the_call() -> None:
    assert _lines("""ok(d.cuInit(0))
for name, arguments in (("cuCtxCreate", (0, 0)), ("cuCtxCreate_v2", (0, 0)), ("cuCtxCreate_v3", (None, 0, 0, 0)), ("cuCtxCreate_v4", (None, 0, 0))):
    made, current = ctypes.c_void_p(), ctypes.c_void_p()
    assert raw(name, ctypes.byref(made), *arguments) == 0 and raw("cuCtxGetCurrent", ctypes.byref(current)) == 0
    assert made.value == current.value; print(raw("cuCtxDestroy_v2", made))
affinity = (ctypes.c_int * 3)(); print(raw("cuCtxCreate_v3", ctypes.byref(made), affinity, 1, 0, 0))
""") == ["0"] * 4 + ["224"]


def test_a_launch_in_pieces_reaches_the_kernel() -> None:
    assert _lines("""begin(); to = ok(d.cuMemAlloc(4)); kernel = handle(load(STORE_U32, b"store"))
pointer = ctypes.c_uint64(int(to))
assert raw("cuFuncSetBlockShape", kernel, 1, 1, 1) == 0 and raw("cuParamSetSize", kernel, 12) == 0
assert raw("cuParamSetv", kernel, 0, ctypes.byref(pointer), 8) == 0 and raw("cuParamSeti", kernel, 8, 4711) == 0
print(raw("cuLaunchGrid", kernel, 1, 1)); out = bytes(4); ok(d.cuMemcpyDtoH(out, to, 4)); print(int.from_bytes(out, "little"))
print(raw("cuParamSeti", kernel, 4093, 1), raw("cuParamSeti", kernel, -4, 1), raw("cuParamSetSize", kernel, 4097), raw("cuFuncSetBlockShape", kernel, 0, 1, 1))
""") == ["0", "4711", "1 1 1 1"]


def test_a_module_lists_its_functions_and_a_library_its_kernels() -> None:
    assert _lines("""begin()
ptx = b".version 7.0\\n.target sm_70\\n.address_size 64\\n" + b"".join(b".visible .entry k%d() { ret; }\\n" % i for i in range(3)) + b"\\0"
module, library = ok(d.cuModuleLoadData(ptx)), ok(d.cuLibraryLoadData(ptx, [], [], 0, [], [], 0))
print(sorted(ok(d.cuFuncGetName(f)).decode() for f in ok(d.cuModuleEnumerateFunctions(3, module))))
print(sorted(ok(d.cuKernelGetName(f)).decode() for f in ok(d.cuLibraryEnumerateKernels(3, library))))
print(len({int(f) for f in ok(d.cuModuleEnumerateFunctions(2, module))}))
print(int(ok(d.cuModuleGetFunction(module, b"k1"))) in {int(f) for f in ok(d.cuModuleEnumerateFunctions(3, module))})
print(d.cuModuleEnumerateFunctions(1, 4096)[0].name)
ok(d.cuModuleUnload(module)); print(d.cuModuleEnumerateFunctions(1, module)[0].name)
""") == [
        "['k0', 'k1', 'k2']",
        "['k0', 'k1', 'k2']",
        "2",
        "True",
        "CUDA_ERROR_INVALID_HANDLE",
        "CUDA_ERROR_INVALID_HANDLE",
    ]


def test_a_reset_gives_everything_back_and_the_device_can_be_used_again() -> None:
    assert _lines(
        """begin(); a = ok(d.cuMemAlloc(50 << 20)); s = ok(d.cuStreamCreate(0)); kernel = load(STORE_U32, b"store")
print(d.cuMemAlloc(50 << 20)[0].name); ok(d.cuDevicePrimaryCtxReset(0)); print(ok(d.cuDevicePrimaryCtxGetState(0))[1])
print(d.cuStreamSynchronize(s)[0].name, d.cuLaunchKernel(kernel, 1,1,1, 1,1,1, 0, 0, ((a, 1), (None, ctypes.c_uint32)), 0)[0].name in ("CUDA_ERROR_INVALID_HANDLE",))
begin(); b = ok(d.cuMemAlloc(50 << 20)); kernel = load(STORE_U32, b"store")
ok(d.cuLaunchKernel(kernel, 1,1,1, 1,1,1, 0, 0, ((b, 7), (None, ctypes.c_uint32)), 0)); out = bytes(4); ok(d.cuMemcpyDtoH(out, b, 4)); print(out[0])
""",
        memory_mib=64,
    ) == ["CUDA_ERROR_OUT_OF_MEMORY", "0", "CUDA_ERROR_INVALID_HANDLE True", "7"]


@AT_ADDRESSES_OF_THE_PROGRAM
def test_hints_are_kept_and_told_again() -> None:
    assert _lines("""begin(); A = d.CUlaunchAttributeID; s, t = ok(d.cuStreamCreate(0)), ok(d.cuStreamCreate(0))
value = d.CUstreamAttrValue(); value.syncPolicy = d.CUsynchronizationPolicy.CU_SYNC_POLICY_YIELD
ok(d.cuStreamSetAttribute(s, A.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, value)); ok(d.cuStreamCopyAttributes(t, s))
print([ok(d.cuStreamGetAttribute(x, A.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)).syncPolicy.name for x in (t, 0)])
print(d.cuStreamSetAttribute(12345, A.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, value)[0].name)
ok(d.cuCtxSetFlags(4)); print(ok(d.cuCtxGetFlags()), d.cuCtxSetFlags(1 << 20)[0].name)
bus = ok(d.cuDeviceGetPCIBusId(64, 0)).rstrip(b"\\0"); print(int(ok(d.cuDeviceGetByPCIBusId(bus))), int(ok(d.cuDeviceGetByPCIBusId(bus.partition(b":")[2]))), d.cuDeviceGetByPCIBusId(b"ffff:ff:1f.0")[0].name, d.cuDeviceGetByPCIBusId(b"nonsense")[0].name)
P = d.CUpointer_attribute; sync = P.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; a, b, m = ok(d.cuMemAlloc(16)), ok(d.cuMemAlloc(16)), ok(d.cuMemAllocManaged(16, 1))
def told(*places): return [int(ok(d.cuPointerGetAttribute(sync, x))) for x in places]
ok(d.cuPointerSetAttribute(True, sync, a)); ok(d.cuPointerSetAttribute(True, sync, m)); before = told(a, b, m); ok(d.cuPointerSetAttribute(False, sync, m)); print(before, told(a, b, m))
ok(d.cuMemFree(a)); a = ok(d.cuMemAlloc(16)); h = ok(d.cuMemAllocHost(16)); print(told(a), d.cuPointerSetAttribute(True, sync, h)[0].name, d.cuPointerGetAttribute(sync, 12345)[0].name)
ways = [P.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, P.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, P.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES]
print([int(ok(d.cuPointerGetAttribute(x, a))) for x in ways], [d.cuPointerGetAttribute(x, 12345)[0].name for x in ways[:1]])
""") == [
        "['CU_SYNC_POLICY_YIELD', 'CU_SYNC_POLICY_AUTO']",
        "CUDA_ERROR_INVALID_HANDLE",
        "4 CUDA_ERROR_INVALID_VALUE",
        "0 0 CUDA_ERROR_INVALID_DEVICE CUDA_ERROR_INVALID_VALUE",
        "[1, 0, 1] [1, 0, 0]",
        "[0] CUDA_ERROR_INVALID_VALUE CUDA_ERROR_INVALID_VALUE",
        "[1, 0, 0] ['CUDA_ERROR_INVALID_VALUE']",
    ]


def test_a_batch_of_copies_arrives() -> None:
    assert _lines("""begin(); s = ok(d.cuStreamCreate(0)); n = 3; spot = ctypes.c_size_t(7)
host = (ctypes.c_uint32 * n)(11, 22, 33); back = (ctypes.c_uint32 * n)(); a = int(ok(d.cuMemAlloc(4 * n)))
places = [a + 4 * i for i in range(n)]; here = [ctypes.addressof(host) + 4 * i for i in range(n)]; there = [ctypes.addressof(back) + 4 * i for i in range(n)]
U = ctypes.c_uint64 * n; sizes = U(4, 4, 4); attributes = (ctypes.c_char * 64)(); first = (ctypes.c_size_t * 1)(0)
def batch(to, source, s, count=n): return raw("cuMemcpyBatchAsync", U(*to), U(*source), sizes, ctypes.c_size_t(count), attributes, first, ctypes.c_size_t(1), ctypes.byref(spot), handle(s))
print(batch(places, here, s), batch(there, places[::-1], s), spot.value == 2**64 - 1); ok(d.cuStreamSynchronize(s)); print(list(back))
print(batch(places, here, 0), batch(places, here, s, 0))
""") == ["0 0 True", "[33, 22, 11]", "1 1"]


def test_host_memory_is_registered_once() -> None:
    assert _lines("""begin(); keep = ctypes.create_string_buffer(4096); at = ctypes.addressof(keep)
print([d.cuMemHostRegister(at + offset, 1024, 0)[0].name.removeprefix("CUDA_") for offset in (1024, 1024, 1500, 512, 0, 2048)])
print([d.cuMemHostUnregister(at + offset)[0].name.removeprefix("CUDA_") for offset in (1500, 1024, 1024)])
""") == [
        str(["SUCCESS", *["ERROR_HOST_MEMORY_ALREADY_REGISTERED"] * 3, "SUCCESS", "SUCCESS"]),
        str(["ERROR_INVALID_VALUE", "SUCCESS", "ERROR_HOST_MEMORY_NOT_REGISTERED"]),
    ]


def test_a_host_function_in_a_graph_runs_at_every_launch() -> None:
    # cuLaunchHostFunc of cuda.bindings frees its own record after the first call; a node has no such record.
    assert _lines("""begin(); seen = []; function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
s = ok(d.cuStreamCreate(0)); graph = ok(d.cuGraphCreate(0)); node = d.CUDA_HOST_NODE_PARAMS()
node.fn = d.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value); node.userData = 7; ok(d.cuGraphAddHostNode(graph, None, 0, node))
runs = ok(d.cuGraphInstantiate(graph, 0)); [ok(d.cuGraphLaunch(runs, s)) for _ in range(3)]; ok(d.cuStreamSynchronize(s)); print(seen)
""") == ["[7, 7, 7]"]


def test_errors_are_told_in_cuda_s_own_words() -> None:
    assert _lines("""ok(d.cuInit(0))
for code in (101, 700, 999): print(ok(d.cuGetErrorString(d.CUresult(code))).decode())
""") == ["invalid device ordinal", "an illegal memory access was encountered", "unknown error"]
