"""How an optimizer steps: an op that writes over a parameter and the optimizer's own tensors; the same for tensors at once and for graphs."""

from __future__ import annotations

from dataclasses import dataclass

from jobflow.ops.steps import Step


@dataclass(frozen=True)
class StepRule:
    """`op` takes (parameter, *slots, gradient, rate float32[1], step int64[1]).

    A slot, which has a name and the number it begins at, is of the parameter's type and layout.
    """

    op: Step
    slots: tuple[tuple[str, float], ...] = ()
