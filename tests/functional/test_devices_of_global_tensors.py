"""`x.device` of a global tensor: creation functions, conversions, modules and traced programs on 1, 2 and 4 ranks equal one rank."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import agree, on_ranks, with_ranks

import jobflow as flow
from jobflow import nn

B, S0, S1, P = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1), flow.sbp.partial_sum
DATA = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
#: placements and layouts by name, for n ranks
LAYOUTS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "S": lambda n: (flow.placement("cpu", range(n)), S0),
    "B": lambda n: (flow.placement("cpu", range(n)), B),
    "2-D": lambda n: (flow.placement("cpu", np.arange(n).reshape(-1, 2 if n > 1 else 1)), [S0, S1]),
    "first": lambda n: (flow.placement("cpu", [0]), B),
}
F: Any = nn.functional


def _with_default_device(x: Any, d: Any) -> Any:
    with flow.set_default_device(d):
        y = x * flow.tensor([1.0, 2, 3, 4, 5, 6]) + flow.arange(6) * flow.rand(6) + flow.Tensor([2.0])
    assert flow.zeros(2).is_local
    return y


#: functions of x and its device, in the form of models that create tensors inside `forward`
CREATED: dict[str, Callable[[Any, Any], Any]] = {
    "zeros": lambda x, d: x + flow.zeros(4, 6, device=d) + flow.empty(6, device=d).fill_(2.0),
    "ones": lambda x, d: x * flow.ones(x.shape[0], 1, device=d),
    "full": lambda x, d: x + flow.full((6,), 3.0, device=d) + flow.full_like(x, 2.0, device=d),
    "positions": lambda x, d: x + flow.arange(x.size(1), device=d),
    "range": lambda x, d: x + flow.linspace(0, 1, 6, device=d) + flow.logspace(0, 1, 6, device=d) + flow.range(0, 5, device=d),
    "causal mask": lambda x, d: (x @ x.t()).masked_fill(flow.ones(4, 4, device=d).tril() == 0, float("-inf")).softmax(-1),
    "identity": lambda x, d: flow.eye(4, device=d) @ x,
    "one hot": lambda x, d: x + F.one_hot(flow.arange(4, device=d), 6),
    "data": lambda x, d: x * flow.tensor([1.0, 2, 3, 4, 5, 6], device=d) + flow.as_tensor(DATA[0], device=d),
    "data of x": lambda x, d: x + x.new_tensor([1.0] * 6, device=d) + x.new_zeros(4, 6) + x.new_ones(6, device=d),
    "to": lambda x, d: x + flow.from_numpy(DATA[1]).to(d) + (flow.ones(4, 6).tril() * 2).to(device=d, dtype=flow.float32),
    "tensor argument": lambda x, d: x + flow.ones(6, dtype=flow.float64).to(x) + flow.ones(4, 6, dtype=flow.int64).triu().type_as(x),
    "index": lambda x, d: x[flow.tensor([2, 0], device=d)] + x.gather(0, flow.zeros(2, 6, dtype=flow.int64, device=d)),
    "dropout noise": lambda x, d: x * (flow.rand(x.shape, device=d) < 0.5) + flow.randn(4, 6, device=d) + flow.randn_like(x, device=d),
    "random integers": lambda x, d: x + flow.randint(0, 9, (6,), device=d) + flow.randperm(6, device=d) + flow.normal(0.0, 1.0, (6,), device=d),
    "default device": _with_default_device,
    "module": lambda x, d: nn.Linear(6, 3, device=d)(x),
}


class Applied(nn.Graph):
    """A graph of one of the functions above."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, x: Any) -> Any:
        return self.function(x, x.device)


#: ways to run a function
MODES: dict[str, Callable[[Callable[[Any, Any], Any]], Callable[[Any], Any]]] = {
    "eager": lambda function: lambda x: function(x, x.device),
    "compiled": lambda function: flow.compile(lambda x: function(x, x.device)),
    "graph": Applied,
}


def _run(rank: int, n: int, names: tuple[str, ...], mode: str, layout: str | None) -> list[Any]:
    """Return the values of the functions of one rank's local tensor (`layout` None), or of a global tensor."""
    results = []
    for name in names:
        flow.manual_seed(7)
        x = flow.from_numpy(DATA) if layout is None else flow.tensor(DATA, placement=LAYOUTS[layout](n)[0], sbp=LAYOUTS[layout](n)[1])
        y = MODES[mode](CREATED[name])(x)
        assert y.is_global == (layout is not None), name
        results.append(y.tolist())
    return results


@cache
def _alone(names: tuple[str, ...]) -> list[Any]:
    return on_ranks(1, _run, 1, names, "eager", None)[0]


@pytest.mark.parametrize(("n", "layout"), [(1, "S"), (2, "S"), (4, "2-D"), (2, "first"), (4, "B")])
def test_tensors_created_on_the_device_equal_those_of_one_rank(n: int, layout: str) -> None:
    for result, expected, name in zip(agree(n, _run, n, tuple(CREATED), "eager", layout), _alone(tuple(CREATED)), CREATED, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["compiled", "graph"])
@pytest.mark.parametrize(("n", "layout"), [(1, "S"), (2, "S")])
def test_traced_programs_create_tensors_on_the_device(n: int, layout: str, mode: str) -> None:
    names = tuple(name for name in CREATED if name != "module")
    for result, expected, name in zip(agree(n, _run, n, names, mode, layout), _alone(names), names, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@with_ranks(1, 2)
def test_devices_compare_hash_copy_and_pickle_by_value(rank: int, n: int) -> None:
    here = flow.placement("cpu", range(n))
    x, y = flow.ones(2, 4, placement=here, sbp=S1), flow.zeros(3, placement=here, sbp=P)
    d = x.device
    assert (d.type, d.index, d.placement, str(d), f"{d}") == ("cpu", None, here, "cpu", "cpu") and repr(here) in repr(d)
    assert d == y.device == flow.device(d) and hash(d) == hash(y.device) and {d: 1}[y.device] == 1
    assert d == flow.device("cpu") == flow.ones(2).device and d != flow.ones(2).device and flow.ones(2).device.placement is None
    assert pickle.loads(pickle.dumps(d)) == copy.deepcopy(d) == d
    assert x.to(d) is x and not x.is_cuda and x.cpu() is x and (x * 1).device == d
    assert flow.zeros_like(x, device=d).sbp == x.sbp and flow.rand_like(y, device=d).sbp == (B,) and flow.tensor(x, device=d).sbp == x.sbp
    last = flow.placement("cpu", [n - 1])
    other = flow.ones(1, placement=last, sbp=B).device
    assert x.to(other).placement == last and y.to(other).sbp == ((B,) if n > 1 else (P,))


@with_ranks(1, 2)
def test_modules_move_to_the_device(n: int) -> None:
    here = flow.placement("cpu", range(n))
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    x = flow.tensor(DATA, placement=here, sbp=S0)
    expected = (copy.deepcopy(model)(flow.from_numpy(DATA))).detach().numpy()
    assert model.to(x.device) is model and next(model.parameters()).device == x.device == model[1].running_mean.device
    np.testing.assert_allclose(model(x).detach().numpy(), expected, atol=1e-6)


@with_ranks(1, 2)
def test_loaded_tensors_are_on_the_device(rank: int, n: int, tmp_path: Path) -> None:
    here = flow.placement("cpu", range(n))
    d = flow.ones(2, placement=here, sbp=S0).device
    flow.save({"x": flow.ones(2, 3)}, tmp_path / str(rank))
    x = flow.load(tmp_path / str(rank), map_location=d)["x"]
    assert x.device == d and x.sbp == (B,) and x.tolist() == [[1.0] * 3] * 2


@with_ranks(1, 2)
def test_every_rank_gets_the_gradient_of_its_local_tensor(n: int) -> None:
    x = flow.tensor(DATA, placement=flow.placement("cpu", range(n)), sbp=S0)
    w = flow.ones(6, dtype=flow.float32, requires_grad=True)
    (gradient,) = flow.autograd.grad((x * w.to(x.device).square()).sum(), w, create_graph=True)
    np.testing.assert_allclose(gradient.detach().numpy(), 2 * DATA.sum(0), rtol=1e-5)
    (second,) = flow.autograd.grad(gradient.sum(), w)
    np.testing.assert_allclose(second.numpy(), 2 * DATA.sum(0), rtol=1e-5)


@with_ranks(1, 2)
def test_mixed_operands_and_traced_arguments_raise(n: int) -> None:
    x = flow.tensor(DATA, placement=flow.placement("cpu", range(n)), sbp=S0)
    for wrong, error, reason in (
        (lambda: x + flow.ones(6), flow.PlacementError, "device=x.device"),
        (lambda: flow.ones(6).copy_(x[0]), flow.PlacementError, "device=x.device"),
        (lambda: flow.ones(2, device=x.device, sbp=B), flow.ConfigError, "pass either device, or placement and sbp"),
        (lambda: Applied(lambda x, d: x + flow.randn(6).to(d))(x), flow.JobError, "random numbers of this rank"),
        (lambda: Applied(lambda x, d: x + flow.ones(6, requires_grad=True).to(d))(x), flow.JobError, "requires gradients"),
    ):
        with pytest.raises(error, match=reason):
            wrong()


@with_ranks(1, 2)
def test_a_graph_reads_a_local_tensor_in_its_memory(n: int) -> None:
    x, shift = flow.tensor(DATA, placement=flow.placement("cpu", range(n)), sbp=S0), flow.zeros(2, 8)
    graph = Applied(lambda x, d: x + shift[1, :6].to(d))
    assert np.array_equal(graph(x).numpy(), DATA)
    shift.add_(1.0)
    np.testing.assert_allclose(graph(x).numpy(), DATA + 1, rtol=1e-6)


@with_ranks(1, 2)
def test_compiled_functions_compare_devices_by_value(n: int) -> None:
    x = flow.tensor(DATA, placement=flow.placement("cpu", range(n)), sbp=S0)
    shifted = flow.compile(lambda x, device: x + flow.arange(6, device=device), fullgraph=True)
    for _ in range(3):
        np.testing.assert_allclose(shifted(x, x.device).numpy(), DATA + np.arange(6), rtol=1e-6)
    assert len(shifted.traces) == 1
