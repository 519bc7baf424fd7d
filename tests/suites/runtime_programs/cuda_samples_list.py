"""NVIDIA's cuda-samples that can be compiled where there is no window, and what of them fails.

Not in the list are those that need a window (OpenGL, Vulkan, Direct3D, EGL), NPP, nvJPEG, NvSci, MPI, or libNVVM alone.
"""

from __future__ import annotations

SAMPLES = {
    "0_Introduction": (
        "UnifiedMemoryStreams asyncAPI clock clock_nvrtc cudaOpenMP fp16ScalarProduct matrixMul matrixMulDrv matrixMulDynlinkJIT "
        "matrixMul_nvrtc mergeSort simpleAWBarrier simpleAssert simpleAssert_nvrtc simpleAtomicIntrinsics "
        "simpleAtomicIntrinsics_nvrtc simpleAttributes simpleCallback simpleCooperativeGroups simpleCubemapTexture "
        "simpleDrvRuntime simpleHyperQ simpleIPC simpleLayeredTexture simpleMultiCopy simpleMultiGPU simpleOccupancy "
        "simpleP2P simplePitchLinearTexture simplePrintf simpleStreams simpleSurfaceWrite simpleTemplates simpleTexture "
        "simpleTextureDrv simpleVoteIntrinsics simpleZeroCopy systemWideAtomics template vectorAdd vectorAddDrv "
        "vectorAddMMAP vectorAdd_nvrtc"
    ),
    "1_Utilities": "deviceQuery deviceQueryDrv topologyQuery",
    "2_Concepts_and_Techniques": (
        "MC_EstimatePiInlineP MC_EstimatePiInlineQ MC_EstimatePiP MC_EstimatePiQ MC_SingleAsianOptionP "
        "convolutionSeparable convolutionTexture dct8x8 eigenvalues histogram inlinePTX inlinePTX_nvrtc interval "
        "radixSortThrust reduction reductionMultiBlockCG scalarProd scan segmentationTreeThrust shfl_scan "
        "sortingNetworks streamOrderedAllocation streamOrderedAllocationIPC streamOrderedAllocationP2P "
        "threadFenceReduction threadMigration"
    ),
    "3_CUDA_Features": (
        "StreamPriorities bf16TensorCoreGemm binaryPartitionCG cdpAdvancedQuicksort cdpBezierTessellation cdpQuadtree "
        "cdpSimplePrint cdpSimpleQuicksort cudaCompressibleMemory cudaTensorCoreGemm dmmaTensorCoreGemm "
        "globalToShmemAsyncCopy graphConditionalNodes graphMemoryFootprint graphMemoryNodes immaTensorCoreGemm "
        "jacobiCudaGraphs memMapIPCDrv newdelete ptxjit simpleCudaGraphs tf32TensorCoreGemm warpAggregatedAtomicsCG"
    ),
    "4_CUDA_Libraries": (
        "MersenneTwisterGP11213 batchCUBLAS conjugateGradient conjugateGradientCudaGraphs "
        "conjugateGradientMultiBlockCG conjugateGradientMultiDeviceCG conjugateGradientPrecond conjugateGradientUM "
        "cuSolverDn_LinearSolver cuSolverRf cuSolverSp_LinearSolver cuSolverSp_LowlevelCholesky cuSolverSp_LowlevelQR "
        "jitLto lineOfSight matrixMulCUBLAS simpleCUBLAS simpleCUBLASXT simpleCUBLAS_LU simpleCUFFT "
        "simpleCUFFT_2d_MGPU simpleCUFFT_MGPU simpleCUFFT_callback"
    ),
    "5_Domain_Specific": (
        "BlackScholes BlackScholes_nvrtc FDTD3d HSOpticalFlow MonteCarloMultiGPU NV12toBGRandResize SobolQRNG "
        "binomialOptions binomialOptions_nvrtc convolutionFFT2D dwtHaar1D dxtc fastWalshTransform "
        "p2pBandwidthLatencyTest quasirandomGenerator quasirandomGenerator_nvrtc stereoDisparity"
    ),
    "6_Performance": ("LargeKernelParameter UnifiedMemoryPerf alignedTypes cudaGraphsPerfScaling transpose"),
}
GROUPS = {name: group for group, names in SAMPLES.items() for name in names.split()}

# Fewer or smaller rounds, where a sample has words for that and takes minutes on a simulated GPU.
ARGUMENTS = {
    "FDTD3d": "--dimx=96 --dimy=96 --dimz=96",
    "NV12toBGRandResize": "-input=data/test640x480.nv12 -width=640 -height=480 -dst_width=320 -dst_height=240 -batch=2",
    "transpose": "-dimX=256 -dimY=256",
}

# Two devices instead of one; without them the sample shows nothing.
TWO_DEVICES = frozenset(
    [
        "MonteCarloMultiGPU",
        "conjugateGradientMultiDeviceCG",
        "p2pBandwidthLatencyTest",
        "simpleCUFFT_2d_MGPU",
        "simpleCUFFT_MGPU",
        "simpleMultiGPU",
        "simpleP2P",
        "streamOrderedAllocationP2P",
    ]
)

# Kernels that launch kernels, which need relocatable code.
RELOCATABLE = frozenset(name for name in GROUPS if name.startswith("cdp"))

_LAUNCHES = "kernels that launch kernels; nvcc links their relocatable code to machine code alone"
_SPARSE_SOLVERS = "functions of cuSOLVER's sparse part that are not there"
_SEVERAL = "transforms over several devices (cufftXtSetGPUs)"
KNOWN = {
    **dict.fromkeys(sorted(RELOCATABLE), _LAUNCHES),
    "MersenneTwisterGP11213": "MTGP32, a generator of cuRAND that is not there",
    **dict.fromkeys(
        ("cuSolverRf", "cuSolverSp_LinearSolver", "cuSolverSp_LowlevelCholesky", "cuSolverSp_LowlevelQR"),
        _SPARSE_SOLVERS,
    ),
    "conjugateGradientPrecond": "incomplete factors and triangular systems of cuSPARSE (SpSV), which are not there",
    "simpleCUBLASXT": "cublasXt, products over several devices",
    "simpleCUFFT_2d_MGPU": _SEVERAL,
    "simpleCUFFT_MGPU": _SEVERAL,
    "simpleCUFFT_callback": "callbacks of cuFFT",
    "p2pBandwidthLatencyTest": "one flag in pinned memory for kernels of both devices",
}
"""Those that fail, and why (docs/compatibility.md)."""

MINUTES = {
    "UnifiedMemoryPerf": "products of matrices of up to 16 MB, each in eight kinds of memory",
    "dmmaTensorCoreGemm": "a product of 8,192 rows in double precision",
}
"""Those that take many minutes on a simulated GPU: they are not started, and count as failed."""
