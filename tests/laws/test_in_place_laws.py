"""Laws of methods that write over their tensor: x.add_(y) leaves in x what x.add(y) gives, at once and in a graph.

What does not fit is refused, and x as it was.
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


def fits(before: Array, made: Array) -> bool:
    wider = {"b": 0, "i": 1, "u": 1, "f": 2}
    return before.shape == made.shape and wider[made.dtype.kind] <= wider[before.dtype.kind]


def wrong(name: str, arrays: list[Array], more: tuple[Any, ...], stepped: bool) -> list[str]:
    """What is not as the law has it, for one call."""

    def tensors() -> list[Any]:
        first, *others = arrays
        x = flow.tensor(np.repeat(first, 2, axis=-1))[..., ::2] if stepped and first.ndim else flow.tensor(first)
        return [x, *map(flow.tensor, others)]

    function = getattr(flow.Tensor, name[:-1], None) or getattr(flow.nn.functional, name[:-1])
    plain = at_once(lambda x, *y: function(x, *y, *more), tensors())
    found = []
    for way in (at_once, in_graph):
        given = tensors()

        def over(x: Any, *y: Any, way: Callable[..., Ended] = way) -> Any:
            x = x if way is at_once else x.clone()
            result = getattr(x, name)(*y, *more)
            return result, x

        end = way(over, given)
        if plain.error is None and fits(arrays[0], plain.values[0]):
            value = plain.values[0].astype(arrays[0].dtype)
            if not end.same(Ended((value, value))):
                found.append(f"{way.__name__}: {end}\n      but plain: {plain}")
        elif end.error is None or not proper(end.error, HERE):
            found.append(f"{way.__name__}: {end} in place of an error; plain: {plain}")
        elif not np.array_equal(given[0].numpy(), arrays[0], equal_nan=arrays[0].dtype.kind == "f"):
            found.append(f"{way.__name__}: refused, but x is {given[0].numpy()}")
    return found


@pytest.mark.parametrize("name", FORMS)
def test_forms_in_place_leave_what_the_plain_ones_give(name: str) -> None:
    calls: list[tuple[str, list[Array], tuple[Any, ...], bool]] = []
    if name[:-1] in BINARY:
        calls += [(label, [a, b], (), label == "float32") for label, a, b in PAIRS]
    if name in BEHIND or name[:-1] in UNARY:
        calls += [(label, [a], more, bool(lies)) for label, a, lies in ARGUMENTS for more in BEHIND.get(name, ((),))]
    found = [f"{label} {more}: {text}" for label, arrays, more, stepped in calls for text in wrong(name, arrays, more, stepped)]
    assert calls and not found, "\n".join(found)
