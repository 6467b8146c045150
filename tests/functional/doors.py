"""A function of tensors in each way of running it: at once and in a graph, on local tensors and on global ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jobflow as flow


class OfFunction(flow.nn.Graph):  # type: ignore[misc]
    """A graph of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def ways(function: Callable[..., Any], *arrays: Any) -> list[tuple[str, Callable[[], Any]]]:
    """The name of each way, and what runs the function so."""
    here = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
    local, spread = ([flow.tensor(np.asarray(a), **where) for a in arrays] for where in ({}, here))
    return [
        ("at once", lambda: function(*local)),
        ("at once, global", lambda: function(*spread)),
        ("in a graph", lambda: OfFunction(function)(*local)),
        ("in a graph, global", lambda: OfFunction(function)(*spread)),
    ]


def flat(made: Any) -> list[Any]:
    """The tensors in tuples of tuples of tensors."""
    return [made] if isinstance(made, flow.Tensor) else [each for part in made for each in flat(part)]


def gives(function: Callable[..., Any], arrays: Sequence[Any], *expected: Any, dtype: Any = None, rtol: float = 0.0) -> None:
    """The function of these arrays gives these values, every way; to the last bit unless `rtol` says otherwise."""
    for name, run in ways(function, *arrays):
        made = flat(run())
        assert len(made) == len(expected), name
        for tensor, value in zip(made, expected, strict=True):
            assert tuple(tensor.shape) == np.shape(value), name
            assert dtype is None or tensor.dtype is dtype, f"{name}: {tensor.dtype}"
            np.testing.assert_allclose(tensor.numpy().astype(np.float64 if rtol else tensor.numpy().dtype), value, rtol=rtol, err_msg=name)


def refuses(function: Callable[..., Any], arrays: Sequence[Any], error: type[Exception], *facts: str) -> None:
    """Every way ends with this error, which names the facts."""
    for name, run in ways(function, *arrays):
        with pytest.raises(error) as caught:
            run()
        for fact in facts:
            assert fact in str(caught.value), f"{name}: {fact!r} is not in {caught.value}"
