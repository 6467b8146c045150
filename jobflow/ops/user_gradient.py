"""Gradients that user code defines while a program is traced.

`UserGradient` marks values whose gradient the program computes in another way.  The trace records this computation once, from placeholders of the
output gradients (`OutputGradient`).  Differentiation repeats its nodes with the gradients in place of the placeholders.  Afterwards `simplify`
removes both operations, so plans contain neither of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from jobflow.core.layout import Rule
from jobflow.core.types import Array, TensorType, Xp
from jobflow.ops.op import Op, Sample, sample
from jobflow.ops.scalar import FillLike

T = TypeVar("T")


class OutputGradient(FillLike):
    """Placeholder for the gradient of x in a user-defined gradient."""

    precision = "single"
    value: float = 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), [[1.0, 2.0], [3.0, 4.0]])


class UserGradient(Op):
    """Identity of its results, with a user-defined gradient of `count` arguments.

    The inputs are the arguments, the results, one placeholder per result, and one gradient per argument.
    """

    count: int

    def arguments(self, inputs: Sequence[T]) -> Sequence[T]:
        """Return the inputs whose gradients the user defines."""
        return inputs[: self.count]

    def results(self, inputs: Sequence[T]) -> Sequence[T]:
        """Return the inputs that are the outputs of this operation."""
        return inputs[self.count : len(inputs) // 2]

    def placeholders(self, inputs: Sequence[T]) -> Sequence[T]:
        """Return the placeholders for the gradients of the results."""
        return inputs[len(inputs) // 2 : len(inputs) - self.count]

    def gradients(self, inputs: Sequence[T]) -> Sequence[T]:
        """Return the gradients of the arguments, computed from the placeholders."""
        return inputs[len(inputs) - self.count :]

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return tuple(self.results(inputs))

    def rule(self, *inputs: TensorType) -> Rule:
        words = ["1" * x.ndim for x in inputs]
        return Rule(f"{','.join(words)}->{','.join(self.results(words))}")

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        outputs = (len(arrays) - 2 * self.count) // 3
        for result, output in zip(self.results(arrays[:-outputs]), arrays[-outputs:], strict=True):
            output[...] = result

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, y = [[1.0, 2.0, 3.0]], [[1.0], [4.0]]
        yield sample(cls(1), x, y, [[0.0], [0.0]], x, differentiable=())
