"""backward adds into existing gradients; zero_grad writes zeros into them; gradients that are zero by formula are tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import ConfigError, JobError


def leaf(dtype: Any = None) -> Any:
    return flow.tensor([1.0, 2.0, 3.0], dtype=dtype or flow.float32, requires_grad=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_backward_adds_into_the_memory_of_an_assigned_gradient(dtype: str) -> None:
    kind = getattr(flow, dtype)
    p, flat = leaf(kind), flow.ones(6, dtype=kind)
    p.grad = flat[3:].view(3)
    saved = p.grad
    for _ in range(2):
        (p * 2).sum().backward()
    assert p.grad is saved
    assert flat.to(flow.float32).numpy().tolist() == [1, 1, 1, 5, 5, 5]


def test_backward_adds_into_a_gradient_with_strides() -> None:
    p, whole = flow.ones(2, 3, requires_grad=True), flow.zeros(3, 2)
    p.grad = whole.t()
    (p * flow.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).sum().backward()
    assert whole.numpy().tolist() == [[1, 4], [2, 5], [3, 6]]


def test_a_saved_reference_sees_the_sum() -> None:
    p = leaf()
    p.sum().backward()
    saved, view = p.grad, p.grad[1:]
    (p * 3).sum().backward()
    assert saved.numpy().tolist() == [4, 4, 4]
    assert view.numpy().tolist() == [4, 4]


def test_gradients_that_began_as_one_tensor_do_not_share_memory() -> None:
    p, q = leaf(), leaf()
    for _ in range(2):
        (p + q).sum().backward()
    (p * 10).sum().backward()
    assert p.grad.numpy().tolist() == [12, 12, 12]
    assert q.grad.numpy().tolist() == [2, 2, 2]


def test_the_given_gradient_of_a_root_is_not_written_to() -> None:
    p, seed = leaf(), flow.ones(3)
    for _ in range(2):
        (p * 1.0).backward(seed)
        p.reshape(3).backward(seed)
    assert seed.numpy().tolist() == [1, 1, 1]
    assert p.grad.numpy().tolist() == [4, 4, 4]


@pytest.mark.parametrize("source", ["broadcast", "split"])
def test_gradients_of_global_tensors_do_not_share_memory(source: str) -> None:
    def program(rank: int) -> Any:
        place = flow.placement("cpu", ranks=[0, 1])
        sbp = flow.sbp.broadcast if source == "broadcast" else flow.sbp.split(0)
        p, q = (flow.ones(4, placement=place, sbp=sbp, requires_grad=True) for _ in range(2))
        y = flow.ones(4, placement=place, sbp=flow.sbp.broadcast)
        ((p + q) * y).sum().backward()
        saved = p.grad
        (p * y * 10).sum().backward()
        assert p.grad is saved and p.grad.sbp == p.sbp
        return p.grad.numpy().tolist(), q.grad.numpy().tolist()

    assert on_ranks(2, program) == [([11] * 4, [1] * 4)] * 2


def test_recorded_gradients_are_added_to_new_tensors() -> None:
    p = leaf()
    (p**2).sum().backward(create_graph=True)
    first = p.grad
    (p**3).sum().backward(create_graph=True)
    assert first.detach().numpy().tolist() == [2, 4, 6]
    p.grad, total = None, p.grad.sum()
    total.backward()
    assert p.grad.numpy().tolist() == [8, 14, 20]


def test_a_gradient_in_read_only_memory_is_an_error() -> None:
    p, fixed = leaf(), np.ones(3, np.float32)
    fixed.flags.writeable = False
    p.grad = flow.from_numpy(fixed)
    with pytest.raises(JobError, match=r"backward at .*: float32\[3\] has the memory of a NumPy array that is read only"):
        p.sum().backward()


@pytest.mark.parametrize("door", ["optimizer", "module"])
def test_zero_grad_writes_zeros_into_the_memory_of_gradients(door: str) -> None:
    layer = nn.Linear(3, 1, bias=False)
    zeroed: Any = flow.optim.SGD(layer.parameters(), lr=0.1) if door == "optimizer" else layer
    flat = flow.ones(3)
    layer.weight.grad = flat.view(1, 3)
    saved = layer.weight.grad
    zeroed.zero_grad(set_to_none=False)
    assert layer.weight.grad is saved
    assert flat.numpy().tolist() == [0, 0, 0]
    layer(flow.ones(1, 3)).sum().backward()
    assert flat.numpy().tolist() == [1, 1, 1]
    zeroed.zero_grad()
    assert layer.weight.grad is None
    assert flat.numpy().tolist() == [1, 1, 1]


ZERO: dict[str, Callable[[Any], Any]] = {
    "x ** 0": lambda x: x**0,
    "x ** 0 of a computed tensor": lambda x: (x * 2 + 1) ** 0,
    "norm(0)": lambda x: x.norm(0),
    "floor": flow.floor,
    "ceil": flow.ceil,
    "x * 0": lambda x: x * 0,
    "one element of x ** 0": lambda x: (x**0)[1],
}


@pytest.mark.parametrize("name", ZERO)
def test_gradients_that_are_zero_by_formula_are_zeros(name: str) -> None:
    x = leaf()
    ZERO[name](x).sum().backward()
    assert x.grad.numpy().tolist() == [0, 0, 0]
    (x * 2).sum().backward()
    assert x.grad.numpy().tolist() == [2, 2, 2]
    (slope,) = flow.autograd.grad(ZERO[name](x).sum(), x)
    assert slope.numpy().tolist() == [0, 0, 0]


def test_zero_gradients_of_computed_tensors_and_hooks() -> None:
    x, shown = leaf(), []
    y = x * 2
    (slope,) = flow.autograd.grad((y**0).sum(), y, retain_graph=True)
    assert slope.numpy().tolist() == [0, 0, 0]
    x.register_hook(lambda gradient: shown.append(gradient.numpy().tolist()))
    (y**0).sum().backward()
    assert shown == [[0, 0, 0]]


@with_ranks(2)
def test_zero_gradients_of_global_tensors_have_the_layout_of_the_tensor() -> None:
    x = flow.ones(4, placement=flow.placement("cpu", ranks=[0, 1]), sbp=flow.sbp.split(0), requires_grad=True)
    (x**0).sum().backward()
    assert x.grad.sbp == x.sbp
    assert x.grad.numpy().tolist() == [0, 0, 0, 0]


def test_no_gradient_from_a_function_of_the_user_stays_none() -> None:
    class NoGradient(flow.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return None

    x = leaf()
    NoGradient.apply(x).sum().backward()
    assert x.grad is None


def test_unused_parameters_keep_none() -> None:
    x, unused = leaf(), leaf()
    (x**0 + unused.detach()).sum().backward()
    assert unused.grad is None


@pytest.mark.parametrize("kind", [set, frozenset])
def test_optimizers_refuse_sets(kind: type) -> None:
    p = leaf()
    for params in (kind([p]), [{"params": kind([p])}]):
        with pytest.raises(ConfigError, match=f"params is a {kind.__name__}, whose order changes from run to run; pass a list"):
            flow.optim.SGD(params, lr=0.1)
    optimizer = flow.optim.SGD([p], lr=0.1)
    with pytest.raises(ConfigError, match="pass a list"):
        optimizer.add_param_group({"params": kind([leaf()])})
