"""Tensors with and without gradients, through the public functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import with_ranks

import jobflow as flow

autograd = flow.autograd
X = np.random.default_rng(1).standard_normal((4, 6))


@with_ranks(1, 2)
def test_gradients_have_the_layout_of_their_tensors(n: int) -> None:
    here = flow.placement("cpu", range(n))
    for how in (flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum):
        x = flow.tensor(X, placement=here, sbp=how, requires_grad=True)
        y = x * 2
        for results, of, factor in zip(autograd.grad((y * y).sum(), [x, y]), (x, y), (8, 4), strict=True):
            assert results.sbp == of.sbp
            np.testing.assert_allclose(results.numpy(), factor * X)


@with_ranks(1, 2)
def test_inputs_restricts_the_gradients(n: int) -> None:
    here = flow.placement("cpu", range(n))
    x, w, other = (flow.tensor(X, placement=here, sbp=flow.sbp.split(0), requires_grad=True) for _ in range(3))
    y = x * w
    for take in (lambda: (y * w).sum().backward(inputs=[x, y], retain_graph=True), lambda: autograd.backward((y * w).sum(), inputs=(x, y))):
        take()
        assert w.grad is None
        np.testing.assert_allclose(x.grad.numpy(), X * X)
        np.testing.assert_allclose(y.grad.numpy(), X)
        x.grad = y.grad = None
    zeros = autograd.grad((x * 2).sum(), [x, other], materialize_grads=True)[1]
    assert zeros.sbp == other.sbp and not zeros.numpy().any()
    gradient = autograd.grad((x * 2).sum(), x, None, True, False, True, True, False, False)[0]  # PyTorch's order of arguments
    np.testing.assert_array_equal(gradient.numpy(), np.full(X.shape, 2.0))
    model = flow.nn.Linear(6, 2).double().to_global(placement=here, sbp=flow.sbp.broadcast)
    assert len(autograd.grad(model(x).sum(), model.parameters())) == 2


LEAF = flow.ones(1, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: autograd.grad(np.ones(3), LEAF), ["grad at", "outputs", "ndarray"]),
        (lambda: autograd.grad(LEAF * 2, None), ["grad at", "inputs", "NoneType"]),
        (lambda: autograd.backward([LEAF * 2, 3.0]), ["backward at", "tensors", "float"]),
        (lambda: (LEAF * 2).backward(3.0), ["backward at", "gradient", "float"]),
        (lambda: (LEAF * 2).backward(np.ones(1)), ["backward at", "gradient", "NumPy array"]),
        (lambda: (LEAF * 2).backward(flow.ones(1, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)), ["cpu[0]:B", "local"]),
        (lambda: autograd.grad([LEAF * 2, LEAF], LEAF, [None]), ["grad_outputs has 1 gradient for 2 tensors"]),
        (lambda: autograd.grad(LEAF * 2, LEAF, is_grads_batched=True), ["grad at", "is_grads_batched"]),
        (lambda: autograd.grad(LEAF * 2, LEAF, allow_unused=False, materialize_grads=True), ["grad at", "allow_unused"]),
        (lambda: LEAF.register_hook("name"), ["register_hook at", "str"]),
        (lambda: autograd.Function.apply(LEAF), ["static method forward"]),
    ],
)
def test_arguments_that_are_not_tensors_raise(call: Any, facts: list[str]) -> None:
    with pytest.raises(flow.JobflowError) as raised:
        call()
    for fact in [*facts, "test_taking_gradients.py"]:
        assert fact in str(raised.value)


class Built(flow.nn.Graph):  # type: ignore[misc]
    """A graph that trains a linear layer; its build calls `step(loss, output)`."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self.model, self.step = flow.nn.Linear(6, 2).double(), step
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x: Any) -> Any:
        y = self.model(x)
        return self.step(y.sum(), y)


@pytest.mark.parametrize(
    ("step", "fact"),
    [
        (lambda loss, y: autograd.grad(loss, y), "grad at"),
        (lambda loss, y: autograd.backward([loss]), "backward at"),
        (lambda loss, y: loss.backward(create_graph=True), "create_graph"),
        (lambda loss, y: loss.backward(inputs=[y]), "inputs"),
        (lambda loss, y: y.register_hook(lambda g: g * 2), "register_hook at"),
        (lambda loss, y: y.retain_grad(), "retain_grad at"),
    ],
)
def test_unsupported_gradient_calls_raise_in_a_graph(step: Any, fact: str) -> None:
    with pytest.raises(flow.JobError, match=r"nn\.Graph") as raised:
        Built(step)(flow.tensor(X))
    assert fact in str(raised.value) and "test_taking_gradients.py" in str(raised.value)


def test_unsupported_parameter_hooks_raise() -> None:
    graph = Built(lambda loss, y: loss.backward())
    handle = graph.model.weight.register_hook(lambda g: g * 0)
    with pytest.raises(flow.JobError, match=r"weight float64\[2,6\] has hooks"):
        graph(flow.tensor(X))
    handle.remove()
    Built(lambda loss, y: loss.backward())(flow.tensor(X))


def test_gradient_calls_on_tensors_of_a_job_raise() -> None:
    @flow.global_function()
    def job(x: flow.typing.Numpy.Placeholder((2, 3))) -> flow.typing.Numpy:
        autograd.grad(x, x)
        return x

    with pytest.raises(flow.JobError, match=r"grad at test_taking_gradients.py:\d+: outputs is a tensor float32\[2,3\] of a job"):
        job(np.ones((2, 3), np.float32))
