"""Laws of in-place methods: x.add_(y) stores x.add(y) in x, eagerly and in a graph.

Invalid arguments raise an error and leave x unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_cases import ARGUMENTS, BEHIND, BINARY, PAIRS, UNARY
from running import Array, Ended, at_once, in_graph, proper

import jobflow as flow

HERE = Path(__file__).name
FORMS = sorted(
    name
    for name in dir(flow.Tensor)
    if name.endswith("_") and not name.startswith("_") and (name[:-1] in UNARY or name[:-1] in BINARY or name in BEHIND) and name != "detach_"
)


def fits(before: Array, result: Array) -> bool:
    wider = {"b": 0, "i": 1, "u": 1, "f": 2}
    return before.shape == result.shape and wider[result.dtype.kind] <= wider[before.dtype.kind]


def wrong(name: str, arrays: list[Array], more: tuple[Any, ...], stepped: bool) -> list[str]:
    """Return the violations of the laws by one call."""

    def tensors() -> list[Any]:
        first, *others = arrays
        x = flow.tensor(np.repeat(first, 2, axis=-1))[..., ::2] if stepped and first.ndim else flow.tensor(first)
        return [x, *map(flow.tensor, others)]

    function = getattr(flow.Tensor, name[:-1], None) or getattr(flow.nn.functional, name[:-1])
    plain = at_once(lambda x, *y: function(x, *y, *more), tensors())
    violations = []
    for way in (at_once, in_graph):
        operands = tensors()

        def over(x: Any, *y: Any, way: Callable[..., Ended] = way) -> Any:
            x = x if way is at_once else x.clone()
            result = getattr(x, name)(*y, *more)
            return result, x

        end = way(over, operands)
        if plain.error is None and fits(arrays[0], plain.values[0]):
            value = plain.values[0].astype(arrays[0].dtype)
            if not end.same(Ended((value, value))):
                violations.append(f"{way.__name__}: {end}\n      but plain: {plain}")
        elif end.error is None or not proper(end.error, HERE):
            violations.append(f"{way.__name__}: {end} in place of an error; plain: {plain}")
        elif not np.array_equal(operands[0].numpy(), arrays[0], equal_nan=arrays[0].dtype.kind == "f"):
            violations.append(f"{way.__name__}: refused, but x is {operands[0].numpy()}")
    return violations


@pytest.mark.parametrize("name", FORMS)
def test_in_place_methods_store_the_plain_results(name: str) -> None:
    calls: list[tuple[str, list[Array], tuple[Any, ...], bool]] = []
    if name[:-1] in BINARY:
        calls += [(label, [a, b], (), label == "float32") for label, a, b in PAIRS]
    if name in BEHIND or name[:-1] in UNARY:
        calls += [(label, [a], more, bool(lies)) for label, a, lies in ARGUMENTS for more in BEHIND.get(name, ((),))]
    violations = [f"{label} {more}: {text}" for label, arrays, more, stepped in calls for text in wrong(name, arrays, more, stepped)]
    assert calls and not violations, "\n".join(violations)
