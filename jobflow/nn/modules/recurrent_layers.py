"""Recurrent networks over sequences: RNN, LSTM and GRU, and their cells for one step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.functional.creation import empty
from jobflow.functional.nn_base import flag, one_of, whole
from jobflow.functional.nn_recurrent import MODES, Weights, cell, layers
from jobflow.functional.packed_sequences import LARGEST, PackedSequence, constant_for, gathered, holding, in_order, padded_indices
from jobflow.functional.shapes import reshape, squeeze, transpose, unsqueeze
from jobflow.functional.tensor_class import Tensor
from jobflow.nn import init
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNBase", "RNNCell", "RNNCellBase"]


def _boolean(what: str, name: str, value: Any) -> bool:
    """Return the value; raise ArgumentError unless it is a bool, as PyTorch does for layers, but not for cells."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be True or False; got {value!r}")
    return value


def _size(what: str, name: str, value: Any, least: int = 1) -> int:
    """Return a size as an int; raise ArgumentError for other values, below `least`, or above `LARGEST`."""
    if not least <= whole(what, name, value) <= LARGEST or isinstance(value, bool):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be an integer from {least} to {LARGEST}; got {value!r}")
    return int(value)


def _states_of(what: str, names: Sequence[str], hx: Any) -> tuple[Tensor, ...]:
    """Return the initial states as a tuple; raise ArgumentError unless they are a tensor, or for an LSTM a pair of tensors."""
    if hx is None:
        return ()
    states = (hx,) if len(names) == 1 else hx
    if not isinstance(states, list | tuple) or len(states) != len(names) or not all(isinstance(state, Tensor) for state in states):
        expected = "a tensor" if len(names) == 1 else "a pair of tensors, (h_0, c_0)"
        raise ArgumentError(f"{what} at {user_line()}: hx must be {expected}, or None; got {type(hx).__name__} {hx!r}")
    return tuple(states)


def _check_types(what: str, x: Tensor, states: Sequence[Tensor], weight: Tensor) -> None:
    for name, value in (("input", x), *(("hx", state) for state in states)):
        if value.dtype is not weight.dtype and scope.current().autocast is None:
            raise DtypeError(
                f"{what} at {user_line()}: {name} {value.tensor_type} and the weights {weight.dtype.name} differ in their element type; convert "
                f"one with .to()"
            )


class _Recurrent(Module):
    """Base class of modules with weights by gate, initialized with samples of U[-b, b), b = 1 / sqrt(hidden_size)."""

    hidden_size: int
    mode: str

    @property
    def _states(self) -> tuple[str, ...]:
        return ("h_0", "c_0") if self.mode == "LSTM" else ("h_0",)

    def reset_parameters(self) -> None:
        """Initialize all weights and biases."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)


class RNNBase(_Recurrent):
    """Base class of RNN, LSTM and GRU: `mode` is RNN_TANH, RNN_RELU, LSTM or GRU.

    The input is [steps, n, input_size], or [n, steps, input_size] with `batch_first`, one sequence [steps, input_size], or a PackedSequence.
    The results are the outputs of the last layer, with both directions side by side, and the final states [layers * directions, n, hidden_size].
    `dropout` is applied between layers in training.  All steps of a layer and direction are one instruction; a batch may be split over ranks.
    Raises: ArgumentError, ShapeError, DtypeError for arguments that do not match.
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        what = type(self).__name__
        self.mode = one_of(what, "mode", mode, tuple(MODES))
        self.input_size, self.hidden_size = _size(what, "input_size", input_size), _size(what, "hidden_size", hidden_size)
        self.num_layers, self.proj_size = _size(what, "num_layers", num_layers), _size(what, "proj_size", proj_size, 0)
        self.bias, self.batch_first = _boolean(what, "bias", bias), _boolean(what, "batch_first", batch_first)
        self.bidirectional = flag(what, "bidirectional", bidirectional)
        if isinstance(dropout, bool) or not isinstance(dropout, int | float | np.number) or not 0 <= dropout <= 1:
            raise ArgumentError(f"{what} at {user_line()}: dropout must be a number in [0, 1]; got {dropout!r}")
        self.dropout = float(dropout)
        if self.proj_size and (mode != "LSTM" or self.proj_size >= self.hidden_size):
            raise ArgumentError(f"{what} at {user_line()}: proj_size {proj_size} must be 0, or for an LSTM less than hidden_size {hidden_size}")
        self._flat_weights_names: list[str] = []
        self._all_weights = [self._layer(k, reverse, device, dtype) for k in range(self.num_layers) for reverse in range(1 + self.bidirectional)]
        self.reset_parameters()

    def _layer(self, layer: int, reverse: int, device: Any, dtype: Any) -> list[str]:
        """Create the parameters of one layer and direction; return their names."""
        width = {"LSTM": 4, "GRU": 3}.get(self.mode, 1) * self.hidden_size
        out = self.proj_size or self.hidden_size
        shapes = {
            "weight_ih": (width, out * (1 + self.bidirectional) if layer else self.input_size),
            "weight_hh": (width, out),
            **({"bias_ih": (width,), "bias_hh": (width,)} if self.bias else {}),
            **({"weight_hr": (out, self.hidden_size)} if self.proj_size else {}),
        }
        names = []
        for name, shape in shapes.items():
            names.append(f"{name}_l{layer}{'_reverse' if reverse else ''}")
            self.register_parameter(names[-1], Parameter(empty(*shape, device=device, dtype=dtype)))
        self._flat_weights_names += names
        return names

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def flatten_parameters(self) -> None:
        """Do nothing; the parameters need no common memory."""

    def _weights(self) -> list[list[Weights]]:
        """Return the weights by layer and direction."""
        fields = {"weight_ih": "ih", "weight_hh": "hh", "weight_hr": "hr", "bias_ih": "bias_ih", "bias_hh": "bias_hh"}
        each = [Weights(**{fields[name.split("_l", 1)[0]]: getattr(self, name) for name in names}) for names in self._all_weights]
        directions = 1 + self.bidirectional
        return [each[k : k + directions] for k in range(0, len(each), directions)]

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        what, packed = type(self).__name__, isinstance(input, PackedSequence)
        data = input.data if packed else input
        if not isinstance(data, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: input must be a tensor or a PackedSequence; got {type(data).__name__}")
        states = _states_of(what, self._states, hx)
        self._check(what, data, states, 2 if packed else 3)
        weights = self._weights()
        if packed:
            return self._packed(input, states, weights)
        single = data.ndim == 2
        if single:
            x, states = unsqueeze(data, 1), tuple(unsqueeze(state, 1) for state in states)
        else:
            x = transpose(data, 0, 1) if self.batch_first else data
        y, finals = layers(self.mode, x, self._checked_states(what, x, states), weights, None, self.dropout, self.training)
        if single:
            return squeeze(y, 1), self._answer([squeeze(state, 1) for state in finals])
        return transpose(y, 0, 1) if self.batch_first else y, self._answer(finals)

    def _packed(self, input: PackedSequence, states: Sequence[Tensor], weights: list[list[Weights]]) -> tuple[PackedSequence, Any]:
        """Return the outputs for a packed sequence, which is padded for the computation."""
        lengths, indices, inside = padded_indices(input)
        steps, n = inside.shape
        _, unsorted = input._values
        x = gathered(input.data, indices)
        if unsorted is not None:
            states = [in_order(state, 1, np.argsort(unsorted)) for state in states]
        states = self._checked_states(type(self).__name__, x, states)
        y, finals = layers(self.mode, x, states, weights, constant_for(x, lengths), self.dropout, self.training)
        if unsorted is not None:
            finals = [in_order(state, 1, unsorted) for state in finals]
        data = gathered(reshape(y, (steps * n, y.shape[2])), np.flatnonzero(inside))
        return holding(input, data), self._answer(finals)

    def _answer(self, finals: Sequence[Tensor]) -> Any:
        return finals[0] if len(finals) == 1 else tuple(finals)

    def _check(self, what: str, x: Tensor, states: Sequence[Tensor], ndim: int) -> None:
        """Raise an error for an input or states with other types or numbers of axes."""
        type, ndims = x.tensor_type, {ndim, 2}
        steps = int(type.ndim == 3 and self.batch_first)
        if type.ndim not in ndims or not type.shape[steps]:
            order = "[n, steps, input_size]" if self.batch_first else "[steps, n, input_size]"
            expected = "packed data [elements, input_size]" if ndim == 2 else f"{order}, or [steps, input_size] for one sequence"
            raise ShapeError(f"{what} at {user_line()}: input {type} must be {expected}, with at least one step")
        if type.shape[-1] != self.input_size:
            raise ShapeError(f"{what} at {user_line()}: the last axis of input {type} must be input_size, {self.input_size}")
        if any(state.tensor_type.ndim != (3 if ndim == 2 else type.ndim) for state in states):
            axes = "[layers * directions, n, size]" if type.ndim == 3 or ndim == 2 else "[layers * directions, size]"
            raise ShapeError(f"{what} at {user_line()}: hx {', '.join(str(s.tensor_type) for s in states)} must be {axes} for input {type}")
        _check_types(what, x, states, self.weight_hh_l0)

    def _checked_states(self, what: str, x: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the states; raise ShapeError unless their shapes match x, [steps, n, features]."""
        count = self.num_layers * (1 + self.bidirectional)
        for name, state, size in zip(self._states, states, (self.proj_size or self.hidden_size, self.hidden_size), strict=False):
            if state.tensor_type.shape != (count, x.tensor_type.shape[1], size):
                raise ShapeError(
                    f"{what} at {user_line()}: {name} {state.tensor_type} must be [{count}, {x.tensor_type.shape[1]}, {size}]: the number of "
                    f"layers and directions, of sequences, and of features"
                )
        return states

    def extra_repr(self) -> str:
        shown = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        options = [f"{name}={getattr(self, name)}" for name, default in shown.items() if getattr(self, name) != default]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *options])


class RNN(RNNBase):
    """A recurrent network: h = tanh(W_ih x + b_ih + W_hh h' + b_hh), or relu of this sum with `nonlinearity="relu"` (Elman 1990); see `RNNBase`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        one_of("RNN", "nonlinearity", nonlinearity, ("tanh", "relu"))
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """A long short-term memory (Hochreiter and Schmidhuber 1997); see `RNNBase`.

    The states are a pair (h, c).  Weights have the gates i, f, g, o in this order.  With `proj_size`, h is projected to this size.

    Examples:
        >>> layer = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        >>> output, (h, c) = layer(flow.randn(4, 10, 8))
        >>> output.shape, h.shape
        (jobflow.Size([4, 10, 16]), jobflow.Size([2, 4, 16]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__("LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)


class GRU(RNNBase):
    """A network of gated recurrent units (Cho et al. 2014), with gates r, z, n in this order; see `RNNBase`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype)


class RNNCellBase(_Recurrent):
    """Base class of cells, which compute one step for inputs [n, input_size] or [input_size], and states [n, hidden_size] or [hidden_size]."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        what = type(self).__name__
        self.input_size, self.hidden_size = _size(what, "input_size", input_size), _size(what, "hidden_size", hidden_size)
        self.bias, width = flag(what, "bias", bias), _size(what, "num_chunks", num_chunks) * self.hidden_size
        options = {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(empty(width, self.input_size, **options))
        self.weight_hh = Parameter(empty(width, self.hidden_size, **options))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(width, **options)) if self.bias else None)
        self.reset_parameters()

    def _step(self, input: Tensor, hx: Any) -> Any:
        """Return the next state, or for an LSTM the pair of states."""
        what, states = type(self).__name__, _states_of(type(self).__name__, self._states, hx)
        x = input.tensor_type
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(f"{what} at {user_line()}: input {x} must be [n, {self.input_size}] or [{self.input_size}]")
        for name, state in zip(self._states, states, strict=False):
            if state.tensor_type.shape != (*x.shape[:-1], self.hidden_size):
                raise ShapeError(f"{what} at {user_line()}: {name} {state.tensor_type} must be {[*x.shape[:-1], self.hidden_size]} for input {x}")
        _check_types(what, input, states, self.weight_hh)
        weights = Weights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        if x.ndim == 1:
            finals = [squeeze(y, 0) for y in cell(self.mode, unsqueeze(input, 0), [unsqueeze(state, 0) for state in states], weights)]
        else:
            finals = cell(self.mode, input, states, weights)
        return finals[0] if len(finals) == 1 else tuple(finals)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """One step of an `RNN` layer."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = one_of("RNNCell", "nonlinearity", nonlinearity, ("tanh", "relu"))
        self.mode = f"RNN_{nonlinearity.upper()}"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        result: Tensor = self._step(input, hx)
        return result

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


class LSTMCell(RNNCellBase):
    """One step of an `LSTM` layer; the states are a pair (h, c)."""

    mode = "LSTM"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self._step(input, hx)
        return result


class GRUCell(RNNCellBase):
    """One step of a `GRU` layer."""

    mode = "GRU"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        result: Tensor = self._step(input, hx)
        return result


check_layers(globals())
