"""Runs of a function of tensors in each mode: eager and in a graph, on local and on global tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from of_function import OfFunction

import jobflow as flow


def modes(function: Callable[..., Any], *arrays: Any) -> list[tuple[str, Callable[[], Any]]]:
    """Return each mode's name and the function that runs in this mode."""
    here = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
    local, spread = ([flow.tensor(np.asarray(a), **where) for a in arrays] for where in ({}, here))
    return [
        ("at once", lambda: function(*local)),
        ("at once, global", lambda: function(*spread)),
        ("in a graph", lambda: OfFunction(function)(*local)),
        ("in a graph, global", lambda: OfFunction(function)(*spread)),
    ]


def flat(output: Any) -> list[Any]:
    """Return the tensors of nested tuples."""
    return [output] if isinstance(output, flow.Tensor) else [each for part in output for each in flat(part)]


def gives(function: Callable[..., Any], arrays: Sequence[Any], *expected: Any, dtype: Any = None, rtol: float = 0.0) -> None:
    """Assert that the function returns these values in every mode, bit by bit or within `rtol`."""
    for name, run in modes(function, *arrays):
        output = flat(run())
        assert len(output) == len(expected), name
        for tensor, value in zip(output, expected, strict=True):
            assert tuple(tensor.shape) == np.shape(value), name
            assert dtype is None or tensor.dtype is dtype, f"{name}: {tensor.dtype}"
            np.testing.assert_allclose(tensor.numpy().astype(np.float64 if rtol else tensor.numpy().dtype), value, rtol=rtol, err_msg=name)


def refuses(function: Callable[..., Any], arrays: Sequence[Any], error: type[Exception], *facts: str) -> None:
    """Assert that every mode raises this error, with these facts in the message."""
    for name, run in modes(function, *arrays):
        with pytest.raises(error) as caught:
            run()
        for fact in facts:
            assert fact in str(caught.value), f"{name}: {fact!r} is not in {caught.value}"
