"""PyTorch from PyPI on a simulated slice: its CUDA operators, computed by its own CPU kernels on the slice's memory.

PyTorch's wheels carry machine code for NVIDIA's processors and no PTX, which a simulated GPU could run.  So on a simulated device, and
never on a real one, this plugin registers a kernel for every operator of the dispatch key ``CUDA`` that runs the operator of the key
``CPU`` on the same bytes: device memory is managed memory there, which the processor may touch and which comes and goes by page.  The
caching allocator, the slice's cap, streams, events and out-of-memory errors stay PyTorch's own, and what Triton or NVRTC compile runs as
PTX on the device.

``import torch`` loads it through the entry point group ``torch.backends``; ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` is PyTorch's own switch.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from gpukernel.frameworks import SIMULATED_VARIABLE

__all__ = ["activate"]

NOTICE = "gpukernel: this slice is of a simulated GPU, so PyTorch's CUDA operators are computed by its CPU kernels."

# What allocates, copies or looks at memory works as it is.
KEPT = {
    "_coalesced_",
    "_copy_from",
    "_copy_from_and_resize",
    "_dimI",
    "_dimV",
    "_efficientzerotensor",
    "_indices",
    "_nnz",
    "_pin_memory",
    "_reshape_alias",
    "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_values",
    "as_strided",
    "copy_",
    "dense_dim",
    "empty",
    "empty_like",
    "empty_strided",
    "indices",
    "is_coalesced",
    "is_pinned",
    "is_set_to",
    "record_stream",
    "resize_",
    "set_",
    "sparse_dim",
    "sparse_resize_",
    "sparse_resize_and_clear_",
    "unfold",
    "values",
    "view",
    "view_as_complex",
    "view_as_real",
}
COMPOSITE = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
FUSED_ATTENTION = ("flash", "mem_efficient", "cudnn")  # kernels without a counterpart


def activate() -> None:
    """Register the CPU's kernels for CUDA tensors, on a simulated slice alone; PyTorch calls it at the end of its import."""
    if os.environ.get(SIMULATED_VARIABLE) != "1":
        return
    import torch

    if torch.version.cuda is None or not _managed(torch.version.cuda):
        return  # a build for the CPU, or one with a CUDA runtime of its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one that says which kernels are replaced
        Operators().register()
    _compile_without_graphs(torch)
    # The CPU's kernels suit every model; PyTorch's newest know no V100.
    warnings.filterwarnings("ignore", r"\s*Found GPU\d+ .*\(simulated\) which is of compute capability")
    print(NOTICE, file=sys.stderr)


def _managed(version: str) -> bool:
    """Have the CUDA runtime allocate managed memory from now on; return whether it is gpukernel's, which does."""
    major = version.partition(".")[0]
    try:
        runtime = ctypes.CDLL(f"libcudart.so.{'11.0' if major == '11' else major}", os.RTLD_NOLOAD)
        return bool(runtime.gpukernelAllocateManaged(1) == 0)
    except (OSError, AttributeError):
        return False


def _compile_without_graphs(torch: Any) -> None:
    """Have ``torch.compile(mode="reduce-overhead")`` run what it would record in CUDA graphs; set when it is called first, as its import takes seconds."""
    compile_ = torch.compile

    @functools.wraps(compile_)
    def compiled(*arguments: Any, **named: Any) -> Any:
        import torch._inductor.config

        torch._inductor.config.triton.force_cudagraphs_warmup = True
        return compile_(*arguments, **named)

    torch.compile = compiled


class Operators:
    """The kernels that stand in for PyTorch's CUDA kernels."""

    def __init__(self) -> None:
        import torch

        from gpukernel.frameworks import pytorch_memory

        self._torch, self._memory = torch, pytorch_memory
        self._library = torch.library.Library("aten", "IMPL")
        self._generator = torch.Generator("cpu")
        self._simulated = False
        # Beside the device, in one process, nothing makes the processor's touch wait for the device's work.
        self._waits = "GPUKERNEL_SIMGPU" in os.environ

    def register(self) -> int:
        """Register them, and return how many they are."""
        from gpukernel.frameworks.pytorch_cells import CELLS

        torch = self._torch
        torch.backends.cudnn.enabled = False
        for fused in FUSED_ATTENTION:
            getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)
        torch.backends.mha.set_fastpath_enabled(False)  # it takes nested tensors
        self._register_copies()
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        count = 0
        for key in ("CUDA", "SparseCUDA"):
            names = set(torch._C._dispatch_get_registrations_for_dispatch_key(key))
            if key == "CUDA":
                names |= {"aten::convolution", "aten::convolution_backward"}
            for name in sorted(names):
                space, _, operator = name.partition("::")
                packet, _, overload = operator.partition(".")
                if space != "aten" or packet in KEPT or packet.startswith("_use_"):
                    continue
                called = getattr(getattr(torch.ops.aten, packet), overload or "default")
                if own := CELLS.get(operator):
                    kernel = self._kernel(called, own)
                elif any(has(name, one) for one in (key.replace("CUDA", "CPU"), *COMPOSITE)):
                    kernel = self._kernel(called, called)
                elif key == "CUDA" and called in torch._decomp.decomposition_table:
                    kernel = torch._decomp.decomposition_table[called]
                else:
                    kernel = functools.partial(_refuse, name)
                kernel = (
                    self._traced_convolution(kernel) if packet == "convolution" else self._untraced(kernel)
                )
                self._library.impl(operator, kernel, key)
                count += 1
        return count

    def _register_copies(self) -> None:
        torch, alias = self._torch, self._memory.alias
        copied = torch.library.get_kernel("aten::copy_", "CUDA")
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

        def copy(to: Any, source: Any, non_blocking: bool = False) -> Any:
            if (
                to.dtype == source.dtype
                and to.shape == source.shape
                and to.is_conj() == source.is_conj()
                and to.is_neg() == source.is_neg()
                and to.is_contiguous()
                and source.is_contiguous()
            ):
                copied.call_boxed(keys, to, source, non_blocking)  # in the order of the stream
                return to
            self._begin()
            (alias(to) if to.is_cuda else to).copy_(alias(source) if source.is_cuda else source)
            return to

        self._library.impl("copy_", self._untraced(copy), "CUDA")

    def _traced_convolution(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return a kernel of ``convolution``, which a trace does not record: it expects ``_convolution`` inside."""
        torch = self._torch

        def convolution(*arguments: Any) -> Any:
            if torch._C._get_tracing_state() is None:
                return kernel(*arguments)
            return torch._convolution(*arguments, False, False, False, False)

        return convolution

    def _untraced(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return a kernel that `torch.jit.trace` does not look into: the operator is in its record already."""
        tracing, trace = self._torch._C._get_tracing_state, self._torch._C._set_tracing_state

        @functools.wraps(kernel)
        def untraced(*arguments: Any, **named: Any) -> Any:
            state = tracing()
            if state is None:
                return kernel(*arguments, **named)
            trace(None)
            try:
                return kernel(*arguments, **named)
            finally:
                trace(state)

        return untraced

    def _begin(self) -> None:
        torch = self._torch
        if torch.cuda.is_current_stream_capturing():
            raise NotImplementedError(
                "On a simulated slice PyTorch's operators are computed by the CPU, which a CUDA graph cannot record; "
                "run without torch.cuda.graph, or on a slice of a real GPU."
            )
        if self._waits:
            torch.cuda.synchronize()
        if not self._simulated:  # looked at once: whatever the environment says, never on a real device
            name = torch.cuda.get_device_name()
            if not name.endswith("(simulated)"):
                raise RuntimeError(f"{SIMULATED_VARIABLE} is set, and {name} is a real GPU; unset it.")
            self._simulated = True

    def _kernel(self, called: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a kernel for the operator overload `called` that runs `function` on the CPU's side."""
        torch, alias, mapped = self._torch, self._memory.alias, self._memory.mapped
        schema = called._schema
        names = [argument.name for argument in schema.arguments]
        written = [
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        tensors = [index for index, one in enumerate(schema.arguments) if str(one.type) == "Tensor"]
        place = names.index("generator") if "generator" in names else -1
        draws = place >= 0 or torch.Tag.nondeterministic_seeded in called.tags

        def kernel(*arguments: Any, **named: Any) -> Any:
            self._begin()
            devices: list[Any] = []
            pairs: dict[int, tuple[Any, Any]] = {}  # by its alias: a CUDA tensor, and the alias

            def here(value: Any) -> Any:
                if not value.is_cuda:
                    return value
                devices.append(value.device)
                below = alias(value)
                pairs[id(below)] = value, below
                return below

            local = [mapped(here, value) for value in arguments]
            local_named = {name: mapped(here, value) for name, value in named.items()}
            for name, value in local_named.items():
                if isinstance(value, torch.device) and value.type == "cuda":
                    devices.append(value)
                    local_named[name] = torch.device("cpu")
            device = devices[0] if devices else torch.device("cuda", torch.cuda.current_device())
            run = function
            if any(type(local[i]) in (bool, int, float, complex) for i in tensors if i < len(local)):
                run = called.overloadpacket  # the dispatcher made a number of what was a tensor
            if draws:
                result = self._draw(run, place, local, local_named, device)
            else:
                result = run(*local, **local_named)
            for index, name in written:
                value = local[index] if index < len(local) else local_named.get(name)
                for one in value if isinstance(value, (list, tuple)) else [value]:
                    if id(one) in pairs:
                        self._memory.replaced(*pairs[id(one)])

            def there(value: Any) -> Any:
                if id(value) in pairs:
                    return pairs[id(value)][0]
                return value if value.is_cuda else self._memory.moved(value, device)

            return mapped(there, result)

        return kernel

    def _draw(
        self, run: Callable[..., Any], place: int, local: list[Any], named: dict[str, Any], device: Any
    ) -> Any:
        """Run an operator that draws random numbers: from a CPU generator that stands where the CUDA generator stood."""
        torch = self._torch
        given = local[place] if 0 <= place < len(local) else named.get("generator")
        if given is None:
            index = torch.cuda.current_device() if device.index is None else device.index
            given = torch.cuda.default_generators[index]
        generator = given
        if given.device.type == "cuda":  # its state stays seed and offset
            generator, offset = self._generator, given.get_offset()
            generator.manual_seed((given.initial_seed() * 0x9E3779B97F4A7C15 + offset) % 2**64)
            given.set_offset(offset + 4)
        if 0 <= place < len(local):
            local[place] = generator
        elif place >= 0:
            named["generator"] = generator
        else:  # it knows the CPU's default generator alone, which is the program's
            default = torch.default_generator
            before = default.get_state()
            default.set_state(generator.get_state())
            try:
                return run(*local, **named)
            finally:
                default.set_state(before)
        return run(*local, **named)


def _refuse(name: str, *_arguments: Any, **_named: Any) -> Any:
    raise NotImplementedError(
        f"A simulated slice cannot compute {name}, which PyTorch has for NVIDIA's processors alone; "
        "use another operator, the CPU, or a slice of a real GPU."
    )
