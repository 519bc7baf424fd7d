"""Tensors of two devices on one memory: on a simulated slice the processor may touch what PyTorch allocated on the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["alias", "mapped", "moved", "replaced"]


def alias(tensor: Any) -> Any:
    """Return a CPU tensor on the memory of the CUDA tensor `tensor`, of the same shape and strides."""
    if tensor.layout is torch.sparse_coo:
        parts = alias(tensor._indices()), alias(tensor._values())
        return torch.sparse_coo_tensor(
            *parts, tensor.shape, is_coalesced=tensor.is_coalesced(), check_invariants=False
        )
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    here = torch.empty(0, dtype=tensor.dtype)
    if size:
        memory = (ctypes.c_char * size).from_address(storage.data_ptr())
        whole = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    else:
        whole = here.untyped_storage()
    here.set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        here = torch._conj(here)
    return torch._neg_view(here) if tensor.is_neg() else here


def moved(result: Any, device: Any) -> Any:
    """Return a CUDA tensor with the values and, where they are dense, the strides of the CPU tensor `result`."""
    if result.layout is torch.sparse_coo:
        parts = moved(result._indices(), device), moved(result._values(), device)
        return torch.sparse_coo_tensor(
            *parts, result.shape, is_coalesced=result.is_coalesced(), check_invariants=False
        )
    if result.is_nested:
        raise NotImplementedError(
            "A simulated slice has no nested tensors; pad them to one length, or use the CPU."
        )
    if result.layout is not torch.strided:
        raise NotImplementedError(
            f"A simulated slice has no tensors of layout {result.layout}; use torch.sparse_coo, or the CPU."
        )
    there = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device)
    if result.numel():
        alias(there).copy_(result)
    return there


def replaced(tensor: Any, here: Any) -> None:
    """Give the CUDA tensor `tensor`, an operator's output, what its alias `here` has got: perhaps another shape, in other memory."""
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            "A simulated slice changes no sparse tensor in place; use the result instead."
        )
    if here.shape == tensor.shape and here.data_ptr() == tensor.data_ptr():
        return
    if here.shape != tensor.shape:
        tensor.resize_(here.shape)
    if here.numel():
        alias(tensor).copy_(here)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with each tensor in it, also in lists, changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(change, one) for one in value)
    return value
