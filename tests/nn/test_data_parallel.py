"""DistributedDataParallel: the mean of the ranks' gradients, and modules that stay equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core.errors import JobError
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import type_of
from jobflow.eager.backward import backward
from jobflow.eager.run import run
from jobflow.eager.tensor import Tensor
from jobflow.nn.parallel import DistributedDataParallel
from jobflow.ops.matmul import MatMul
from jobflow.ops.reduce import ReduceSum


def tensor(array: Any, trained: bool = False) -> Tensor:
    made = Tensor(type_of(np.asarray(array)), None, np.array(array))
    made.requires_grad = trained
    return made


class Layers:
    """What DistributedDataParallel asks of a module."""

    training = True

    def __init__(self, widths: list[int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = [tensor(rng.standard_normal((a, b)), True) for a, b in zip(widths, widths[1:], strict=False)]
        self.unused = tensor(np.ones(3), True)
        self.buffer = tensor(np.full(2, float(seed)))
        self.before: Any = None

    def parameters(self) -> Iterator[Tensor]:
        return iter([*self.weights, self.unused])

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((f"weight{i}", p) for i, p in enumerate(self.parameters()))

    def buffers(self) -> Iterator[Tensor]:
        return iter([self.buffer])

    def register_forward_pre_hook(self, hook: Any) -> None:
        self.before = hook

    def __call__(self, x: Tensor) -> Tensor:
        if self.before is not None:
            self.before(self, (x,))
        for w in self.weights:
            x = run(MatMul(), x, w)
        return run(ReduceSum((0, 1)), x)


@pytest.mark.parametrize("bucket_size", [1, 2, 10])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_are_means(n: int, bucket_size: int) -> None:
    widths = [4, 5, 6, 2]

    def program(rank: int) -> Any:
        model = DistributedDataParallel(Layers(widths, seed=rank), bucket_size=bucket_size)
        data = np.random.default_rng(100 + rank).standard_normal((3, 4))
        for _ in range(2):  # the second pass adds to the first
            model.buffer.array += rank
            backward([model(tensor(data))], [None])
        return [p.array for p in model.parameters()], [None if p.grad is None else p.grad.array for p in model.parameters()], model.buffer.array, data

    found = on_ranks(n, program)
    expected = [np.zeros((a, b)) for a, b in zip(widths, widths[1:], strict=False)]
    for weights, _, _, data in found:
        for w, of_first in zip(weights, found[0][0], strict=True):
            np.testing.assert_array_equal(w, of_first)
        inputs = [data]
        for w in weights[:-1]:
            inputs.append(inputs[-1] @ w)
        back = np.ones((3, 2))
        for i in reversed(range(3)):
            expected[i] += 2 * inputs[i].T @ back / n
            back = back @ weights[i].T
    for _, gradients, buffer, _ in found:
        for gradient, wanted in zip(gradients, expected, strict=False):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-12)
        if n > 1:
            np.testing.assert_array_equal(gradients[-1], np.zeros(3))
            np.testing.assert_array_equal(buffer, found[0][2])


@with_ranks(2)
def test_global_modules_need_it_not() -> None:
    model = Layers([2, 2], 0)
    model.weights[0].layout = Layout(Placement("cpu", (0, 1)), (B,))
    with pytest.raises(JobError, match="omit DistributedDataParallel"):
        DistributedDataParallel(model)
