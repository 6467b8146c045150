"""`nn.Module` in the bodies of jobs: equal results on one device, on threads, and on two client ranks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import module_constants  # noqa: F401 - which has cases too
import module_mistakes  # noqa: F401 - which has cases too
import numpy as np
import pytest
from module_cases import CASES
from processes import run

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope

PROGRAMS = Path(__file__).with_name("programs")


@cache
def results_of(case: str, devices: int) -> dict[str, Any]:
    """Return the results of a case in one process."""
    with scope.using(root=scope.Root()), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODULE_DEVICES", str(devices))
        flow.config.cpu_device_num(devices)
        results = CASES[case]()
        flow.clear_default_session()
    return results


def compare(result: Any, expected: Any, name: str) -> None:
    if isinstance(expected, str):
        assert str(result) == expected, name
    else:
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("case", list(CASES))
def test_one_and_two_devices(case: str) -> None:
    one, two = results_of(case, 1), results_of(case, 2)
    assert one.keys() == two.keys()
    for name, expected in one.items():
        compare(two[name], expected, name)


@pytest.mark.mpi
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.full)])
def test_two_clients(every: int, tmp_path: Path) -> None:
    ended = run(PROGRAMS / "module_clients.py", str(tmp_path), str(every), ranks=2)
    assert ended.code == 0, ended.err
    for rank in range(2):
        results = dict(np.load(tmp_path / f"{rank}.npz"))
        for case in list(CASES)[::every]:
            for name, expected in results_of(case, 1).items():
                compare(results[f"{case}/{name}"], expected, f"{case}, {name}, rank {rank}")


class Scaled(flow.nn.Module):
    """A product of x and a parameter, which forward also looks up and reads without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = flow.nn.Parameter(flow.tensor(0.5))
        self.rows = flow.nn.Parameter(flow.tensor([1.0, 2.0, 4.0]))

    def forward(self, x: Any) -> Any:
        return (x * self.scale).mean() + self.rows[[2, 0]].sum() * self.scale.detach()


@pytest.mark.parametrize("kernels", ["numpy", "llvm"])
def test_a_parameter_without_axes_is_trained(kernels: str) -> None:
    flow.config.kernels(kernels)
    model = Scaled()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        loss = model(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
        return loss

    np.testing.assert_allclose(job(np.array([1, 3], np.float32)), 2 * 0.5 + 5 * 0.5)
    np.testing.assert_allclose(model.scale.detach().numpy(), 0.5 - 0.5 * 2)
    np.testing.assert_allclose(model.rows.detach().numpy(), [1 - 0.25, 2, 4 - 0.25])
