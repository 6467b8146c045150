"""Compiled functions whose tensors share memory, or whose gradients and optimizer state are replaced, equal eager functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import jobflow as flow
from jobflow import nn
from jobflow.program import program
from jobflow.runtime.device.device import OutOfMemory

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def _absent_gradient(compiled: Compile) -> list[float]:
    model = nn.Linear(1, 1, bias=False)

    def function(x: Any) -> Any:
        model.zero_grad()
        return model(x).sum()

    function, results = compiled(function), []
    for _ in range(3):
        function(flow.ones(1, 1)).backward()
        results.append(model.weight.grad.item())
    return results


def _gradients_by_turns(compiled: Compile) -> list[Any]:
    a, b = nn.Parameter(flow.ones(1)), nn.Parameter(flow.ones(1))
    optimizer = flow.optim.SGD([a, b], lr=0.1)

    def step(x: Any, first: bool) -> Any:
        optimizer.zero_grad()
        ((a if first else b) * x).sum().backward()
        optimizer.step()

    step, results = compiled(step), []
    for i in range(4):
        step(flow.ones(1), i % 2 == 0)
        results += [a.item(), b.item(), a.grad is None, b.grad is None]
    return results


def _required(compiled: Compile) -> list[bool]:
    p = nn.Parameter(flow.ones(1), requires_grad=False)
    function, results = compiled(lambda x: (p.requires_grad_(False), x * 2)[1]), []
    for _ in range(3):
        function(flow.ones(1))
        results.append(p.requires_grad)
        p.requires_grad_()
    return results


def _argument_read_elsewhere(compiled: Compile, writes: str) -> list[float]:
    w = flow.ones(1)

    def step(a: Any) -> Any:
        if "a" in writes:
            a.add_(1)
        if "w" in writes:
            w.add_(1)
        return a + w

    step, results = compiled(step), []
    for argument in (flow.zeros(1), w, flow.zeros(1), w.detach(), w[:], flow.from_numpy(w.numpy()), w):
        results += [step(argument).item(), w.item()]
        w.fill_(10.0)
    return results


def _replaced_state(compiled: Compile) -> list[float]:
    p = nn.Parameter(flow.zeros(1))
    optimizer, results = flow.optim.SGD([p], lr=1.0, momentum=0.5), []

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        (p * x).sum().backward()
        optimizer.step()

    step = compiled(step)
    for i in range(4):
        if i == 2:
            optimizer.state[p]["momentum_buffer"] = flow.full((1,), 100.0)
        step(flow.ones(1))
        results += [p.item(), optimizer.state[p]["momentum_buffer"].item()]
    return results


def _view(compiled: Compile, view: Callable[[Any], Any]) -> list[float]:
    b, results = flow.zeros(2, 2), []
    v = view(b)
    function = compiled(lambda x: x + v.sum())
    for i in range(3):
        results += [function(flow.zeros(1)).item(), v.sum().item()]
        b.fill_(i + 1.0)
    return results


def _view_in_place(compiled: Compile) -> list[Any]:
    b, results = flow.zeros(2, 2), []
    v = b.data.t()
    step = compiled(lambda x: v.add_(x).sum())
    for _ in range(2):
        results += [step(flow.ones(1)).item(), b.tolist()]
    return results


def _earlier_views(compiled: Compile, views: Callable[[Any], Any]) -> list[Any]:
    flow.manual_seed(0)
    model = nn.Linear(2, 2)
    shown, optimizer = views(model), flow.optim.SGD(model.parameters(), lr=0.25)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step, results = compiled(step), []
    for _ in range(2):
        step(flow.ones(1, 2))
        results += [x.tolist() for x in (*shown, *model.parameters())]
    return results


def _flat(model: Any) -> Any:
    flat = flow.arange(6.0)
    model.weight.data, model.bias.data = flat[:4].view(2, 2), flat[4:]
    return [flat]


def _joined_later(compiled: Compile) -> list[float]:
    p, q, e = flow.zeros(1), flow.zeros(1), flow.zeros(1)
    step = compiled(lambda x: (p.add_(x), q * 1)[1])
    results = [step(flow.ones(1)).item()]
    old, p.data = p.data, e
    results += [step(flow.ones(1)).item(), old.item(), e.item()]
    q.data = p.data
    return results + [step(flow.ones(1)).item() for _ in range(2)]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "t": lambda b: b.t(),
    "column": lambda b: b[:, 1],
    "rows": lambda b: b[::2],
    "diagonal": lambda b: b.diagonal(),
    "narrow": lambda b: b.narrow(1, 0, 1),
    "expand": lambda b: b[:1].expand(3, 2),
    "from_numpy": lambda b: flow.from_numpy(b.numpy().T),
}

CASES: dict[str, Callable[[Compile], list[Any]]] = {
    "grad is None before the trace": _absent_gradient,
    "gradients by turns": _gradients_by_turns,
    "requires_grad is False before the trace": _required,
    "argument that is read elsewhere": lambda compiled: _argument_read_elsewhere(compiled, ""),
    "overwritten argument that is read elsewhere": lambda compiled: _argument_read_elsewhere(compiled, "a"),
    "argument that is overwritten elsewhere": lambda compiled: _argument_read_elsewhere(compiled, "w"),
    "replaced state of an optimizer": _replaced_state,
    **{f"view {name}": functools.partial(_view, view=view) for name, view in VIEWS.items()},
    "overwritten view": _view_in_place,
    "earlier detach": lambda compiled: _earlier_views(compiled, lambda model: [model.weight.detach()[0], model.bias.detach()]),
    "earlier state_dict": lambda compiled: _earlier_views(compiled, lambda model: [*model.state_dict().values()]),
    "earlier numpy": lambda compiled: _earlier_views(compiled, lambda model: [model.weight.detach().numpy().T]),
    "parts of a flat tensor": lambda compiled: _earlier_views(compiled, _flat),
    "data of another tensor": _joined_later,
}


@pytest.mark.parametrize("case", CASES)
def test_results_equal_the_results_of_the_eager_function(case: str) -> None:
    assert CASES[case](flow.compile) == CASES[case](lambda function: function)


def test_graph_that_did_not_fit_keeps_the_parameters_for_the_next_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)

    class Trained(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.0))

        def build(self, x: Any) -> Any:
            loss = self.model(x).sum()
            loss.backward()
            return loss

    graph = Trained()

    def too_large(*_: Any) -> None:
        raise OutOfMemory("too large")

    with monkeypatch.context() as patch:
        patch.setattr(program, "Executor", too_large)
        with pytest.raises(OutOfMemory, match="too large"):
            graph(flow.ones(4, 2))
    assert graph(flow.ones(1, 2)).item() == 6.0
    assert model.weight.tolist() == [[3.0, 3.0]]
