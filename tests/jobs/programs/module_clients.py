"""Modules in the bodies of jobs of several clients.

`mpiexec -n 2 python module_clients.py FOLDER N` runs every Nth case and the cases of several clients.

Each rank writes its results to FOLDER/<rank>.npz.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import module_constants  # noqa: F401 - which has cases too
import module_mistakes  # noqa: F401 - which has cases too
import numpy as np
from module_cases import CASES, X, Y, error_of, state, train_job

import jobflow as flow
from jobflow import nn


def _expected(build: Callable[[], Any]) -> list[Any]:
    """Return losses and parameters of a module trained eagerly on each rank alone."""
    flow.manual_seed(1)
    model = build()
    optimizer, losses = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(flow.tensor(X)), flow.tensor(Y).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, *state(model).values()]


def _check(results: list[Any], expected: list[Any]) -> None:
    for mine, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=2e-5, atol=1e-6)


def _dense() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def parameters_lie_as_they_are_placed(rank: int) -> None:
    """Split parameters along either axis, place them on some ranks only, or copy them; read them as tensors on all ranks afterwards."""
    expected, all_of, last = _expected(_dense), flow.placement("cpu", [0, 1]), flow.placement("cpu", [1])
    for first, second in (((all_of, flow.sbp.split(0)), (all_of, flow.sbp.split(1))), ((all_of, flow.sbp.broadcast), (last, flow.sbp.broadcast))):
        flow.manual_seed(1)
        model = _dense()
        model.to_global(all_of, flow.sbp.broadcast)
        model[0].to_global(*first)
        for x in model[2].parameters():
            x.data = x.data.to_global(second[0], second[1] if x.ndim > 1 else flow.sbp.broadcast)
        job = train_job(model)
        _check([[job(X, Y).item() for _ in range(3)], *state(model).values()], expected)
        assert (model[2].weight.placement, model[2].weight.sbp) == (second[0], (second[1],))
        for layer in (model[0], model[2]):
            with flow.no_grad():
                layer.weight.zero_()
        assert abs(job(X, Y).item() - np.log(4)) < 0.3 and model[2].weight.numpy().any()
        flow.clear_default_session()
        assert model[2].weight.numpy().any()


def the_first_ranks_numbers_count_where_local_modules_differ(rank: int) -> None:
    flow.manual_seed(rank)
    model = _dense()
    job, own = train_job(model), state(model)
    job(X, Y)
    flow.manual_seed(0)
    expected = _dense()
    nn.CrossEntropyLoss()(expected(flow.tensor(X)), flow.tensor(Y).long()).backward()
    flow.optim.SGD(expected.parameters(), lr=0.1).step()
    _check(list(state(model).values()), list(state(expected).values()))
    assert rank == 0 or not np.allclose(own["0.weight"], state(model)["0.weight"], atol=0.05)


def ranks_write_the_same_to_local_parameters(rank: int) -> None:
    flow.manual_seed(1)
    model = _dense()
    job = train_job(model)
    job(X, Y)
    if rank == 0:
        assert np.isfinite(model[0].weight.detach().numpy()).all()  # to look at it is for each rank alone
    job(X, Y)
    with flow.no_grad():
        model[2].bias.fill_(float(rank))
    says = error_of(job, X, Y)
    assert "2.bias" in says and "ranks 0 and 1 wrote different values" in says, says
    with flow.no_grad():
        model[2].bias.fill_(0.5)
    job(X, Y)


TOGETHER = (parameters_lie_as_they_are_placed, the_first_ranks_numbers_count_where_local_modules_differ, ranks_write_the_same_to_local_parameters)

if __name__ == "__main__":
    out, results = Path(sys.argv[1]), {}
    os.environ |= {"MODULE_CASES": str(out), "MODULE_CLIENTS": "2", "MODULE_DEVICES": "2"}
    flow.manual_seed(0)
    rank = flow.env.get_rank()
    for word, function in list(CASES.items())[:: int(sys.argv[2])]:
        results |= {f"{word}/{name}": value for name, value in function().items()}
        flow.clear_default_session()
    for check in TOGETHER:
        check(rank)
        flow.clear_default_session()
    np.savez(out / f"{rank}.npz", **results)
