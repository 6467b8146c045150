"""Cases as nn.Graph: outputs, buffers, and gradients of parameters by a step of SGD equal those of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nn_cases import CASES, Case, _Called
from ranks import on_ranks
from surroundings import F, Lay, lain, nn, reference

from jobflow.core.layout import B, Layout, Placement, S
from jobflow.nn.graph import Graph
from jobflow.nn.modules.module import Module
from jobflow.optim import SGD


class Once(Graph):
    """A case as a graph, with a step if there are parameters."""

    def __init__(self, call: Any, module: Any, weighed: list[Any] | None) -> None:
        super().__init__()
        self.call, self.weighed = call, weighed
        if module is not None:
            self.module = module
        if weighed is not None:
            self.add_optimizer(SGD(list(module.parameters()), lr=1.0))

    def build(self, *tensors: Any) -> Any:
        outputs = self.call(*tensors)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if self.weighed is not None:
            total = sum(((y * w).sum() for y, w in zip(outputs, self.weighed, strict=True)), start=0.0)
            total.backward()
        return outputs


def run_in_graph(case: Case, lay: Lay, file: str = "references.npz") -> dict[str, np.ndarray[Any, Any]]:
    """Return outputs, gradients of parameters and buffers by the names of `record.py`."""
    called_module = case.make(nn, F)
    module = called_module.module if isinstance(called_module, _Called) else called_module if isinstance(called_module, Module) else None
    before: dict[str, Any] = {}
    whole = None if lay is None else Layout(lay(0, 0).placement, (B,))
    if module is not None:
        module.double().train(case.train)
        for part in (*module.parameters(), *module.buffers()):
            part.layout = whole
        for name, p in module.named_parameters():
            before[name] = p.array[...] = case.parameter(name, tuple(p.shape))
    tensors = [lain(array, None if lay is None else lay(i, array.ndim)) for i, array in enumerate(case.arrays())]
    expected = reference(case, file)
    output_names = [name for name in expected if name.startswith("out/")]
    trains = bool(before) and any(name.startswith("parameter/") for name in expected)
    weighed = [lain(case.weights(i, expected[name].shape), whole) for i, name in enumerate(output_names)] if trains else None
    outputs = Once(called_module, module, weighed)(*tensors)
    results = {f"out/{i}": y.numpy() for i, y in enumerate(outputs)}
    if module is not None:
        results |= {f"parameter/{name}": before[name] - p.detach().numpy() for name, p in module.named_parameters() if trains}
        results |= {f"buffer/{name}": x.numpy() for name, x in module.named_buffers()}
    return results


#: the mean of all batches is a number of Python
NUMBERS = {"batch_norm2d_mean"}


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in NUMBERS], ids=lambda case: case.name)
def test_cases_in_graphs_equal_pytorch(case: Case, n: int) -> None:
    line = Placement("cpu", (0, 1))
    lay: Lay = None if n == 1 else lambda i, ndim: Layout(line, (S(0) if ndim else B,))
    expected = {name: x for name, x in reference(case).items() if not name.startswith("input/")}
    for results in on_ranks(n, lambda rank: run_in_graph(case, lay)):
        assert results.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-7, atol=1e-8, err_msg=name)
