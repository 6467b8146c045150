"""Twelve models as users of PyTorch write them: a configuration and a loop have equal losses, on one rank and on two.

`plain_cases.CASES` is the table; each row has another kind of model and of data.
"""

from __future__ import annotations

import json
from pathlib import Path

import processes
import pytest
from plain_cases import CASES, Case, close
from plain_data import write_files
from test_processes_that_train import PATHS

#: the models of the default suite: a table, images, and a sequence
FEW = ("TwoHeads", "ConvNet", "LSTMClassifier")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain")
    write_files(path)
    return path


@pytest.fixture(params=[pytest.param(case, id=name, marks=() if name in FEW else pytest.mark.full) for name, case in CASES.items()])
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


def test_a_configuration_and_a_loop_have_equal_losses(case: Case, folder: Path) -> None:
    losses = case.train_configuration(folder, folder / case.model / "one")
    close(case.train_in_a_loop(folder), losses)
    close(case.train_configuration(folder, folder / case.model / "two", "strategy.devices=2"), losses)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.exact])
def test_random_numbers_are_equal_on_two_ranks(name: str, folder: Path) -> None:
    case, output = CASES[name], folder / name / "random"
    losses = case.train_configuration(folder, output / "one", exact=False)
    close(case.train_configuration(folder, output / "two", "strategy.devices=2", exact=False), losses)
    assert losses != case.train_configuration(folder, output / "exact")


@pytest.mark.full
@pytest.mark.mpi
def test_two_processes_have_the_losses_of_one(folder: Path) -> None:
    done = processes.run(Path(__file__).with_name("train_plain_models.py"), folder, *CASES, ranks=2, environment=PATHS)
    assert done.code == 0, done.out + done.err
    losses = json.loads(done.out)
    for name, case in CASES.items():
        expected = case.train_in_a_loop(folder)
        for each in losses[name]:
            close(each, expected)
