"""Transformers: outputs and gradients equal those of PyTorch, eagerly and in programs, in many layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_cases import MODELS
from nn_cases import Case
from ranks import on_ranks
from surroundings import check, reference, run_case
from test_graph_cases import run_in_graph

from jobflow.core.layout import B, Layout, Placement, S

FILE = "models.npz"
_LINE = Placement("cpu", (0, 1))


def _split(axis: int) -> Any:
    return lambda i, ndim: Layout(_LINE, (S(axis) if ndim > axis else B,))


def _whole(i: int, ndim: int) -> Layout:
    return Layout(_LINE, (B,))


#: layouts of inputs and parameters
LAYOUTS = {"batch": (_split(0), _whole), "features": (_split(1), _whole), "weights": (_split(0), _split(0)), "sums": (_whole, _split(1))}


#: similar cases, which the whole suite runs on several ranks and in graphs
SIMILAR = ("decoder", "decoder_masks", "decoder_added", "bag_sum", "bag_sum_rows", "bag_mean_rows", "bag_sum_padded")
EVERY = [pytest.param(case, id=case.name, marks=[pytest.mark.full] if case.name in SIMILAR else []) for case in MODELS]


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_models_on_one_rank_equal_pytorch(case: Case) -> None:
    (results,) = on_ranks(1, lambda rank: run_case(case))
    check(case, results, file=FILE)


@pytest.mark.parametrize("case", EVERY)
def test_models_on_two_ranks_equal_pytorch(case: Case) -> None:
    for results in on_ranks(2, lambda rank: {how: run_case(case, *layouts) for how, layouts in LAYOUTS.items()}):
        for how, each in results.items():
            check(case, each, how, FILE)


#: without tables that write to their rows, which an optimizer of a graph must not update
GRAPHS = [case for case in EVERY if not str(case.id).endswith("_limited")]


@pytest.mark.parametrize("case", GRAPHS)
def test_models_in_graphs_equal_pytorch(case: Case) -> None:
    expected = {name: x for name, x in reference(case, FILE).items() if not name.startswith("input/")}
    for results in on_ranks(2, lambda rank: run_in_graph(case, _split(0), FILE)):
        assert results.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-7, atol=1e-8, err_msg=name)
