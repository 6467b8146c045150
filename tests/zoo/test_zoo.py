"""The programs of examples/zoo: on 1, 2 and 4 devices the losses of PyTorch; in their full size, plans for their published layouts.

references/losses.json has what PyTorch gives for the small configurations, and is written by the record.py beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from initial_values import initial_value
from zoo_programs import CASES, STEPS, batches, program, size_of

import jobflow as flow
from jobflow.engine.job import job_of
from jobflow.ops.source import ReadVariable
from jobflow.tools.explain import Explained, boxing_rows, laid_out

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "references" / "losses.json").read_text())
#: what is not a parameter: state of optimizers and of normalisations
STATE = ("-m", "-v", "-momentum", "moving_mean", "moving_variance")
#: (data, tensor, pipeline, micro-batches) of the GPT, for as many devices
PARALLEL = {1: [(1, 1, 1, 1)], 2: [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 4)], 4: [(2, 2, 1, 1), (1, 2, 2, 2)]}


def steps_of(case: str, layout: tuple[int, ...] = ()) -> Callable[..., float]:
    """Return a function of a step's arguments that returns its loss, the mean over the program's results."""
    module, size = program(case), size_of(case)
    if case == "dcgan":
        train_generator, train_discriminator = module.make_jobs(size)

        def both(noise: Any, pictures: Any) -> float:
            train_discriminator(noise, pictures)
            return float(train_generator(noise)[0].mean())

        return both
    if case == "resnet50":
        job = module.make_jobs(size)[0]
    elif case == "gpt2":
        job = module.make_job(size, module.Parallel(*layout))
    elif case.startswith("bert_"):
        job = module.make_job(case.removeprefix("bert_"), size)
    else:
        job = module.make_job(size)

    def one(*arguments: Any) -> float:
        outputs = job(*arguments)
        return float(np.mean(outputs[0] if isinstance(outputs, tuple) else outputs))

    return one


def start(parameters: dict[str, list[int]]) -> None:
    """Give the variables of all jobs their initial values; their names and shapes are those that are recorded."""
    variables = flow.get_all_variables()
    shapes = {name: list(v.shape) for name, v in variables.items() if not name.endswith(STATE) and not name.startswith("System-Train")}
    assert shapes == parameters
    flow.load_variables({name: initial_value(name, tuple(shape)) for name, shape in parameters.items()})


def losses(case: str, devices: int, layout: tuple[int, ...] = ()) -> list[float]:
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    step = steps_of(case, layout)
    start(RECORDED[case]["parameters"])
    return [step(*batch) for batch in batches(case)]


def runs(devices: int, every: int) -> list[tuple[str, tuple[int, ...]]]:
    """All cases, or those whose turn it is on so many devices; the GPT's layouts are others on each number."""
    chosen = [case for i, case in enumerate(CASES) if (i + devices // 4) % every == 0 or case == "gpt2"]
    return [(case, layout) for case in chosen for layout in (PARALLEL[devices] if case == "gpt2" else [()])]


@pytest.mark.parametrize(("devices", "every"), [(1, 1), (2, 3), (4, 3), *(pytest.param(n, 1, marks=pytest.mark.full) for n in (2, 4))])
def test_losses_equal_pytorch(devices: int, every: int) -> None:
    for case, layout in runs(devices, every):
        curve = losses(case, devices, layout)
        assert len(curve) == STEPS
        np.testing.assert_allclose(curve, RECORDED[case]["losses"], rtol=2e-5, err_msg=f"{case} {layout}")


def trained(explained: Explained) -> int:
    """The number of parameters."""
    return sum(variable.type.size for variable in explained.traced.variables.values() if variable.trainable)


class Full(NamedTuple):
    """A full configuration with its published number of parameters, and how its job is made."""

    case: str
    devices: int
    parameters: int
    make: Callable[[Any], Any]


FULL = {
    "ResNet-50": Full("resnet50", 8, 25_557_032, lambda zoo: zoo.make_jobs(zoo.Size(batch=2048))[0]),
    "BERT base": Full("bert_pretrain", 8, 110_106_428, lambda zoo: zoo.make_job("pretrain", zoo.Size(length=512, masked=76))),
    "BERT base on SQuAD": Full("bert_squad", 8, 108_893_186, lambda zoo: zoo.make_job("squad", zoo.Size(batch=48, length=512))),
    "DCGAN": Full("dcgan", 2, 2_305_472, lambda zoo: zoo.make_jobs(zoo.Size())[0]),
}
#: all_reduce sums gradients and the statistics of batches: four values per feature of a batch norm, 2.2 % in DCGAN
TOLERANCE = 0.025


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_full_sizes_in_data_parallelism(name: str) -> None:
    """The number of parameters is the published one, and a step sends every gradient once around a ring."""
    case, devices, parameters, make = FULL[name]
    explained = laid_out(job_of(make(program(case))), devices)
    assert trained(explained) == parameters
    sums = sum(change.nbytes for change in boxing_rows(explained.physical) if change.route == "all_reduce")
    assert sums == pytest.approx(2 * (devices - 1) / devices * 4 * parameters, rel=TOLERANCE)


@pytest.mark.slow
def test_a_full_gpt_in_three_kinds_of_parallelism() -> None:
    """Two stages of 2 x 4 devices, four microbatches."""
    zoo, microbatches, tensor = program("gpt2"), 4, 4
    explained = laid_out(job_of(zoo.make_job(zoo.Size(), zoo.Parallel(2, tensor, 2, microbatches, checkpointing=True))), 16)
    assert trained(explained) == 124_475_904
    changes = boxing_rows(explained.physical)
    rows = 32 // microbatches // 2 * 1024 * 768 * 4
    sums = sum(change.route == "all_reduce" and change.nbytes == 2 * (tensor - 1) / tensor * rows for change in changes)
    assert sums == microbatches * (12 * 2 * 3 + 2), "two of a block, again when it is computed again, and backward; the words', forward and backward"
    table = 50304 // tensor * 768 * 4 / 2
    moved = [change for change in changes if change.route == "move" and change.nbytes == table]
    assert len(moved) == 2, "the table of words goes to the other stage once, and its gradient comes back once, half from each of two devices"


@pytest.mark.slow
def test_full_tables_are_split() -> None:
    """Devices have a quarter of a table and of its optimizer state, and no other tensor of that size exists."""
    size = program("wide_and_deep").Size()
    explained = laid_out(job_of(program("wide_and_deep").make_job(size)), 4)
    tables = {value: layout for value, layout in explained.physical.layouts.items() if value.shape in ((size.rows, 1), (size.rows, size.width))}
    assert len([value for value in tables if isinstance(value.node.op, ReadVariable)]) == 2 * 3
    assert all(isinstance(value.node.op, ReadVariable) or value.node.op.alias for value in tables)
    assert {str(layout) for layout in tables.values()} == {"cpu[0-3]:S(0)", "cpu[0-3]:S(1)"}


@pytest.mark.slow
def test_full_people_are_split() -> None:
    """Tensors with a row per person stay split, with gradients and optimizer state; a step uses about a tenth of the people."""
    size = program("insightface").Size()
    explained = laid_out(job_of(program("insightface").make_job(size)), 8)
    people = [str(layout) for value, layout in explained.physical.layouts.items() if value.shape == (size.people, size.embedding)]
    assert set(people) == {"cpu[0-7]:S(0)"} and len(people) >= 3
    assert any(value.shape == (size.sample, size.embedding) for value in explained.physical.layouts)
