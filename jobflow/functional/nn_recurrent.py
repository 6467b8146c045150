"""Layers of recurrent networks: for each layer and direction, one product with the input weight for all time steps, and one recurrence.

The helpers serve the modules RNN, LSTM and GRU and their cells; sequences are [time, n, features].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.binary_functions import add
from jobflow.functional.creation import zeros_like
from jobflow.functional.joining import cat, stack
from jobflow.functional.nn_base import composed
from jobflow.functional.nn_linear import dropout, linear
from jobflow.functional.selecting import select
from jobflow.functional.shapes import squeeze, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops.axes import expand_dims
from jobflow.ops.matmul import matmul
from jobflow.ops.recurrent import Gru, Lstm, Recurrence, Rnn
from jobflow.ops.source import arange
from jobflow.tensors.run import run_several

#: PyTorch's word for a kind of recurrence -> the op
MODES: dict[str, Callable[..., Recurrence]] = {"RNN_TANH": Rnn, "RNN_RELU": partial(Rnn, relu=True), "LSTM": Lstm, "GRU": Gru}


class Weights(NamedTuple):
    """The weights of one layer in one direction; `hr` projects the hidden state."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    hr: Tensor | None = None


@composed
def _product(a: Tensor, b: Tensor) -> Value:
    return matmul(a, b)


@composed
def _added_at_start(x: Tensor, addend: Tensor, lengths: Tensor | None, reverse: bool) -> Value:
    """Return x with `addend` [n, features] added at the first step of each sample, in the direction of the recurrence."""
    steps = x.tensor_type.shape[0]
    times = expand_dims(arange(0, steps), 1)
    if not reverse:
        first = ew.equal(times, ew.fill_like(times, 0))
    elif lengths is None:
        first = ew.equal(times, ew.fill_like(times, steps - 1))
    else:
        ends = ew.cast(lengths, int64)
        first = ew.equal(times, ew.subtract(ends, ew.fill_like(ends, 1)))
    return ew.add(x, ew.where(expand_dims(first, 2), expand_dims(addend, 0), ew.fill_like(expand_dims(addend, 0), 0.0)))


def _one_direction(
    mode: str, x: Tensor, states: Sequence[Tensor], weights: Weights, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs of one layer in one direction, and its final states; `states` is empty or has the initial states."""
    w, bias, more = weights.hh, weights.bias_ih, []
    if bias is not None and weights.bias_hh is not None:
        if mode == "GRU":  # the reset gate multiplies a part of this bias
            more = [weights.bias_hh]
        else:
            bias = add(bias, weights.bias_hh)
    x = linear(x, weights.ih, bias)
    if weights.hr is not None:  # h' w^T = m' (w hr)^T, where m' is the state before the projection
        if states:
            x = _added_at_start(x, linear(states[0], w), lengths, reverse)
            states = [zeros_like(states[1]), states[1]]
        w = _product(w, weights.hr)
    options = {"biased": bool(more)} if mode == "GRU" else {}
    op = MODES[mode](reverse, bool(states), lengths is not None, **options)
    y, *others = run_several(op, x, w, *more, *states, *(() if lengths is None else (lengths,)))
    final = others[: op.states]
    if weights.hr is not None:
        y, final = linear(y, weights.hr), [linear(final[0], weights.hr), *final[1:]]
    return y, final


def layers(
    mode: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Sequence[Weights]],
    lengths: Tensor | None = None,
    p: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs of all layers for x [time, n, features], and the final states, each [layers * directions, n, features].

    `weights` has one element per layer and direction, `states` is empty or has the initial states, and `p` is the probability of dropout
    between layers.
    """
    finals: list[list[Tensor]] = []
    for layer, directions in enumerate(weights):
        outputs = []
        for k, each in enumerate(directions):
            starts = [select(state, 0, len(finals)) for state in states]
            y, final = _one_direction(mode, x, starts, each, lengths, k == 1)
            outputs.append(y)
            finals.append(final)
        x = outputs[0] if len(outputs) == 1 else cat(outputs, 2)
        if p and layer < len(weights) - 1:
            x = dropout(x, p, training)
    return x, [stack(each, 0) for each in zip(*finals, strict=True)]


def cell(mode: str, x: Tensor, states: Sequence[Tensor], weights: Weights) -> list[Tensor]:
    """Return the states of one step for x [n, features]; `states` is empty or has the previous states."""
    y, final = _one_direction(mode, unsqueeze(x, 0), states, weights, None, False)
    return [squeeze(y, 0), *final[1:]]
