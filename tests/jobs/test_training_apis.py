"""One model trained eagerly, as nn.Graph and as a job function: equal formulas have equal results.

Ranks are threads. programs/api_cases.py has the comparisons, and docs/jobs_and_tensors.md describes them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mixed
import numpy as np
import pytest
from api_cases import ALIKE, DIFFERENT, SCHEDULES
from processes import run
from ranks import on_ranks
from training_apis import (
    S0,
    S1,
    AtOnce,
    B,
    Case,
    Run,
    Sharding,
    Trained,
    as_graph,
    as_job,
    at_once,
    batches,
    each_its_own,
    mirrored,
    model_of,
    tensor_of,
)

import jobflow as flow
import jobflow.typing as tp

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.usefixtures("fresh")
Begin = Callable[[int], None]

STEPS = 6
LAYOUTS = {
    "1": Sharding((1,)),
    "2, weights B": Sharding((2,)),
    "2, weights S(0)": Sharding((2,), (B,), (S0,), (S0,)),
    "2, weights S(1)": Sharding((2,), weight=(S1,)),
    "4, weights B": Sharding((4,)),
    "2x2": Sharding((2, 2), (S0, B), (B, S0), (B, S0)),
}
#: every case runs in one layout of two ranks and of four, or on one rank; which, takes turns
TURNS = [("2, weights B", "2x2"), ("2, weights S(0)", "4, weights B"), ("2, weights S(1)", "1")]


def turn(i: int, name: str) -> tuple[str, ...]:
    """Return the layouts of a case; schedules do not depend on layouts and run on two ranks."""
    return TURNS[i % 3][:1] if name in SCHEDULES else TURNS[i % 3]


def ranks_of(sharding: Sharding) -> int:
    return int(np.prod(sharding.mesh))


@functools.cache
def reference(name: str) -> Run:
    """Train eagerly with local tensors on one rank, in float64."""
    return on_ranks(1, lambda rank: at_once(ALIKE[name], None, STEPS))[0]


def same(run: Run, expected: Run, close: float) -> None:
    np.testing.assert_allclose(run[0], expected[0], rtol=close, atol=close / 100)
    for a, b in zip(run[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=close, atol=close)


def all_three(on: Begin, case: Case, sharding: Sharding, expected: Run, steps: int = STEPS, dtype: Any = flow.float64, close: float = 1e-9) -> None:
    n = ranks_of(sharding)
    for way in (at_once, as_graph):
        for result in on_ranks(n, lambda rank, way=way: way(case, sharding, steps, dtype)):
            same(result, expected, close)
    on(n)
    same(as_job(case, sharding, steps, dtype), expected, close)


@pytest.mark.parametrize(("name", "layout"), [(name, layout) for i, name in enumerate(ALIKE) for layout in turn(i, name)])
def test_all_apis_are_equal_in_float64(on: Begin, name: str, layout: str) -> None:
    losses = reference(name)[0]
    assert len(set(losses)) == STEPS and losses[-1] < losses[0], "it learns"
    all_three(on, ALIKE[name], LAYOUTS[layout], reference(name))


UNEVEN = {
    "3": Sharding((3,), (B,), (S0,), (S0,)),
    "more ranks than classes": Sharding((5,), (S0,), (S0,), (B,)),
    "features": Sharding((5,), (S1,), (S1,), (S0,)),
    "3x2": Sharding((3, 2), (S0, B), (B, S1), (B, S0)),
    "twice along one axis": Sharding((2, 2), (S0, S0), (S0, S0), (S0, S0)),
}


@pytest.mark.parametrize("layout", UNEVEN)
@pytest.mark.parametrize("name", ["clipping", pytest.param("lamb, no decay, eps nothing", marks=pytest.mark.full)])
def test_sizes_that_do_not_divide(on: Begin, name: str, layout: str) -> None:
    expected = on_ranks(1, lambda rank: at_once(ALIKE[name], None, 3))[0]
    all_three(on, ALIKE[name], UNEVEN[layout], expected, 3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [pytest.param("momentum, constant rate", marks=pytest.mark.full), "adam, eps nothing"])
def test_all_apis_are_equal_in_float32(on: Begin, name: str, layout: str) -> None:
    long = on_ranks(1, lambda rank: at_once(ALIKE[name], None, 2 * STEPS))[0]
    all_three(on, ALIKE[name], LAYOUTS[layout], long, 2 * STEPS, flow.float32, 1e-5)


def test_layers_of_jobs_are_modules(on: Begin) -> None:
    """`layers.dense` has weights of shape (units, inputs) like nn.Linear; the compiler chooses all layouts."""
    for n in (1, 2, 4):
        on(n)
        same(as_job(ALIKE["momentum, constant rate"], None, STEPS), reference("momentum, constant rate"), 1e-9)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("name", ["momentum, constant rate", "adam, uncorrected"])
def test_local_modules_train_as_jobs_in_the_mirrored_view(on: Begin, name: str, n: int) -> None:
    runs = on_ranks(n, lambda rank: each_its_own(ALIKE[name], rank, n, STEPS))
    for _, own in runs:
        same((list(np.mean([losses for losses, _ in runs], axis=0)), own), reference(name), 1e-9)
    on(n)
    same(mirrored(ALIKE[name], n, STEPS), reference(name), 1e-9)


# ---------------------------------------------------------------- where formulas differ


def losses(on: Begin, name: str) -> tuple[Any, Any]:
    """Return the losses of eager tensors and of the job, on one rank."""
    on(1)
    case = DIFFERENT[name]
    return np.array(on_ranks(1, lambda rank: at_once(case, None, STEPS))[0][0]), np.array(as_job(case, None, STEPS)[0])


@pytest.mark.parametrize(
    ("name", "steps"), [("momentum, scheduled", 3), ("adam, eps", 1), ("adamw, corrected", 1), ("rmsprop, eps", 0), ("lamb, decay", 0)]
)
def test_documented_differences_between_the_apis(on: Begin, name: str, steps: int) -> None:
    """Results are equal until the difference takes effect, or with a compensation, and differ after that."""
    tensors, job = losses(on, name)
    np.testing.assert_allclose(job[: steps + 1], tensors[: steps + 1], rtol=1e-9)
    assert (abs(job - tensors)[steps + 1 :] > 1e-6 * tensors[steps + 1 :]).all()


def test_clipping_differs_by_the_epsilon_of_the_norm(on: Begin) -> None:
    tensors, job = losses(on, "clipping, small norms")
    np.testing.assert_allclose(job, tensors, rtol=1e-4)
    assert abs(job / tensors - 1).max() > 1e-8


# ---------------------------------------------------------------- two stages


@functools.cache
def alone(clip: float | None) -> dict[str, Any]:
    """Train the mixed model on one rank, without microbatches."""
    return on_ranks(1, mixed_on, mixed.Way(clip=clip))[0]


def mixed_on(rank: int, way: mixed.Way, ranks: int = 1) -> dict[str, Any]:
    return mixed.train(ranks, way)


def check_mixed(results: dict[str, Any], way: mixed.Way) -> None:
    expected = alone(way.clip)
    assert min(expected["losses"]) < 0.8 * expected["losses"][0], "it learns"
    np.testing.assert_allclose(results["losses"], expected["losses"], rtol=1e-9)
    for a, b in zip(results["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", mixed.WAYS)
def test_two_stages_train_as_one_process(name: str, ranks: int) -> None:
    for results in on_ranks(ranks, mixed_on, mixed.WAYS[name], ranks):
        check_mixed(results, mixed.WAYS[name])


@pytest.mark.mpi
def test_two_stages_on_four_processes(tmp_path: Path) -> None:
    names = [name for name in mixed.WAYS if name.startswith(("graph, pipelined", "at once, accumulated"))]
    ended = run(PROGRAMS / "mixed.py", str(tmp_path / "out"), *names, ranks=4)
    assert (ended.code, ended.out) == (0, ""), ended.err
    for rank in range(4):
        by_name = json.loads((tmp_path / f"out.{rank}").read_text())
        assert list(by_name) == names
        for name, results in by_name.items():
            check_mixed(results, mixed.WAYS[name])


# ---------------------------------------------------------------- saving, switches, seeds


Steps = tuple[int, int]


def continued(rank: int, name: str, sharding: Sharding, steps: Steps, source: Path | None, target: Path, graph: bool) -> list[float]:
    """Return the losses of a range of steps that resumes from `source` and saves to `target`."""
    model, case = model_of(sharding, flow.float64), ALIKE[name]
    training = Trained(case, model) if graph else AtOnce(case, model)
    if source is not None:
        training.load_state_dict(flow.load(source, global_src_rank=0))
    losses = [
        float(training(tensor_of(x, sharding, flow.float64), tensor_of(y, sharding, flow.int32)).item()) for x, y in batches(STEPS)[slice(*steps)]
    ]
    flow.save(training.state_dict(), target, global_dst_rank=0)
    return losses


SAVED = ["momentum, constant rate", "adam, decay as l2", "rmsprop, eps nothing"]


@pytest.mark.parametrize(
    ("name", "graph"), [*((name, graph) for name in SAVED for graph in (False, True)), ("warm-up", False), ("milestones", False)]
)
def test_saved_on_two_ranks_and_continued_on_four_and_on_one(name: str, graph: bool, tmp_path: Path) -> None:
    source: Path | None = None
    for layout, steps in (("2, weights S(0)", (0, 4)), ("2x2", (4, 7)), ("1", (7, STEPS))):
        sharding, target = LAYOUTS[layout], tmp_path / layout
        for losses in on_ranks(ranks_of(sharding), continued, name, sharding, steps, source, target, graph):
            np.testing.assert_allclose(losses, reference(name)[0][slice(*steps)], rtol=1e-9)
        source = target


@pytest.mark.parametrize("off", [flow.no_grad, lambda: flow.set_grad_enabled(False)], ids=["no_grad", "set_grad_enabled"])
def test_evaluation_without_gradients_changes_nothing(off: Callable[[], Any]) -> None:
    def program(rank: int) -> list[float]:
        sharding = LAYOUTS["2, weights S(1)"]
        model = model_of(sharding, flow.float64)
        training = AtOnce(ALIKE["momentum, constant rate"], model)
        losses = []
        for x, y in batches(STEPS):
            with off():
                scores = model(tensor_of(x, sharding, flow.float64))
                assert not scores.requires_grad and scores.grad_fn is None
                with flow.set_grad_enabled(True):
                    assert model(tensor_of(x, sharding, flow.float64)).requires_grad
            losses.append(float(training(tensor_of(x, sharding, flow.float64), tensor_of(y, sharding, flow.int32)).item()))
        return losses

    for rank_losses in on_ranks(2, program):
        np.testing.assert_allclose(rank_losses, reference("momentum, constant rate")[0], rtol=1e-9)


def test_gradients_can_be_switched_off_for_good() -> None:
    def program(rank: int) -> tuple[bool, bool]:
        model = model_of(None, flow.float64)
        flow.set_grad_enabled(False)
        without = model(tensor_of(batches(1)[0][0], None, flow.float64)).requires_grad
        flow.set_grad_enabled(True)
        return without, model(tensor_of(batches(1)[0][0], None, flow.float64)).requires_grad

    assert on_ranks(2, program) == [(False, True)] * 2


def dropping(rank: int, sharding: Sharding, graph: bool, seed: int, name: str = "momentum, constant rate") -> list[float]:
    """Return the losses of a model with dropout, twice with the same seed."""
    losses = []
    for _ in range(2):
        flow.manual_seed(seed)
        model = model_of(sharding, flow.float64)
        model = flow.nn.Sequential(*model, flow.nn.Dropout(0.4))
        training = Trained(ALIKE[name], model) if graph else AtOnce(ALIKE[name], model)
        losses.append(
            [float(training(tensor_of(x, sharding, flow.float64), tensor_of(y, sharding, flow.int32)).numpy().mean()) for x, y in batches(4)]
        )
    assert losses[0] == losses[1]
    return losses[0]


def test_the_seed_decides_dropout_whatever_the_layout() -> None:
    expected = on_ranks(1, dropping, LAYOUTS["1"], False, 3)[0]
    assert expected != on_ranks(1, dropping, LAYOUTS["1"], False, 4)[0]
    for layout in ("2, weights B", "2, weights S(1)", "2x2"):
        for graph in (False, True):
            for losses in on_ranks(ranks_of(LAYOUTS[layout]), dropping, LAYOUTS[layout], graph, 3):
                np.testing.assert_allclose(losses, expected, rtol=1e-9)
    (in_parts,) = on_ranks(1, dropping, LAYOUTS["1"], True, 3, "accumulation")
    np.testing.assert_allclose(in_parts, expected, rtol=1e-9, err_msg="the rows of a batch that passes in parts are dropped as in one piece")


# ---------------------------------------------------------------- batch norm


@pytest.mark.parametrize("n", [1, 2])
def test_batch_norm(on: Begin, n: int) -> None:
    """With equal epsilon, and momentum 1 - momentum, results and batch statistics are equal for every split."""
    x, target = np.random.RandomState(0).standard_normal((2, 12, 5))
    sharding = Sharding((n,))

    def program(rank: int) -> Any:
        model = flow.nn.BatchNorm1d(5, eps=1e-3, momentum=0.1, dtype=flow.float64)
        model.to_global(sharding.placement, B)
        optimizer = flow.optim.SGD(model.parameters(), 0.5)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = flow.nn.functional.mse_loss(model(tensor_of(x, sharding, flow.float64)), tensor_of(target, sharding, flow.float64))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, *(t.numpy() for t in (model.weight, model.bias, model.running_mean, model.running_var))

    on(n)
    config = flow.function_config()
    config.default_data_type(flow.float64)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((12, 5), flow.float64), y: tp.Numpy.Placeholder((12, 5), flow.float64)) -> tp.Numpy:  # type: ignore[valid-type]
        normalized = flow.layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=1e-3, name="bn")
        loss = flow.math.square(normalized - y)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
        return loss

    losses = [job(x, target).mean() for _ in range(3)]
    own = {name: variable.numpy() for name, variable in flow.get_all_variables().items()}
    for reference, weight, bias, mean, var in on_ranks(n, program):
        np.testing.assert_allclose(losses, reference, rtol=1e-9)
        np.testing.assert_allclose(own["bn-gamma"], weight, rtol=1e-9)
        np.testing.assert_allclose(own["bn-beta"], bias, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(own["bn-moving_mean"], mean, rtol=1e-9)
        np.testing.assert_allclose(own["bn-moving_variance"], var, rtol=1e-9)
