"""`flow.utils.checkpoint`: equal gradients and random numbers, with less memory."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import ArgumentError, JobError
from jobflow.utils.checkpoint import checkpoint, checkpoint_sequential

X = np.random.default_rng(0).standard_normal((6, 8))


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 8)).double()


def gradients(rank: int, run: Callable[[Callable[..., Any], Any], Any], placed: bool = False) -> list[np.ndarray[Any, Any]]:
    """Return the loss, and the gradients of the input and of two blocks; run(block, x) computes the second block."""
    flow.manual_seed(3)
    first, second = block(), block()
    x = flow.tensor(X)
    if placed:
        where = flow.placement("cpu", [0, 1])
        first, second = (each.to_global(where, flow.sbp.broadcast) for each in (first, second))
        x = x.to_global(where, flow.sbp.broadcast).to_global(where, flow.sbp.split(0))
    x.requires_grad_()
    hidden = first(x) * 2
    loss = (run(second, hidden) * hidden).sum()
    loss.backward()
    return [np.array(loss.item()), *(np.array(each.grad.numpy()) for each in (x, *first.parameters(), *second.parameters()))]


def plain(function: Callable[..., Any], x: Any) -> Any:
    return function(x)


RUNS: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "checkpoint": lambda function, x: checkpoint(function, x, use_reentrant=False),
    "reentrant": lambda function, x: checkpoint(function, x, use_reentrant=True),
    "sequential": lambda function, x: checkpoint_sequential(function, 2, x, use_reentrant=False),
    "a captured tensor": lambda function, x: checkpoint(lambda: function(x), use_reentrant=False),
    "nested": lambda function, x: checkpoint(lambda y: checkpoint(function, checkpoint(lambda z: z * 1.0, y)), x),
    "a structure": lambda function, x: checkpoint(lambda a, b: {"y": [function(a["x"]) + b]}, {"x": x}, b=0.0)["y"][0],
}


@pytest.mark.parametrize("case", RUNS)
def test_gradients_are_those_of_the_function(case: str) -> None:
    for values, expected in zip(gradients(0, RUNS[case]), gradients(0, plain), strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_gradients_are_equal_on_ranks() -> None:
    for case in ("checkpoint", "a captured tensor"):
        for results, expected in zip(on_ranks(2, gradients, RUNS[case], True), on_ranks(2, gradients, plain, True), strict=True):
            for values, other in zip(results, expected, strict=True):
                np.testing.assert_allclose(values, other, rtol=1e-12)


def test_grad_and_several_outputs_are_supported() -> None:
    w, x = nn.Parameter(flow.ones(3)), flow.tensor([1.0, 2.0, 3.0])
    a, b, n = checkpoint(lambda x: (x * w, (x * w * w).sum(), 3), x)
    assert n == 3
    np.testing.assert_allclose(flow.autograd.grad(a.sum() + b, [w])[0].numpy(), [3.0, 6.0, 9.0])
    a, b, n = checkpoint(lambda x: (x * w, (x * w * w).sum(), None), x)
    b.backward()  # the other output has no gradient
    np.testing.assert_allclose(w.grad.numpy(), [2.0, 4.0, 6.0])
    with flow.no_grad():
        assert not checkpoint(lambda x: x * w, x).requires_grad
    assert checkpoint(lambda x: x * 2, x).tolist() == [2.0, 4.0, 6.0]


class Tracked(nn.Module):
    """Four operations whose results register weak references to their memory."""

    def __init__(self, references: list[Any], peak: list[int]) -> None:
        super().__init__()
        self.layer, self.references, self.peak = nn.Linear(8, 8), references, peak

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        for function in (self.layer, flow.tanh, flow.exp, flow.sin):
            x = function(x)
            self.references.append(weakref.ref(x.array))
            self.peak.append(sum(each() is not None for each in self.references))
        return x


def test_few_results_stay_in_memory() -> None:
    def most(run: Callable[[Any, Any], Any]) -> tuple[int, int]:
        """Return the numbers of results in memory before the backward pass, and at the peak of both passes."""
        references: list[Any] = []
        peak: list[int] = []
        layers = [Tracked(references, peak) for _ in range(8)]
        y = flow.ones(5, 8)
        for layer in layers:
            y = run(layer, y)
        before = sum(each() is not None for each in references)
        y.sum().backward()
        return before, max(peak)

    assert most(plain)[0] >= 24
    before, peak = most(lambda layer, y: checkpoint(layer, y, use_reentrant=False))
    assert before <= 8 and peak <= 12


def test_autocast_and_contexts_are_repeated() -> None:
    w, x = nn.Parameter(flow.ones(4, 4)), flow.ones(4, 4)
    dtypes, entered = [], []

    def function(x: flow.Tensor) -> flow.Tensor:
        y = x @ w
        dtypes.append(y.dtype)
        return y

    @contextlib.contextmanager
    def named(name: str) -> Any:
        entered.append(name)
        yield

    with flow.autocast("cpu"):
        loss = checkpoint(function, x, use_reentrant=False, context_fn=lambda: (named("first"), named("second"))).sum()
    loss.backward()
    assert dtypes == [flow.bfloat16] * 2 and entered == ["first", "second"]


@pytest.mark.parametrize("kind", ["compiled", "graph"])
def test_compiled_functions_and_graphs_recompute(kind: str) -> None:
    def losses(run: Callable[[Any, Any], Any], compiled: bool) -> list[float]:
        flow.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double(), flow.tensor(X)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.125)

        def loss_of() -> flow.Tensor:
            loss = (run(model, x) ** 2).mean()
            loss.backward()
            return loss

        def step() -> flow.Tensor:
            optimizer.zero_grad()
            loss = loss_of()
            optimizer.step()
            return loss

        class Training(nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = model
                self.add_optimizer(optimizer)

            def build(self) -> flow.Tensor:
                return loss_of()

        call = step if not compiled else flow.compile(step) if kind == "compiled" else Training()
        return [float(call()) for _ in range(3)]

    np.testing.assert_allclose(losses(lambda model, x: checkpoint(model, x, use_reentrant=False), True), losses(plain, False), rtol=1e-10)


def test_wrong_uses_raise() -> None:
    x = flow.ones(3).requires_grad_()
    y = checkpoint(lambda x: (x * x).exp(), x)
    grads = lambda: flow.autograd.grad(y.sum(), [x], create_graph=True)  # noqa: E731 - called once
    with pytest.raises(JobError, match="gradients of gradients through checkpoint are not supported"):
        grads()
    argument = x * 1
    y = checkpoint(lambda a: a * a, argument)
    with flow.no_grad():
        argument.add_(1.0)
    with pytest.raises(JobError, match=r"an argument float32\[3\] of a checkpointed function was overwritten"):
        y.sum().backward()
    sizes = iter((3, 2))
    y = checkpoint(lambda x: x[: next(sizes)] * x[0], x)
    with pytest.raises(JobError, match=r"a checkpointed function returned float32\[3\], but float32\[2\] in the second call"):
        y.sum().backward()
    for arguments, options, message in (
        ((3, x), {}, "function must be a function or module; got 3"),
        ((abs, x), {"use_reentrant": "no"}, "use_reentrant must be True or False; got 'no'"),
        ((abs, x), {"determinism_check": "all"}, 'determinism_check must be "default" or "none"'),
        ((abs, x), {"context_fn": 3}, "context_fn must be a function that returns two contexts"),
    ):
        with pytest.raises(ArgumentError, match=rf"checkpoint at test_checkpoint.py:\d+: {message}"):
            checkpoint(*arguments, **options)
    with pytest.raises(ArgumentError, match="segments must be an integer from 1 to 1, the number of functions; got 2"):
        checkpoint_sequential([abs], 2, x)
    with pytest.raises(ArgumentError, match="functions must be a list of functions"):
        checkpoint_sequential(3, 2, x)
