"""Backward hooks of modules and tensors: the gradients that they receive and replace, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import graph_of
from ranks import with_ranks

import jobflow as flow

X = np.random.default_rng(1).standard_normal((4, 3))
WEIGHT = np.random.default_rng(2).standard_normal((2, 3))
#: of the outputs, that comes back
SEED = np.random.default_rng(3).standard_normal((4, 2))


def linear(here: Any = None) -> Any:
    module = flow.nn.Linear(3, 2, bias=False).double()
    module.weight.array[...] = WEIGHT
    return module if here is None else module.to_global(placement=here, sbp=flow.sbp.broadcast)


def cases(n: int) -> list[tuple[Any, dict[str, Any]]]:
    """Return modules, each with the layout of the input."""
    here = flow.placement("cpu", range(n))
    return [(linear(), {}), *((linear(here), {"placement": here, "sbp": how}) for how in (flow.sbp.split(0), flow.sbp.broadcast, flow.sbp.split(1)))]


def seed(options: dict[str, Any]) -> Any:
    return flow.tensor(SEED, **({**options, "sbp": flow.sbp.broadcast} if options else {}))


@with_ranks(1, 2)
def test_hooks_of_a_module_receive_and_replace_its_gradients(n: int) -> None:
    for module, options in cases(n):
        x = flow.tensor(X, requires_grad=True, **options)
        events: list[Any] = []

        def before(m: Any, grad_output: Any, events: Any = events) -> Any:
            events.append(("before", m, [g.numpy() for g in grad_output]))
            return (grad_output[0] * 2,)

        def after(m: Any, grad_input: Any, grad_output: Any, events: Any = events) -> Any:
            events.append(("after", m, [g.numpy() for g in grad_input], [g.numpy() for g in grad_output]))
            return grad_input[0] * 10

        first, second = module.register_full_backward_pre_hook(before), module.register_full_backward_hook(after)
        module(x).backward(seed(options))
        assert [each[:2] for each in events] == [("before", module), ("after", module)]
        np.testing.assert_allclose(events[0][2][0], SEED)
        np.testing.assert_allclose(events[1][3][0], 2 * SEED)
        np.testing.assert_allclose(events[1][2][0], 2 * SEED @ WEIGHT)
        np.testing.assert_allclose(x.grad.numpy(), 20 * SEED @ WEIGHT)
        np.testing.assert_allclose(module.weight.grad.numpy(), 2 * SEED.T @ X)  # the inputs' gradient is not on its way
        first.remove()
        second.remove()
        x.grad = None
        module(x).backward(seed(options))
        assert len(events) == 2
        np.testing.assert_allclose(x.grad.numpy(), SEED @ WEIGHT)


@with_ranks(1, 2)
def test_inputs_without_gradients_are_none(n: int) -> None:
    for module, options in cases(n):
        events: list[Any] = []
        module.register_full_backward_hook(lambda m, i, o, events=events: events.append((i, o[0].numpy())))
        module(flow.tensor(X, **options)).backward(seed(options))
        assert [i for i, _ in events] == [(None,)]
        np.testing.assert_allclose(events[0][1], SEED)


class Pair(flow.nn.Module):  # type: ignore[misc]
    """A module with two tensors and a number as arguments, and two outputs."""

    def forward(self, x: Any, factor: float, y: Any) -> Any:
        return x * factor, y + x


def test_hooks_receive_gradients_in_the_order_of_arguments_and_outputs() -> None:
    module, events = Pair(), []
    module.register_full_backward_hook(lambda m, i, o: events.append((i, o)))
    x, y = flow.tensor(X, requires_grad=True), flow.tensor(X, requires_grad=True)
    a, _ = module(x, 3.0, y)
    a.sum().backward()
    ((inputs, outputs),) = events
    assert [g is None for g in inputs] == [False, True, True] and [g is None for g in outputs] == [False, True]
    np.testing.assert_allclose(x.grad.numpy(), np.full_like(X, 3))


def test_hooks_of_layers_run_from_the_last_to_the_first_in_every_pass() -> None:
    model = flow.nn.Sequential(flow.nn.Linear(3, 3), flow.nn.ReLU(inplace=True), flow.nn.Linear(3, 1))
    order: list[int] = []
    for number, layer in enumerate(model):
        layer.register_full_backward_hook(lambda m, i, o, number=number: order.append(number))
    y = model(flow.tensor(X.astype(np.float32), requires_grad=True)).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert order == [2, 1, 0, 2, 1, 0]


def test_second_gradients_pass_through_hooked_modules() -> None:
    module = flow.nn.Tanh()
    module.register_full_backward_hook(lambda m, i, o: (i[0] * 2,))
    x = flow.tensor(X, requires_grad=True)
    (first,) = flow.autograd.grad(module(x).sum(), x, create_graph=True)
    (second,) = flow.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(first.detach().numpy(), 2 * (1 - np.tanh(X) ** 2))
    np.testing.assert_allclose(second.numpy(), -8 * np.tanh(X) * (1 - np.tanh(X) ** 2) / 2)


@pytest.mark.parametrize(
    ("hook", "facts"),
    [
        (lambda m, i, o: (i[0], i[0]), ["2 gradients, but must have 1"]),
        (lambda m, i, o: i[0][:2], ["float64[2,3]", "float64[4,3]"]),
        (lambda m, i, o: 3.0, ["float64[4,3]", "float"]),
    ],
)
def test_mismatched_gradients_of_hooks_raise(hook: Any, facts: list[str]) -> None:
    module = linear()
    module.register_full_backward_hook(hook)
    with pytest.raises((flow.ShapeError, flow.ArgumentError)) as raised:
        module(flow.tensor(X, requires_grad=True)).sum().backward()
    for fact in ["full_backward_hook of Linear", "test_backward_hooks.py", *facts]:
        assert fact in str(raised.value)


def test_hooks_in_unsupported_places_raise() -> None:
    class Named(flow.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return {"y": x * 2}

    module = Named()
    module.register_full_backward_hook(lambda m, i, o: None)
    with pytest.raises(flow.JobError, match=r"Named at test_backward_hooks.py:\d+.*dict"):
        module(flow.tensor(X, requires_grad=True))
    module = linear()
    module.register_full_backward_hook(lambda m, i, o: None)
    with pytest.raises(flow.JobError, match=r"Linear at .*backward hooks.*nn\.Graph"):
        graph_of(module)(flow.tensor(X))


@with_ranks(1, 2)
def test_hooks_of_tensors_return_matching_gradients(n: int) -> None:
    here = flow.placement("cpu", range(n))
    for make in (lambda x: x, lambda x: x * 1):
        x = flow.tensor(X, placement=here, sbp=flow.sbp.split(0), requires_grad=True)
        y = make(x)
        y.retain_grad()
        y.register_hook(lambda g: flow.where(flow.gt(g, 1), g * 2, g))
        y.register_hook(lambda g: g + 1)
        (y * 3).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.full_like(X, 7))
        np.testing.assert_allclose(y.grad.numpy(), np.full_like(X, 7))
        for wrong, fact in ((lambda g: g[:2], "float64[2,3]"), (lambda g: 1.0, "float"), (lambda g: g.to_local(), "local")):
            x = flow.tensor(X, placement=here, sbp=flow.sbp.split(0), requires_grad=True)
            z = make(x)
            z.register_hook(wrong)
            with pytest.raises((flow.ShapeError, flow.ArgumentError), match="hook") as raised:
                (z * 3).sum().backward()
            assert fact in str(raised.value) and "test_backward_hooks.py" in str(raised.value)
