"""Filters of named values select by name, type, predicate, and combinations of these."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import filters
from jobflow.filters import AllOf, AnyOf, Not

VALUES = {"a.weight": np.ones((2, 3)), "a.bias": np.ones(3), "b.weight": np.float32(1), "norm.weight": np.ones(3)}


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        ("*.bias", ["a.bias"]),
        ("*", [*VALUES]),
        (re.compile("^a|^b"), ["a.weight", "a.bias", "b.weight"]),
        (np.floating, ["b.weight"]),
        (lambda name, value: value.ndim == 2, ["a.weight"]),
        (["*.bias", "norm.*"], ["a.bias", "norm.weight"]),
        ([], []),
        (AnyOf(("b.*", np.floating)), ["b.weight"]),
        (AllOf(("*.weight", Not("norm.*"), np.ndarray)), ["a.weight"]),
        (Not(["*.bias", AllOf(("*.weight", "a.*"))]), ["b.weight", "norm.weight"]),
    ],
)
def test_selection(filter: Any, names: list[str]) -> None:
    assert list(filters.selected(filter, VALUES)) == names


@pytest.mark.parametrize("filter", [3, None, ["*.bias", 3], Not(3)])
def test_selection_raises_for_other_objects(filter: Any) -> None:
    with pytest.raises(flow.errors.ArgumentError, match=r"filter at .*test_filters\.py:\d+: .* got (3|None)"):
        filters.selected(filter, {"a.weight": VALUES["a.weight"]})


def test_unmatched_names_the_first_filter_without_a_value() -> None:
    assert filters.unmatched(["*", "a.*", "c.*", "d"], VALUES) == "c.*"
    assert filters.unmatched("*", {}) is None and filters.unmatched(Not("*"), VALUES) == "Not(filter='*')"


def test_combinations_print_compare_and_pickle() -> None:
    combined = AllOf(("a.*", Not("*.bias")))
    assert pickle.loads(pickle.dumps(combined)) == combined and repr(combined) == "AllOf(filters=('a.*', Not(filter='*.bias')))"


def test_freezing_and_groups_of_a_module() -> None:
    net = flow.nn.Sequential(flow.nn.Linear(2, 3), flow.nn.LayerNorm(3))
    named = dict(net.named_parameters())
    for parameter in filters.selected("0.*", named).values():
        parameter.requires_grad_(False)
    trained = filters.selected(lambda name, value: value.requires_grad, named)
    assert list(trained) == ["1.weight", "1.bias"]
    groups = [{"params": [*filters.selected("*.bias", trained).values()], "weight_decay": 0.0}]
    groups.append({"params": [*filters.selected(Not("*.bias"), trained).values()]})
    assert [len(group["params"]) for group in flow.optim.SGD(groups, lr=0.1).param_groups] == [1, 1]


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: AllOf("ab"), "AllOf at .*: filters must be a list of filters; got 'ab'"),  # type: ignore[arg-type]
        (lambda: AnyOf(3), "AnyOf at .*: filters must be a list of filters; got 3"),  # type: ignore[arg-type]
        (lambda: iter(["*.bias"]), "can be read only once; pass a list of filters"),
        (lambda: lambda name: True, "must accept a name and a value"),
    ],
)
def test_ambiguous_filters_raise(create: Callable[[], Any], message: str) -> None:
    with pytest.raises(flow.errors.ArgumentError, match=message):
        filters.selected(create(), {"a.bias": 1, "b.bias": 2})


def test_generators_of_combined_filters_are_read_once() -> None:
    assert filters.selected(AnyOf(name for name in ("a", "b")), {"a": 1, "b": 2, "c": 3}) == {"a": 1, "b": 2}  # type: ignore[arg-type]
