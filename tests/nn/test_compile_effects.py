"""Compiled functions with effects on iterators, generators, optimizers and modes return the results of eager functions."""

from __future__ import annotations

import copy
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import JobError
from jobflow.utils.data import DataLoader, TensorDataset

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
CALLS = 4


def _x() -> Any:
    return flow.ones(2, 3)


def _iterator(compiled: Compile) -> list[Any]:
    factors = iter([1.0, 2.0, 3.0, 4.0])
    function = compiled(lambda x: x * next(factors))
    return [function(_x()) for _ in range(CALLS)]


def _attribute_iterator(compiled: Compile) -> list[Any]:
    class Scaled:
        def __init__(self) -> None:
            self.count = itertools.count(1)

        def scaled(self, x: Any) -> Any:
            return x * next(self.count)

    function = compiled(Scaled().scaled)
    return [function(_x()) for _ in range(CALLS)]


def _generator_argument(compiled: Compile) -> list[Any]:
    function = compiled(lambda xs: sum(x * (i + 1) for i, x in enumerate(xs)))
    return [function(_x() for _ in range(2)) for _ in range(CALLS)]


def _loader_iterator(compiled: Compile) -> list[Any]:
    batches = iter(DataLoader(TensorDataset(flow.arange(24.0).reshape(8, 3)), batch_size=2))
    function = compiled(lambda x: x + next(batches)[0])
    return [function(_x()) for _ in range(CALLS)]


def _loader(compiled: Compile) -> list[Any]:
    loader = DataLoader(TensorDataset(flow.arange(24.0).reshape(8, 3)), batch_size=2, shuffle=True)

    def function(x: Any) -> Any:
        for i, (batch,) in enumerate(loader):
            x = x + batch * i
        return x

    function = compiled(function)
    return [function(_x()) for _ in range(CALLS)]


def _seeded(compiled: Compile) -> list[Any]:
    def function(x: Any) -> Any:
        flow.manual_seed(3)
        return x + flow.rand(3)

    function = compiled(function)
    return [function(_x()) for _ in range(CALLS)]


def _seeded_generator(compiled: Compile) -> list[Any]:
    generator = flow.Generator()

    def function(x: Any) -> Any:
        return x + flow.rand(3, generator=generator.manual_seed(3)) + flow.rand(3, generator=generator)

    function = compiled(function)
    return [function(_x()) for _ in range(CALLS)]


def _gradient_mode(compiled: Compile) -> list[Any]:
    def function(x: Any) -> Any:
        flow.set_grad_enabled(False)
        return x * 2

    function, modes = compiled(function), []
    try:
        for _ in range(CALLS):
            function(_x())
            modes.append(flow.is_grad_enabled())
            flow.set_grad_enabled(True)
    finally:
        flow.set_grad_enabled(True)
    return modes


def _new_optimizer(compiled: Compile) -> list[Any]:
    model = nn.Linear(3, 2)

    def function(x: Any) -> Any:
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    function = compiled(function)
    return [function(_x()) for _ in range(CALLS)]


def _loaded(compiled: Compile) -> list[Any]:
    model = nn.Linear(3, 2)
    saved = copy.deepcopy(model.state_dict())

    def function(x: Any) -> Any:
        y = model(x)
        model.load_state_dict(saved)
        return y

    function, results = compiled(function), []
    for _ in range(CALLS):
        with flow.no_grad():
            model.weight.mul_(2)
        results.append(function(_x()))
    return results


def _copied(compiled: Compile) -> list[Any]:
    model, results = nn.Linear(3, 2), []
    function = compiled(lambda x: copy.deepcopy(model)(x))
    for _ in range(CALLS):
        with flow.no_grad():
            model.weight.mul_(2)
        results.append(function(_x()))
    return results


def _own_generator(compiled: Compile) -> list[Any]:
    generator = flow.Generator().manual_seed(3)
    function = compiled(lambda x: x + flow.rand(3, generator=generator) + flow.randperm(3, generator=generator))
    results = [function(_x()) for _ in range(CALLS)]
    generator.manual_seed(4)
    return [*results, function(_x()), flow.rand(3, generator=generator), flow.rand(3)]


def _default_generator(compiled: Compile) -> list[Any]:
    function = compiled(lambda x: x + flow.rand(3, generator=flow.default_generator) + flow.rand(3))
    return [function(_x()) for _ in range(CALLS)] + [flow.rand(3, generator=flow.default_generator)]


def _unused_parameter(compiled: Compile) -> list[Any]:
    model, results = nn.Linear(3, 2), []
    function = compiled(lambda x: x + sum(p.requires_grad for p in model.parameters()))
    for i in range(CALLS):
        model.bias.requires_grad_(i % 2 == 0)
        results.append(function(_x()))
    return results


def _hook_of_a_result(compiled: Compile) -> list[Any]:
    model = nn.Linear(3, 2)

    def function(x: Any) -> Any:
        model.zero_grad()
        y = model(x)
        y.register_hook(lambda gradient: gradient * 3)
        y.sum().backward()
        return y

    function, results = compiled(function), []
    for _ in range(CALLS):
        results += [function(_x()), model.weight.grad]
    return results


def _small_array(compiled: Compile) -> list[Any]:
    counts = np.zeros(1, np.float32)

    def function(x: Any) -> Any:
        counts[0] += 1
        return x + flow.from_numpy(counts.copy())

    function = compiled(function)
    return [*(function(_x()) for _ in range(CALLS)), counts]


def _replayable_array_write(compiled: Compile) -> list[Any]:
    counts = np.zeros((2, 2))[:, 1]

    def function(x: Any) -> Any:
        counts[0] += 1
        return x * float(counts[0])

    function = compiled(function)
    return [*(function(_x()) for _ in range(CALLS)), counts]


def _large_values(compiled: Compile) -> list[Any]:
    counts, elements, bits = np.zeros(20_000), [0] * 5000, bytearray(1)

    def function(x: Any) -> Any:
        counts[0] += 1
        elements[0] += 1
        bits[0] += 1
        return x if x.sum() > 0 else -x

    function = compiled(function)
    return [*(function(_x()) for _ in range(CALLS)), counts[0], elements[0], bits[0]]


def _saved(compiled: Compile) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"

        def function(x: Any) -> Any:
            flow.save({"size": x.shape[0]}, path)
            return x * 2

        function, sizes = compiled(function), []
        for _ in range(CALLS):
            function(_x())
            sizes.append(flow.load(path)["size"])
            shutil.rmtree(path)
    return sizes


def _caught_error(compiled: Compile) -> list[Any]:
    def function(x: Any) -> Any:
        try:
            flow.manual_seed(3)
        except JobError:
            return x
        return x * 2

    function = compiled(function)
    return [function(_x()) for _ in range(CALLS)]


#: (case, text of the error with fullgraph=True, or None if the function is replayed)
CASES: dict[str, tuple[Callable[[Compile], list[Any]], str | None]] = {
    "iterator": (_iterator, "factors"),
    "iterator in an attribute": (_attribute_iterator, "count"),
    "generator argument": (_generator_argument, "argument 0"),
    "iterator of a loader": (_loader_iterator, "batches"),
    "loader": (_loader, "DataLoader"),
    "manual_seed": (_seeded, "manual_seed"),
    "manual_seed of a generator": (_seeded_generator, "manual_seed"),
    "gradient mode": (_gradient_mode, "gradient mode"),
    "new optimizer": (_new_optimizer, "optim.SGD"),
    "load_state_dict": (_loaded, None),
    "deepcopy": (_copied, "deepcopy"),
    "write to a small array": (_small_array, "counts|not recorded"),
    "write to an array alone": (_replayable_array_write, "writes to the NumPy array counts"),
    "writes to large containers": (_large_values, "cannot be compared"),
    "save": (_saved, "files cannot be written"),
    "error that the function catches": (_caught_error, "manual_seed"),
    "own generator": (_own_generator, None),
    "default generator": (_default_generator, None),
    "requires_grad of an unused parameter": (_unused_parameter, None),
    "hook of a result": (_hook_of_a_result, None),
}


def _results(case: Callable[[Compile], list[Any]], compiled: Compile) -> list[Any]:
    flow.manual_seed(0)
    return [x.detach().numpy() if isinstance(x, flow.Tensor) else x for x in case(compiled)]


@pytest.mark.parametrize("name", CASES)
def test_effects_equal_the_effects_of_the_eager_function(name: str) -> None:
    case, _ = CASES[name]
    for a, b in zip(_results(case, flow.compile), _results(case, lambda function: function), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_untraceable_effects_raise_with_fullgraph(name: str) -> None:
    case, text = CASES[name]
    if text is None:
        _results(case, flow.compile(fullgraph=True))
        return
    with pytest.raises(JobError, match=text):
        _results(case, flow.compile(fullgraph=True))


def test_the_memory_order_of_arguments_is_compared() -> None:
    function = flow.compile(lambda x: x * (2.0 if x.is_contiguous() and x.t().t().is_contiguous() else 3.0), fullgraph=True)
    x = flow.arange(6.0).reshape(2, 3)
    for argument, factor in [(x, 2.0), (x.t(), 3.0), (x, 2.0), (x[:, ::2], 3.0), (x.t().contiguous(), 2.0)]:
        assert np.array_equal(function(argument).numpy(), argument.numpy() * factor)
