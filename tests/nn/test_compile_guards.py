"""Guards of compiled functions: a changed Python value causes a new trace, or the function runs eagerly."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn
from jobflow.core import notices
from jobflow.core.errors import ArgumentError, JobError

RATE = 1.0
TABLE: dict[str, Any] = {"factor": 1.0, "nested": [1.0, {"deep": 1.0}]}
ITEMS: list[float] = [1.0, 2.0]


@dataclasses.dataclass
class Options:
    factor: float = 1.0
    unread: float = 0.0


class Plain:
    scale = 1.0

    def __init__(self) -> None:
        self.factor, self.unread, self.options = 1.0, object(), Options()

    @property
    def doubled(self) -> float:
        return 2 * self.factor

    def times(self, x: Any) -> Any:
        return x * self.factor


class Pair(NamedTuple):
    first: float
    second: float

    def doubled(self) -> float:
        return 2 * self.first


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(flow.ones(3))
        self.factor = 1.0
        self.inner = nn.Sequential(nn.ReLU(), nn.Dropout(0.0))

    def forward(self, x: Any) -> Any:
        return self.inner(x * self.weight) * self.factor


def helper(x: Any, by: float = 1.0) -> Any:
    return x * by * RATE


def closure() -> tuple[Callable[..., Any], Callable[[float], None]]:
    factor = 1.0

    def apply(x: Any) -> Any:
        return x * factor

    def change(to: float) -> None:
        nonlocal factor
        factor = to

    return apply, change


def _set_global(to: float) -> None:
    global RATE
    RATE = to


PLAIN, SLOTTED, LAYER = Plain(), Slotted(), Layer()
SPACE, ARGUMENTS, MAPPING, PAIR = SimpleNamespace(factor=1.0), argparse.Namespace(factor=1.0), collections.UserDict(factor=1.0), Pair(1.0, 2.0)
ARRAY = np.ones(3)
CLOSED, CHANGE = closure()
CONST = flow.tensor([1.0, 2.0, 3.0])


class Dotted(dict[str, float]):
    factor = 1.0


def _dotted() -> None:
    """Do nothing; cases read an attribute of this function."""


DOTTED = Dotted()


def chosen(x: Any) -> Any:
    return x + 1 if PLAIN.factor > 1.5 else x - 1


def _defaults(to: float) -> None:
    helper.__defaults__ = (to,)


#: (function, how its surroundings change to a number)
FOLLOWED: dict[str, tuple[Callable[..., Any], Callable[[float], Any]]] = {
    "global": (lambda x: x * RATE, _set_global),
    "global of a helper": (lambda x: helper(x), _set_global),
    "default of a helper": (lambda x: helper(x), _defaults),
    "dict": (lambda x: x * TABLE["factor"], lambda to: TABLE.__setitem__("factor", to)),
    "nested": (lambda x: x * TABLE["nested"][1]["deep"], lambda to: TABLE["nested"][1].__setitem__("deep", to)),
    "list": (lambda x: x * ITEMS[0], lambda to: ITEMS.__setitem__(0, to)),
    "length": (lambda x: x * len(ITEMS), lambda to: ITEMS.append(to)),
    "sum": (lambda x: x * sum(ITEMS), lambda to: ITEMS.__setitem__(1, to)),
    "closure": (CLOSED, CHANGE),
    "attribute": (lambda x: x * PLAIN.factor, lambda to: setattr(PLAIN, "factor", to)),
    "property": (lambda x: x * PLAIN.doubled, lambda to: setattr(PLAIN, "factor", to)),
    "method": (lambda x: PLAIN.times(x), lambda to: setattr(PLAIN, "factor", to)),
    "bound method": (PLAIN.times, lambda to: setattr(PLAIN, "factor", to)),
    "class attribute": (lambda x: x * PLAIN.scale, lambda to: setattr(Plain, "scale", to)),
    "attribute of an attribute": (lambda x: x * PLAIN.options.factor, lambda to: setattr(PLAIN.options, "factor", to)),
    "replaced attribute": (lambda x: x * PLAIN.options.factor, lambda to: setattr(PLAIN, "options", Options(to))),
    "getattr": (lambda x: x * getattr(PLAIN, "fac" + "tor"), lambda to: setattr(PLAIN, "factor", to)),
    "branch": (chosen, lambda to: setattr(PLAIN, "factor", to)),
    "attribute of a tensor": (lambda x: x * CONST.factor, lambda to: setattr(CONST, "factor", to)),
    "attribute of a function": (lambda x: x * _dotted.factor, lambda to: setattr(_dotted, "factor", to)),
    "attribute of a dict": (lambda x: x * DOTTED.factor, lambda to: setattr(DOTTED, "factor", to)),
    "slots": (lambda x: x * SLOTTED.factor, lambda to: setattr(SLOTTED, "factor", to)),
    "namespace": (lambda x: x * SPACE.factor, lambda to: setattr(SPACE, "factor", to)),
    "argparse.Namespace": (lambda x: x * ARGUMENTS.factor, lambda to: setattr(ARGUMENTS, "factor", to)),
    "UserDict": (lambda x: x * MAPPING["factor"], lambda to: MAPPING.__setitem__("factor", to)),
    "method of a namedtuple": (lambda x: x * PAIR.doubled(), lambda to: setattr(Pair, "doubled", lambda self: to * self.first)),
    "namedtuple": (lambda x: x * Pair(PLAIN.factor, 1.0).first, lambda to: setattr(PLAIN, "factor", to)),
    "partial": (functools.partial(lambda space, x: x * space.factor, SPACE), lambda to: setattr(SPACE, "factor", to)),
    "array": (lambda x: x * float(ARRAY[0]), lambda to: ARRAY.__setitem__(0, to)),
    "attribute of a module": (lambda x: LAYER(x), lambda to: setattr(LAYER, "factor", to)),
    "rate of a dropout": (lambda x: LAYER(x), lambda to: setattr(LAYER.inner[1], "p", to / 10)),
    "training": (lambda x: LAYER(x) * (2 if LAYER.training else 1), lambda to: LAYER.train(not LAYER.training)),
    "child of a module": (lambda x: LAYER(x), lambda to: LAYER.inner.__setitem__(0, nn.Tanh())),
    "requires_grad": (lambda x: LAYER(x), lambda to: LAYER.weight.requires_grad_(not LAYER.weight.requires_grad)),
    "parameter": (lambda x: LAYER(x), lambda to: setattr(LAYER, "weight", nn.Parameter(flow.full((3,), to)))),
    "values of a parameter": (lambda x: LAYER(x), lambda to: LAYER.weight.data.fill_(to)),
    "function": (lambda x: helper(x), lambda to: globals().__setitem__("helper", lambda x: x * to)),
    "method of a class": (lambda x: PLAIN.times(x), lambda to: setattr(Plain, "times", lambda self, x: x * to)),
    "seed": (lambda x: flow.nn.functional.dropout(x, 0.5), lambda to: flow.manual_seed(int(to))),
    "constant": (lambda x: x * flow.tensor([1.0, PLAIN.factor, 2.0]), lambda to: setattr(PLAIN, "factor", to)),
    "values of a tensor": (lambda x: x * CONST, lambda to: CONST.fill_(to)),
}


_HELPER, _TIMES, _RELU, _DOUBLED = helper, Plain.times, LAYER.inner[0], Pair.doubled


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Restore the values that the cases read."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    global RATE, helper
    helper, RATE, Plain.times, Plain.scale = _HELPER, 1.0, _TIMES, 1.0  # type: ignore[method-assign]
    helper.__defaults__ = (1.0,)
    ARGUMENTS.factor = MAPPING["factor"] = 1.0
    Pair.doubled = _DOUBLED  # type: ignore[method-assign]
    CONST.factor = _dotted.factor = DOTTED.factor = 1.0  # type: ignore[attr-defined]
    PLAIN.factor, PLAIN.options, SLOTTED.factor, SPACE.factor, LAYER.factor = 1.0, Options(), 1.0, 1.0, 1.0
    LAYER.weight, LAYER.inner[0], LAYER.inner[1].p = nn.Parameter(flow.ones(3)), _RELU, 0.0
    LAYER.train()
    TABLE.update(factor=1.0, nested=[1.0, {"deep": 1.0}])
    ITEMS[:] = [1.0, 2.0]
    ARRAY.fill(1.0)
    CONST.copy_(flow.tensor([1.0, 2.0, 3.0]))
    CHANGE(1.0)
    flow.manual_seed(0)


def _results(function: Callable[..., Any], change: Callable[[float], Any]) -> list[Any]:
    x, results = flow.tensor([1.0, 2.0, 3.0]), []
    for to in (None, None, 3.0, None, 5.0, None):
        if to is not None:
            change(to)
        results.append(function(x).numpy())
    return results


@pytest.mark.parametrize("case", FOLLOWED)
def test_a_changed_value_yields_the_eager_result(case: str) -> None:
    function, change = FOLLOWED[case]
    compiled = flow.compile(function, fullgraph=True)
    got = _results(compiled, change)
    _reset()
    for a, b in zip(got, _results(function, change), strict=True):
        np.testing.assert_array_equal(a, b)
    assert 1 <= len(compiled.traces) <= 3, compiled.traces


def test_a_change_of_an_unread_attribute_causes_no_trace() -> None:
    compiled = flow.compile(lambda x: x * PLAIN.factor + PLAIN.options.factor, fullgraph=True)
    for i in range(5):
        PLAIN.unread, PLAIN.options.unread = object(), i
        compiled(flow.ones(3))
    assert len(compiled.traces) == 1


def test_the_reason_of_a_trace_names_the_value() -> None:
    compiled = flow.compile(lambda x: x * PLAIN.options.factor)
    compiled(flow.ones(3))
    PLAIN.options.factor = 2.0
    compiled(flow.ones(3))
    compiled(flow.ones(4))
    assert compiled.traces[1:] == [
        "PLAIN.options.factor was 1.0 and is 2.0",
        "argument 0 was float32[3] local and is float32[4] local",
    ]
    model = nn.Dropout()
    compiled = flow.compile(model)
    compiled(flow.ones(3))
    model.p = 0.25
    compiled(flow.ones(3))
    assert compiled.traces[1:] == ["Dropout.p was 0.5 and is 0.25"]
    layer = nn.Linear(3, 2)
    compiled = flow.compile(layer)
    compiled(flow.ones(1, 3))
    layer.weight = nn.Parameter(flow.ones(2, 3))
    compiled(flow.ones(1, 3))
    assert compiled.traces[1:] == ["Linear['weight'] was a tensor float32[2,3] and is another tensor"]


# -------------------------------------------------------------------- values that did not exist, and values that no guard compares


class Base:
    scale = 1.0

    def times(self, x: Any) -> Any:
        return x * self.scale


class Derived(Base):
    pass


class Tripled(Base):
    scale = 3.0


class EmptySlot:
    __slots__ = ("factor",)


def _new_values() -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
    """Return pairs of a function and a change of a value that it reads, with new objects."""
    plain, full, slotted, changed, fixed = Base(), Derived(), EmptySlot(), Base(), flow.ones(3)
    full.other = 1.0  # type: ignore[attr-defined]
    ordered, local, values = {"a": 1.0, "b": 2.0}, threading.local(), [1.0]
    local.factor = 1.0

    @functools.cache
    def cached() -> float:
        return values[0]

    cached()
    return {
        "hides the attribute of its class": (lambda x: x * plain.scale, lambda: setattr(plain, "scale", 3.0)),
        "hides it beside other attributes": (lambda x: x * full.scale, lambda: setattr(full, "scale", 3.0)),
        "hides the method of its class": (lambda x: full.times(x), lambda: setattr(full, "times", lambda x: x * 3)),
        "hides the attribute of a base": (lambda x: x * Derived().scale, lambda: setattr(Derived, "scale", 3.0)),
        "slot": (lambda x: x * getattr(slotted, "factor", 1.0), lambda: setattr(slotted, "factor", 3.0)),
        "first attribute of a tensor": (lambda x: x * getattr(fixed, "factor", 1.0), lambda: setattr(fixed, "factor", 3.0)),
        "class of an object": (lambda x: changed.times(x), lambda: setattr(changed, "__class__", Tripled)),
        "order of keys": (lambda x: x * next(iter(ordered.values())), lambda: ordered.update(a=ordered.pop("a"))),
        "environment": (lambda x: x * float(os.environ.get("JOBFLOW_TEST_FACTOR", "1")), lambda: os.environ.update(JOBFLOW_TEST_FACTOR="3")),
        "thread": (lambda x: x * local.factor, lambda: setattr(local, "factor", 3.0)),
        "cache of a function": (lambda x: x * cached(), lambda: (values.append(values.pop() + 2), cached.cache_clear())),
    }


@pytest.mark.parametrize("case", _new_values())
def test_a_new_value_yields_the_eager_result(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_TEST_FACTOR", "1")
    if "scale" in vars(Derived):
        del Derived.scale
    function, change = _new_values()[case]
    compiled, x = flow.compile(function), flow.tensor([1.0, 2.0, 3.0])
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x).numpy(), function(x).numpy())
    before = function(x).numpy()
    change()
    assert (function(x).numpy() != before).any()
    np.testing.assert_array_equal(compiled(x).numpy(), function(x).numpy())


# -------------------------------------------------------------------- what is not compiled

COUNTER: list[int] = []
LOG: list[str] = []


class Counts:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return x * max(self.count, 1)


COUNTS, NUMBERS = Counts(), iter(range(100))


def _branch(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x


def _item(x: Any) -> Any:
    return x * float(x.sum())


def _appends(x: Any) -> Any:
    COUNTER.append(1)
    return x * len(COUNTER)


def _draws(x: Any) -> Any:
    return x * random.random()


def _numpy_draws(x: Any) -> Any:
    return x * float(np.random.rand())


def _clock(x: Any) -> Any:
    return x + (time.perf_counter() > 0)


def _prints(x: Any) -> Any:
    print("run")
    return x * 2


def _next(x: Any) -> Any:
    return x * next(NUMBERS)


#: (function, text of the error with fullgraph=True)
EAGER: dict[str, tuple[Callable[..., Any], str]] = {
    "branch": (_branch, "truth value"),
    "item": (_item, r"float\(\)"),
    "appends": (_appends, "COUNTER"),
    "random": (_draws, "random"),
    "numpy random": (_numpy_draws, "random"),
    "clock": (_clock, "perf_counter"),
    "print": (_prints, "print"),
    "iterator": (_next, "NUMBERS"),
    "counter": (COUNTS, "count"),
}


@pytest.mark.parametrize("case", EAGER)
def test_untraceable_functions_run_eagerly_with_one_notice(case: str, capsys: Any) -> None:
    function, _ = EAGER[case]
    notices.forget()
    COUNTER.clear()
    COUNTS.count = 0
    random.seed(0), np.random.seed(0)
    compiled = flow.compile(function)
    x = flow.tensor([1.0, -2.0, 3.0])
    got = [compiled(x).numpy() for _ in range(12)]
    lines = [line for line in capsys.readouterr().err.splitlines() if "runs eagerly" in line]
    assert len(lines) == 1, lines
    COUNTER.clear()
    COUNTS.count = 0
    random.seed(0), np.random.seed(0)
    if case != "iterator":
        for a, b in zip(got, [function(x).numpy() for _ in range(12)], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", EAGER)
def test_untraceable_functions_raise_with_fullgraph(case: str) -> None:
    function, text = EAGER[case]
    compiled = flow.compile(function, fullgraph=True)
    before = len(COUNTER)
    with pytest.raises(JobError, match=text):
        for _ in range(12):
            compiled(flow.tensor([1.0, -2.0, 3.0]))
    assert len(COUNTER) == before


def test_the_error_names_the_line_that_cannot_be_traced() -> None:
    line = _item.__code__.co_firstlineno + 1
    with pytest.raises(JobError, match=rf"test_compile_guards.py:{line}"):
        flow.compile(_item, fullgraph=True)(flow.ones(3))


def test_an_assigned_attribute_is_assigned_by_every_call() -> None:
    space = SimpleNamespace(last=None, kind="")

    def step(x: Any) -> Any:
        space.last, space.kind = x * 2, "doubled"
        return x + 1

    compiled = flow.compile(step, fullgraph=True)
    for i in range(4):
        space.kind = ""
        compiled(flow.full((2,), float(i)))
        assert space.kind == "doubled"
        np.testing.assert_array_equal(space.last.numpy(), 2.0 * np.full(2, i))


def test_arguments_that_are_not_tensors_are_compared() -> None:
    compiled = flow.compile(lambda xs, k=2.0: sum(xs) * k, fullgraph=True)
    assert [compiled([flow.ones(1)] * n, k=k).item() for n, k in ((1, 2.0), (2, 2.0), (2, 3.0), (1, 2.0))] == [2.0, 4.0, 6.0, 2.0]
    assert len(compiled.traces) == 3
    with pytest.raises(JobError, match="NumPy array"):
        flow.compile(lambda x: flow.tensor(x), fullgraph=True)(np.ones(2))
    by_object = flow.compile(lambda x, options: x * options.factor)
    assert [by_object(flow.ones(1), Options(float(i))).item() for i in range(12)] == list(range(12))
    assert "another Options object" in by_object.cache.eager


def test_a_failed_replay_leaves_the_schedule() -> None:
    table = nn.Embedding(5, 3)
    optimizer = flow.optim.SGD(table.parameters(), lr=1.0)
    schedule = flow.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    @flow.compile(fullgraph=True)
    def step(i: Any) -> Any:
        optimizer.zero_grad()
        loss = table(i).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    step(flow.tensor([0, 1]))
    with pytest.raises(ArgumentError, match="outside"):
        step(flow.tensor([0, 9]))
    assert (schedule.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.5)
    step(flow.tensor([0, 2]))
    assert (schedule.last_epoch, len(step.traces)) == (2, 1)


def test_plans_are_bounded() -> None:
    compiled = flow.compile(lambda x: x * 2)
    for n in range(1, 25):
        assert compiled(flow.ones(n)).shape == (n,)
    assert sum(map(len, compiled.cache.entries.values())) <= 16


def test_options_of_pytorch_are_accepted() -> None:
    @flow.compile(fullgraph=True, dynamic=False, backend="inductor", mode="max-autotune", options={"a": 1})
    def double(x: Any) -> Any:
        return x * 2 * math.pi

    assert double(flow.ones(1)).item() == pytest.approx(2 * math.pi)
    plain = flow.compile(_item, disable=True)
    assert plain is _item
