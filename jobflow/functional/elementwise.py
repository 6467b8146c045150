"""Functions of one tensor, element by element: powers, exponentials, angles, activations, rounding, limits."""

from __future__ import annotations

from typing import Any

from jobflow.eager.run import run
from jobflow.eager.tensor import Tensor, method
from jobflow.ops import activation, functions, scalar


@method()
def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    made: Tensor = run(activation.Relu(), x)
    return made
