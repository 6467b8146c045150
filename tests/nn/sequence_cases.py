"""Cases of recurrent modules and packed sequences, written for any library with PyTorch's names; kinds of inputs as in `nn_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nn_cases import Case, _Called

#: steps, sequences and features; lengths of the sequences
SHAPE, LENGTHS = (5, 4, 3), [3, 5, 1, 4]
X = ("x", SHAPE)


def _flat(value: Any) -> list[Any]:
    """Return the tensors of nested tuples and packed sequences."""
    if hasattr(value, "batch_sizes"):
        return [value.data]
    return [tensor for each in value for tensor in _flat(each)] if isinstance(value, tuple | list) else [value]


def _call(nn: Any, m: Any, x: Any, *states: Any, packs: bool = False, first: bool = False) -> Any:
    """Call a module with a tensor or its packed sequences, and the initial states."""
    if packs:
        x = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=first, enforce_sorted=False)
    return m(x, *([states[0] if len(states) == 1 else states] if states else []))


def _module(name: str, *sizes: int, packs: bool = False, then: Callable[[Any], Any] = _flat, **options: Any) -> Callable[[Any, Any], Any]:
    def make(nn: Any, F: Any) -> Any:
        first = options.get("batch_first", False)
        return _Called(getattr(nn, name)(*sizes, **options), lambda m, *tensors: tuple(_flat(then(_call(nn, m, *tensors, packs=packs, first=first)))))

    return make


def _function(make: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda nn, F: lambda *tensors: tuple(_flat(make(nn.utils.rnn, *tensors)))


def _ctc(*labels: int, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda nn, F: _Called(nn.CTCLoss(blank=5, **options), lambda m, x, targets: m(x.log_softmax(2), targets, [5, 3, 4, 5], list(labels)))


def _states(count: int, *sizes: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(("x", (count, SHAPE[1], size)) for size in sizes)


TWO = {"num_layers": 2, "bidirectional": True}
NETWORKS = [
    Case("rnn", _module("RNN", 3, 4), (X,)),
    Case("rnn_relu", _module("RNN", 3, 4, nonlinearity="relu", bidirectional=True), (X, *_states(2, 4))),
    Case("rnn_packed", _module("RNN", 3, 4, packs=True, bidirectional=True, bias=False), (X, *_states(2, 4))),
    Case("lstm", _module("LSTM", 3, 4), (X,)),
    Case("lstm_two", _module("LSTM", 3, 4, batch_first=True, **TWO), (("x", (4, 5, 3)), *_states(4, 4, 4))),
    Case("lstm_one", _module("LSTM", 3, 4, bias=False), (("x", (5, 3)), ("x", (1, 4)), ("x", (1, 4)))),
    Case("lstm_step", _module("LSTM", 3, 4), (("x", (1, 4, 3)),)),
    Case("lstm_projected", _module("LSTM", 3, 4, proj_size=2, **TWO), (X, *_states(4, 2, 4))),
    Case("lstm_cell_state", _module("LSTM", 3, 4, then=lambda outputs: outputs[1][1]), (X,)),
    Case("lstm_packed", _module("LSTM", 3, 4, packs=True, **TWO), (X, *_states(4, 4, 4))),
    Case("lstm_packed_first", _module("LSTM", 3, 4, packs=True, batch_first=True), (("x", (4, 5, 3)),)),
    Case("lstm_packed_projected", _module("LSTM", 3, 4, packs=True, proj_size=3, bidirectional=True), (X, *_states(2, 3, 4))),
    Case("gru", _module("GRU", 3, 4), (X,)),
    Case("gru_two", _module("GRU", 3, 4, bias=False, **TWO), (X, *_states(4, 4))),
    Case("gru_packed", _module("GRU", 3, 4, packs=True, bidirectional=True), (X, *_states(2, 4))),
    Case("rnn_cell", _module("RNNCell", 3, 4, nonlinearity="relu"), (("x", (5, 3)), ("x", (5, 4)))),
    Case("lstm_cell", _module("LSTMCell", 3, 4), (("x", (5, 3)), ("x", (5, 4)), ("x", (5, 4)))),
    Case("lstm_cell_start", _module("LSTMCell", 3, 4, 0), (("x", (5, 3)),)),
    Case("gru_cell", _module("GRUCell", 3, 4), (("x", (3,)), ("x", (4,)))),
    Case("ctc", _ctc(2, 1, 2, 1), (("x", (5, 4, 6)), ("i5", (4, 2)))),
    Case("ctc_sum", _ctc(6, 1, 2, 5, reduction="sum", zero_infinity=True), (("x", (5, 4, 6)), ("i5", (4, 6)))),
]
FUNCTIONS = [
    Case("pad_sequence", _function(lambda rnn, *xs: rnn.pad_sequence(xs, padding_value=0.5)), (("x", (3, 2)), ("x", (5, 2)), ("x", (1, 2)))),
    Case(
        "pad_sequence_left",
        _function(lambda rnn, *xs: rnn.pad_sequence(list(xs), batch_first=True, padding_side="left")),
        (("x", (3,)), ("x", (5,))),
    ),
    Case("pack_sequence", _function(lambda rnn, *xs: rnn.pack_sequence(xs, enforce_sorted=False)), (("x", (2, 3)), ("x", (4, 3)))),
    Case(
        "padded_again",
        _function(lambda rnn, x: rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, LENGTHS, enforce_sorted=False), True, -1.5, 7)[0]),
        (X,),
    ),
    Case("unpacked", _function(lambda rnn, x: rnn.unpack_sequence(rnn.pack_padded_sequence(x, [5, 4, 4, 2]))), (X,)),
]
SEQUENCES = [*NETWORKS, *FUNCTIONS]
