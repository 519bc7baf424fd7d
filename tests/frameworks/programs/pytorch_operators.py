"""PyTorch's own table of operators and their sample inputs: each on the slice and on the CPU, compared.  Prints JSON.

``python pytorch_operators.py values|gradients`` runs the first samples of every entry in single precision.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as tree

SAMPLES = 3
# Random ones have other numbers on each device, as they have on a real one.
RANDOM = "rand dropout multinomial bernoulli empty exponential cauchy geometric log_normal normal poisson lowrank uniform fractional rrelu"
DROP_OUT = ("nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward")


def on_slice(value: Any, known: dict[int, Any]) -> Any:
    """Return `value` with each tensor on the slice, the same one for the same one."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device("cuda")
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().cuda().requires_grad_(leaf.requires_grad)
        return known[id(leaf)]

    return tree.tree_map(
        lambda leaf: one(leaf) if not isinstance(leaf, str) or leaf == "cpu" else leaf, value
    )


def tensors(value: Any) -> list[Any]:
    return [leaf for leaf in tree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def total(value: Any) -> Any:
    return sum(one.abs().double().sum() for one in tensors(value) if one.requires_grad)


def agree(got: Iterable[Any], wanted: Iterable[Any], rtol: float, atol: float) -> None:
    for one, other in zip(got, wanted, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.device.type == "cuda", "a result is on the CPU"
        torch.testing.assert_close(one.cpu(), other, equal_nan=True, rtol=rtol, atol=atol, check_stride=False)


def values(operator: Any, sample: Any, known: dict[int, Any]) -> None:
    here = operator(sample.input, *sample.args, **sample.kwargs)
    mine = on_slice((sample.input, sample.args, sample.kwargs), known)
    agree(tensors(operator(mine[0], *mine[1], **mine[2])), tensors(here), 1e-4, 1e-5)


def gradients(operator: Any, sample: Any, known: dict[int, Any]) -> None:
    leaves = [one for one in tensors((sample.input, sample.args, sample.kwargs)) if one.requires_grad]
    here = total(operator(sample.input, *sample.args, **sample.kwargs))
    wanted = torch.autograd.grad(here, leaves, allow_unused=True)
    mine = on_slice((sample.input, sample.args, sample.kwargs), known)
    there = total(operator(mine[0], *mine[1], **mine[2]))
    got = torch.autograd.grad(there, [known[id(one)] for one in leaves], allow_unused=True)
    agree(got, wanted, 1e-3, 1e-4)


def main(what: str) -> None:
    passed, failed = 0, {}
    compare = {"values": values, "gradients": gradients}[what]
    for operator in op_db:
        name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
        if any(word in name for word in RANDOM.split()) or name in DROP_OUT:
            continue
        if name.startswith("jiterator"):  # CUDA C alone, with which the CPU has nothing to compare
            continue
        if torch.float32 not in operator.dtypes or (what == "gradients" and not operator.supports_autograd):
            continue
        samples = []
        for sample in operator.sample_inputs("cpu", torch.float32, requires_grad=what == "gradients"):
            samples.append(sample)
            if len(samples) == SAMPLES:
                break
        try:
            for sample in samples:
                compare(operator, sample, {})
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        else:
            passed += 1
    print(json.dumps({"passed": passed, "failed": failed}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
