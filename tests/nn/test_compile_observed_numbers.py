"""Compiled functions equal eager functions where Python code examines a number, catches an error, or replaces `data`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jobflow as flow


def dictionary_key(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        state.count += 1
        return x * {3: 10.0}.get(state.count, 1.0)

    return step


def item_as_key(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        return x * {3.0: 10.0}.get(x.sum().item(), 1.0)

    return step


def set_member(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        state.count += 1
        return x * 2 if state.count in {3, 5} else x

    return step


def type_of_item(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        v = x.sum().item()
        return x if isinstance(v, float) else x * 100

    return step


def type_of_counter(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        state.count += 1
        return x if isinstance(state.count, int) else x * 100

    return step


def match_of_type(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        v = x.sum().item()
        match v:
            case float():
                return x
        return x * 5

    return step


def text_in_a_list(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        v = x.sum().item()
        return f"{[v]}"

    return step


def beyond_int8(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        state.count += 20
        return x.to(flow.int8) + state.count * 2

    return step


def small_numbers_of_float16(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        state.scale = state.scale / 2
        return (x.half() * state.scale).float()

    return step


def counter_of_int64(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        state.count = (state.count + 1) * 2**20
        return x.long() + state.count

    return step


def division_by_zero(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        state.count += 1
        return x * (1.0 / (state.count - 3))

    return step


def overridden_setitem(state: SimpleNamespace) -> Callable[..., Any]:
    class Doubled(dict):
        def __setitem__(self, k, v):
            super().__setitem__(k, v * 2)

    d = Doubled()

    def step(x: Any) -> Any:
        d["a"] = x.sum().item()
        return x * 1, dict(d)

    return step


def caught_float(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        try:
            v = float(x.sum())
        except RuntimeError:
            v = 0.0
        return x * v

    return step


def suppressed_branch(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            if x.sum() > 1:
                return x * 3
        return x * 7

    return step


def caught_sample(state: SimpleNamespace) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        v = 0.0
        try:
            v = np.random.rand(3)[0]
        except RuntimeError:
            v = -1.0
        return x * (1.0 if v >= 0 else 5.0)

    return step


def detached_before_data(state: SimpleNamespace) -> Callable[..., Any]:
    w = flow.ones(1)

    def step(x: Any) -> Any:
        old = w.detach()
        w.data = w * 2
        return old * 1

    return step


def data_of_itself(state: SimpleNamespace) -> Callable[..., Any]:
    w = flow.ones(1)

    def step(x: Any) -> Any:
        w.data = w.data * 2
        return w * x

    return step


def outer_view_before_data(state: SimpleNamespace) -> Callable[..., Any]:
    w = flow.ones(2)
    v = w[:1]

    def step(x: Any) -> Any:
        w.data = w * 2
        return v * 1

    return step


def data_before_data(state: SimpleNamespace) -> Callable[..., Any]:
    w = flow.ones(1)

    def step(x: Any) -> Any:
        old = w.data
        w.data = w * 2
        return old

    return step


CASES = [
    dictionary_key,
    item_as_key,
    set_member,
    type_of_item,
    type_of_counter,
    match_of_type,
    text_in_a_list,
    beyond_int8,
    small_numbers_of_float16,
    counter_of_int64,
    division_by_zero,
    overridden_setitem,
    caught_float,
    suppressed_branch,
    caught_sample,
    detached_before_data,
    data_of_itself,
    outer_view_before_data,
    data_before_data,
]


def results(make: Callable[[SimpleNamespace], Callable[..., Any]], compiled: bool) -> list[Any]:
    state = SimpleNamespace(count=0, scale=1e-8)
    step = flow.compile(make(state)) if compiled else make(state)
    collected: list[Any] = []
    for i in range(5):
        try:
            result = step(flow.tensor([float(i)]))
            collected.append(result.tolist() if isinstance(result, flow.Tensor) else str(result))
        except (ArithmeticError, flow.JobflowError) as error:
            collected.append(type(error))
    return [*collected, state.count, state.scale]


@pytest.mark.parametrize("make", CASES)
def test_compiled_functions_equal_eager_functions(make: Callable[[SimpleNamespace], Callable[..., Any]]) -> None:
    assert results(make, compiled=True) == results(make, compiled=False)


def test_every_backward_runs_the_code_of_a_user_defined_gradient() -> None:
    calls: list[int] = []

    class Doubled(flow.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            calls.append(1)
            return dy * len(calls)

    step = flow.compile(lambda x: Doubled.apply(x))
    gradients = []
    for _ in range(3):
        x = flow.ones(1, requires_grad=True)
        step(x).sum().backward()
        gradients.append(x.grad.item())
    assert gradients == [1, 2, 3]
