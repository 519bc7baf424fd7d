"""The operators of recurrent cells that PyTorch has for CUDA alone, written with its other operators.

Gates are of shape (batch, gates × hidden); an LSTM's are input, forget, cell and output, a GRU's are reset, update and new
(``torch.nn.LSTM`` and ``torch.nn.GRU`` have the equations).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["CELLS"]

import torch


def lstm_cell(
    inputs: Any, hidden: Any, cell: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any, Any]:
    """Return the new state, the new cell, and the gates' values for the way back."""
    gates = inputs + hidden
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    enter, forget, new, leave = gates.chunk(4, 1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    after = forget * cell + enter * new
    return leave * after.tanh(), after, torch.cat((enter, forget, new, leave), 1)


def lstm_cell_backward(
    of_state: Any, of_cell: Any, cell: Any, after: Any, gates: Any, has_bias: bool
) -> tuple[Any, Any, Any]:
    """Return the gradients of the gates, of the cell and of the bias."""
    enter, forget, new, leave = gates.chunk(4, 1)
    curved = after.tanh()
    through = torch.zeros_like(after) if of_cell is None else of_cell
    of_leave = torch.zeros_like(after)
    if of_state is not None:
        through = through + of_state * leave * (1 - curved * curved)
        of_leave = of_state * curved * leave * (1 - leave)
    slopes = torch.cat(
        (
            through * new * enter * (1 - enter),
            through * cell * forget * (1 - forget),
            through * enter * (1 - new * new),
            of_leave,
        ),
        1,
    )
    return slopes, through * forget, slopes.sum(0) if has_bias else None


def gru_cell(
    inputs: Any, hidden: Any, state: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any]:
    """Return the new state, and what the way back needs."""
    if input_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    input_reset, input_update, input_new = inputs.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (state - new), torch.cat((reset, update, new, state, hidden_new), 1)


def gru_cell_backward(of_state: Any, kept: Any, has_bias: bool) -> tuple[Any, Any, Any, Any, Any]:
    """Return the gradients of the input's gates, the hidden gates, the state and both biases."""
    reset, update, new, state, hidden_new = kept.chunk(5, 1)
    of_new = of_state * (1 - update) * (1 - new * new)
    of_update = of_state * (state - new) * update * (1 - update)
    of_reset = of_new * hidden_new * reset * (1 - reset)
    of_inputs = torch.cat((of_reset, of_update, of_new), 1)
    of_hidden = torch.cat((of_reset, of_update, of_new * reset), 1)
    biases = (of_inputs.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_inputs, of_hidden, of_state * update, *biases


def conv_depthwise(
    inputs: Any, weight: Any, _size: Any, bias: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    """Return the convolution of each channel with filters of its own."""
    zeros = [0] * len(stride)
    return torch.convolution(
        inputs, weight, bias, stride, padding, dilation, False, zeros, inputs.shape[-len(stride) - 1]
    )


CELLS: dict[str, Callable[..., Any]] = {
    "_conv_depthwise2d": conv_depthwise,
    "conv_depthwise3d": conv_depthwise,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}
"""By the name of PyTorch's operator."""
