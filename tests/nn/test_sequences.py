"""Recurrent modules and packed sequences: outputs and gradients equal those of PyTorch, eagerly and in programs, in many layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nn_cases import Case
from ranks import on_ranks
from sequence_cases import NETWORKS, SEQUENCES
from surroundings import check, reference, run_case
from test_graph_cases import run_in_graph

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import JobError, JobflowError
from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.nn.utils import rnn

FILE = "sequences.npz"
_LINE, _MESH = Placement("cpu", (0, 1)), Placement("cpu", (0, 1, 2, 3), (2, 2))


def _split(axis: int) -> Any:
    return lambda i, ndim: Layout(_LINE, (S(axis) if ndim > axis else B,))


def _whole(i: int, ndim: int) -> Layout:
    return Layout(_LINE, (B,))


#: layouts of inputs and parameters
LAYOUTS = {
    "steps": (_split(0), _whole),
    "sequences": (_split(1), _whole),
    "weights": (_split(1), _split(0)),
    "sums": (lambda i, ndim: Layout(_LINE, (P if i == 0 else B,)), _split(1)),
}


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case.name)
def test_sequences_on_one_rank_equal_pytorch(case: Case) -> None:
    (results,) = on_ranks(1, lambda rank: run_case(case))
    check(case, results, file=FILE)


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case.name)
def test_sequences_on_two_ranks_equal_pytorch(case: Case) -> None:
    for results in on_ranks(2, lambda rank: {how: run_case(case, *layouts) for how, layouts in LAYOUTS.items()}):
        for how, each in results.items():
            check(case, each, how, FILE)


#: the networks for slow tests; the others need --full
DAILY = ("rnn_relu", "lstm_packed", "gru_two")
SOME = [pytest.param(case, id=case.name, marks=[] if case.name in DAILY else pytest.mark.full) for case in NETWORKS]


@pytest.mark.parametrize("case", SOME)
def test_networks_on_a_mesh_equal_pytorch(case: Case) -> None:
    def inputs(i: int, ndim: int) -> Layout:
        return Layout(_MESH, (S(1) if ndim > 1 else B, S(0) if ndim else B))

    def weights(i: int, ndim: int) -> Layout:
        return Layout(_MESH, (B, S(0) if ndim else B))

    for results in on_ranks(4, lambda rank: run_case(case, inputs, weights)):
        check(case, results, file=FILE)


def _without_inputs(case: Case, results: dict[str, Any]) -> dict[str, Any]:
    """Add the references of gradients of inputs, which graphs do not return."""
    return results | {name: value for name, value in reference(case, FILE).items() if name.startswith("input/")}


@pytest.mark.parametrize("case", SOME)
def test_networks_in_graphs_equal_pytorch(case: Case) -> None:
    (alone,) = on_ranks(1, lambda rank: run_in_graph(case, None, FILE))
    check(case, _without_inputs(case, alone), "alone", FILE)
    for results in on_ranks(2, lambda rank: run_in_graph(case, _split(1), FILE)):
        check(case, _without_inputs(case, results), "two ranks", FILE)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_compiled_steps_equal_eager_steps(name: str) -> None:
    x = flow.tensor(np.random.default_rng(0).standard_normal((6, 3, 4)).astype(np.float32))

    def losses(packs: bool, compiles: bool) -> list[float]:
        flow.manual_seed(0)
        module = getattr(nn, name)(4, 5, num_layers=2, bidirectional=True)
        optimizer = flow.optim.SGD(module.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            y, state = module(rnn.pack_padded_sequence(x, [6, 4, 2]) if packs else x)
            loss = (y.data if packs else y).square().mean() + (state[1] if name == "LSTM" else state).mean()
            loss.backward()
            optimizer.step()
            return loss

        function = flow.compile(step) if compiles else step
        return [function(x).item() for _ in range(3)]

    for packs in (False, True):
        np.testing.assert_allclose(losses(packs, True), losses(packs, False), rtol=1e-6)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_second_gradients_agree_with_differences(name: str) -> None:
    module = getattr(nn, name)(2, 2, bidirectional=True).double()
    x = flow.tensor(np.random.default_rng(0).standard_normal((2, 2, 2)), requires_grad=True)

    def function(x: Any, *states: Any) -> Any:
        y, final = module(rnn.pack_padded_sequence(x, [2, 1]), states if name == "LSTM" else states[0])
        return y.data, *(final if name == "LSTM" else (final,))

    states = [flow.tensor(np.random.default_rng(k).standard_normal((2, 2, 2)), requires_grad=True) for k in range(1 + (name == "LSTM"))]
    assert flow.autograd.gradgradcheck(function, (x, *states))


class _Packing(nn.Graph):
    def build(self, x: Any, lengths: Any) -> Any:
        return rnn.pack_padded_sequence(x, lengths).data


def test_graphs_refuse_lengths_in_a_tensor() -> None:
    """Compiled functions with such lengths run eagerly."""
    with pytest.raises(JobError, match=r"the values of the tensor lengths are not known while .* runs; pass a list of integers"):
        _Packing()(X, flow.tensor([5, 4]))
    assert flow.compile(lambda x, lengths: rnn.pack_padded_sequence(x, lengths).data)(X, flow.tensor([5, 4])).shape == (9, 3)


X = flow.ones(5, 2, 3)
#: invalid calls, and a part of the message
REFUSED: dict[str, Any] = {
    "hidden_size must be an integer from 1": lambda: nn.LSTM(3, 0),
    "dropout must be a number in [0, 1]; got 2": lambda: nn.GRU(3, 4, dropout=2),
    "proj_size 4 must be 0, or for an LSTM less than hidden_size 4": lambda: nn.LSTM(3, 4, proj_size=4),
    "nonlinearity 'gelu' is not one of tanh, relu": lambda: nn.RNN(3, 4, nonlinearity="gelu"),
    "bias must be True or False; got 'no'": lambda: nn.GRUCell(3, 4, bias="no"),  # type: ignore[arg-type]
    "the last axis of input float32[5,2,3] must be input_size, 4": lambda: nn.RNN(4, 4)(X),
    "input must be a tensor or a PackedSequence; got int": lambda: nn.RNN(4, 4)(1),
    "differ in their element type": lambda: nn.GRU(3, 4)(X.double()),
    "hx must be a pair of tensors": lambda: nn.LSTM(3, 4)(X, flow.zeros(1, 2, 4)),
    "h_0 float32[1,1,4] must be [1, 2, 4]": lambda: nn.GRU(3, 4)(X, flow.zeros(1, 1, 4)),
    "h_0 float32[2,3] must be [2, 4]": lambda: nn.GRUCell(3, 4)(flow.ones(2, 3), flow.ones(2, 3)),
    "lengths [5, 6] must be from 1 to 5": lambda: rnn.pack_padded_sequence(X, [5, 6]),
    "do not decrease; sort the sequences, or pass enforce_sorted=False": lambda: rnn.pack_padded_sequence(X, [4, 5]),
    "total_length 3 must be an integer from 5": lambda: rnn.pad_packed_sequence(rnn.pack_padded_sequence(X, [5, 4]), total_length=3),
    "sequences must be a list of at least one tensor": lambda: rnn.pad_sequence([]),
    "must be positive, in decreasing order": lambda: rnn.PackedSequence(flow.ones(3, 2), flow.tensor([1, 2])),
    "must have each of the integers 0 to n - 1 once": lambda: rnn.invert_permutation(flow.tensor([0, 0])),
}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_arguments_raise(message: str) -> None:
    with pytest.raises(JobflowError, match=r" at test_sequences\.py:\d+: ") as error:
        REFUSED[message]()
    assert message in str(error.value)
