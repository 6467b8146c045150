"""Numbers, counters, lists and batches of classes in compiled functions: every call has the values and effects of the eager call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import JobError

CALLS = 4
#: the function, and the values that it changes
Case = tuple[Callable[[Any], Any], Callable[[], Any]]


SPACE = SimpleNamespace(log=None)


@dataclasses.dataclass
class Batch:
    x: Any
    factor: float = 2.0

    def scaled(self) -> Any:
        return self.x * self.factor


class Sample:
    def __init__(self, x: Any) -> None:
        self.parts = [x, x + 1]


def _items() -> Case:
    return lambda x: (x.sum().item(), x.argmax().item(), (x > 1).any().item(), {"mean": 2 * x.sum().item() / len(x) - 1}), lambda: None


def _operands() -> Case:
    def function(x: Any) -> Any:
        value, index = x.sum().item(), x.argmax().item()
        return value * x, x.long() * value, x**index, x.long() - index, value / (x + 1)

    return function, lambda: None


def _average() -> Case:
    space = SimpleNamespace(count=0, mean=0.0, log=[])

    def function(x: Any) -> Any:
        space.count += 1
        space.mean = (space.mean * (space.count - 1) + x.mean().item()) / space.count
        space.log.append({"mean": space.mean, "sum": x.sum(), "count": space.count})
        return space.mean

    return function, lambda: vars(space)


def _decay() -> Case:
    space = SimpleNamespace(rate=0.5)

    def function(x: Any) -> Any:
        mixed = np.random.beta(2.0, 3.0)
        y = x * space.rate + mixed * x.flip(0) + (1 - mixed) * x
        space.rate *= 0.9
        return y, mixed

    return function, lambda: space.rate


def _variables() -> Case:
    count, log = 0, [1.0]
    totals = {"n": 0}

    def function(x: Any) -> Any:
        nonlocal count
        count += 1
        totals["n"] += len(x)
        log.extend([x.max().item(), 3])
        return x + 1

    return function, lambda: (count, log, totals)


def _stored() -> Case:
    space = SimpleNamespace(best=None)

    def function(x: Any) -> Any:
        space.best = x.clone() if space.best is None else flow.maximum(space.best, x)
        return space.best.sum()

    return function, lambda: space.best


def _argument() -> Case:
    space = SimpleNamespace(x=None)

    def function(x: Any) -> Any:
        space.x = x
        return space.x * 2

    return function, lambda: space.x


def _module() -> Case:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.calls = nn.Parameter(flow.ones(4)), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            self.last = x * self.weight
            return self.last.sum()

    module = Counting()

    def function(x: Any) -> Any:
        module.zero_grad()
        loss = module(x)
        loss.backward()
        return loss.item()

    return function, lambda: (module.calls, module.last, module.weight.grad)


def _states() -> Case:
    net, average, copy = (nn.Linear(4, 1) for _ in range(3))

    def function(x: Any) -> Any:
        state = net.state_dict()
        for name, value in average.state_dict().items():
            value.copy_(0.9 * value + 0.1 * state[name])
        copy.load_state_dict(average.state_dict())
        return copy(x).detach()

    return function, lambda: [*average.parameters(), *copy.parameters()]


#: (builder, most traces)
CASES: dict[str, tuple[Callable[[], Case], int]] = {
    "items": (_items, 1),
    "items as operands": (_operands, 1),
    "averages": (_average, 2),
    "variables": (_variables, 2),
    "decay and mixture": (_decay, 2),
    "stored tensor": (_stored, 2),
    "stored argument": (_argument, 2),
    "module": (_module, 3),
    "states of modules": (_states, 1),
    "batch": (lambda: (lambda x: Batch(x.sum(), x.max().item()), lambda: None), 1),
}


def _plain(x: Any) -> Any:
    """Return nested values with arrays in place of tensors, as text."""
    if isinstance(x, flow.Tensor):
        return np.round(x.detach().numpy(), 5).tolist()
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(each) for each in x]
    if dataclasses.is_dataclass(x):
        return _plain(vars(x))
    return round(x, 5) if isinstance(x, float) else x


def _run(build: Callable[[], Case], compiled: bool) -> tuple[list[Any], int]:
    flow.manual_seed(0), np.random.seed(0)
    function, state = build()
    call = flow.compile(function, fullgraph=True) if compiled else function
    results = [_plain([call(flow.arange(4.0) + i), state()]) for i in range(CALLS)]
    return results, len(call.traces) if compiled else 0


@pytest.mark.parametrize("name", CASES)
def test_values_and_effects_equal_those_of_eager_calls(name: str) -> None:
    build, most = CASES[name]
    results, traces = _run(build, True)
    assert results == _run(build, False)[0] and traces <= most


@pytest.mark.parametrize("kind", [Batch, Sample])
def test_batches_of_a_class_are_compared_by_content(kind: type) -> None:
    step = flow.compile(lambda batch: batch.scaled() if isinstance(batch, Batch) else batch.parts[0] * 2, fullgraph=True)
    for i in range(CALLS):
        assert step(kind(flow.full((2,), float(i)))).tolist() == [2.0 * i] * 2
    assert len(step.traces) == 2
    if kind is Batch:
        assert step(Batch(flow.ones(2), 5.0)).tolist() == [5.0, 5.0]


#: (function, text of the notice)
READ: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "float": (lambda x, log: x * float(x.sum().item()), r"float\(\) at test_compile_host_values.py:\d+: the value of item\(\)"),
    "branch": (lambda x, log: x if x.sum().item() > 0 else -x, r"a comparison at test_compile_host_values.py:\d+: the value of item\(\)"),
    "text": (lambda x, log: f"{x.sum().item():.2f}", r"format at test_compile_host_values.py:\d+"),
    "list in another attribute": (lambda x, log: log.append(1) or setattr(SPACE, "log", log), "sets SPACE.log to a HostList|changes log"),
    "list": (lambda x, log: log.append(1) or x * len(log), "changes log"),
}


@pytest.mark.parametrize("name", READ)
def test_reading_a_value_of_the_run_raises_with_fullgraph(name: str) -> None:
    (function, text), log = READ[name], [1.0]
    with pytest.raises(JobError, match=text):
        flow.compile(lambda x: function(x, log), fullgraph=True)(flow.ones(2))
    assert log == [1.0]
