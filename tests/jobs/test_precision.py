"""Jobs in mixed precision, tensors of two-byte floats, and rematerialization regions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts import constant, declare, normal, values
from processes import run

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ConfigError, DtypeError
from jobflow.engine.job import job_of
from jobflow.tools.explain import explain

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.usefixtures("fresh")

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(64, 32)).astype(np.float32), RANDOM.integers(0, 5, 64).astype(np.int32)
HALVES = {"float16": flow.float16, "bfloat16": flow.bfloat16}
Wrap = Callable[[Any], Any]


def trained(ranks: int, *, wrap: Wrap = lambda block: block, each: int = 1, steps: int = 4, **options: Any) -> tuple[Any, dict[str, Any], Any]:
    """Return losses, variables and the job of four blocks, grouped into calls of functions from `wrap`."""
    flow.clear_default_session()
    flow.config.cpu_device_num(ranks)
    config = flow.function_config()
    for name, value in options.items():
        config.set(name.replace("__", "."), value)

    def blocks(x: Any, first: int) -> Any:
        for i in range(first, first + each):
            with flow.scope.namespace(f"block{i}"):
                x = flow.layers.dense(x, 32, activation=flow.math.tanh, kernel_initializer=normal(), name="a")
                x = flow.nn.dropout(flow.layers.layer_norm(x), 0.2)
        return x

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((64, 32)), y: tp.Numpy.Placeholder((64,), dtype=flow.int32)) -> tp.Numpy:
        for i in range(0, 4, each):
            x = wrap(blocks)(x, i)
        logits = flow.layers.dense(x, 5, kernel_initializer=normal(), name="head")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        flow.optimizer.SGD(constant(0.5), momentum=0.9).minimize(loss)
        return loss

    losses = np.array([job(X, Y) for _ in range(steps)])
    return losses, values(), job


# ---- mixed precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("half", HALVES)
def test_training_in_half_precision_follows_float32(ranks: int, half: str) -> None:
    plain, _, _ = trained(1)
    mixed, variables, _ = trained(ranks, mixed_precision=HALVES[half])
    difference = np.abs(mixed.mean(axis=1) - plain.mean(axis=1)).max()
    assert 0 < difference < {"float16": 4e-3, "bfloat16": 3e-2}[half]
    assert mixed.dtype == np.float32 and {a.dtype.name for a in variables.values()} == {"float32", "int64"}


def test_the_legacy_switch_means_float16() -> None:
    switched, _, _ = trained(1, enable_auto_mixed_precision=True)
    named, _, _ = trained(1, mixed_precision=flow.float16)
    assert np.array_equal(switched, named)
    off, _, _ = trained(1, enable_auto_mixed_precision=False)
    assert np.array_equal(off, trained(1)[0])


def test_predict_jobs_and_watches() -> None:
    flow.config.cpu_device_num(2)
    config, watched = flow.function_config(), []
    config.mixed_precision(flow.bfloat16)

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (6, 3), initializer=normal())
        y = flow.math.relu(flow.matmul(x, w))
        flow.watch(y, lambda value: watched.append(value.numpy()))
        return y, flow.matmul(y, w, transpose_b=True)

    x = RANDOM.normal(size=(4, 6)).astype(np.float32)
    y, z = job(x)
    w = values()["w"]
    assert y.dtype == z.dtype == np.float32 and np.array_equal(watched[0], y)
    expected = np.maximum(x @ w, 0)
    assert 0 < np.abs(y - expected).max() < 2e-2
    assert np.array_equal(y, y.astype(flow.bfloat16.numpy).astype(np.float32)), "a product in half precision, shown in float32"


def test_marking_a_tensor() -> None:
    config = flow.function_config()
    config.enable_auto_mixed_precision()
    job = declare(lambda x: flow.amp_white_identity(x), tp.Numpy.Placeholder((3,)), config=config)
    x = np.array([1.0, 1.0001, 65504 * 2.0], np.float32)
    assert job(x).tolist() == [1.0, 1.0, np.inf]


# ---- tensors of two-byte floats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_arguments_variables_and_results_of_two_bytes(half: str, ranks: int, tmp_path: Path) -> None:
    dtype = HALVES[half]
    flow.config.cpu_device_num(ranks)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((6, 4), dtype=dtype)) -> tp.Numpy:
        w = flow.get_variable("w", (4, 3), dtype=dtype, initializer=flow.random_normal_initializer(stddev=0.5))
        y = flow.matmul(x, w)
        flow.optimizer.SGD(constant(0.25), momentum=0).minimize(flow.math.reduce_sum(flow.cast(y, flow.float32)))
        return y

    x = RANDOM.normal(size=(6, 4)).astype(dtype.numpy)
    before = values()["w"] if flow.get_all_variables() else None
    y = job(x)
    assert y.dtype == dtype.numpy
    flow.train.CheckPoint().save(str(tmp_path / "saved"))
    after = values()["w"]
    assert after.dtype == dtype.numpy and before is not None and np.abs(after.astype(float) - before.astype(float)).max() > 0.1
    again = job(x)
    flow.train.CheckPoint().load(str(tmp_path / "saved"))
    assert np.array_equal(values()["w"], after) and np.array_equal(job(x), again)
    rounded = (x.astype(np.float32) @ after.astype(np.float32)).astype(dtype.numpy)
    np.testing.assert_allclose(again.astype(float), rounded.astype(float), rtol=1e-2, atol=1e-2)


def test_float32_arrays_for_arguments_of_two_bytes_are_rounded() -> None:
    job = declare(lambda x: x, tp.Numpy.Placeholder((2,), dtype=flow.bfloat16))
    assert job(np.array([1.0, 1.001], np.float32)).astype(float).tolist() == [1.0, 1.0]


def test_two_kinds_of_floats_do_not_mix_implicitly() -> None:
    job = declare(lambda x, y: flow.matmul(x, y), tp.Numpy.Placeholder((2, 2), dtype=flow.bfloat16), tp.Numpy.Placeholder((2, 2)))
    with pytest.raises(DtypeError, match="cast"):
        job(X[:2, :2].astype(flow.bfloat16.numpy), X[:2, :2])


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_ranks_of_mpi(ranks: int, tmp_path: Path) -> None:
    """Compare half precision, a dynamic scale with a skipped step, and regions under mpiexec with one device."""
    out = tmp_path / "found.npz"
    ended = run(PROGRAMS / "precision.py", str(out), ranks=ranks)
    assert ended.code == 0, ended.err
    import precision

    results, expected = np.load(out), precision.run(1)
    assert results["scale"][0] == expected["scale"][0] == 128.0 and results["step"][0] == expected["step"][0] == 4
    np.testing.assert_allclose(results["losses"], expected["losses"], rtol=3e-2)
    assert np.isfinite(results["weight"]).all()


# ---- regions ---------------------------------------------------------------------------------------------------------


def entered(block: Any) -> Any:
    def in_scope(*arguments: Any) -> Any:
        with flow.experimental.scope.config(checkpointing=True):
            return block(*arguments)

    return in_scope


PLAIN: dict[str, Any] = {}
ACCUMULATED, HALF = {"train__num_gradient_accumulation_steps": 4}, {"mixed_precision": flow.bfloat16}


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        *((PLAIN, 1), (PLAIN, 4), (ACCUMULATED, 2), (HALF, 2)),
        *(pytest.param(*case, marks=pytest.mark.full) for case in ((PLAIN, 2), (ACCUMULATED, 1), (ACCUMULATED, 4), (HALF, 1), (HALF, 4))),
    ],
    ids=str,
)
def test_rematerialization_regions_change_no_bit(options: dict[str, Any], ranks: int) -> None:
    losses, variables, _ = trained(ranks, **options)
    for each, wrap in ((1, flow.checkpointed), (2, entered)):
        others, weights, _ = trained(ranks, wrap=wrap, each=each, **options)
        assert np.array_equal(losses, others)
        assert all(np.array_equal(variables[name], weights[name]) for name in variables)


@pytest.mark.parametrize("strategy", ["zero1", "zero3", "tp", "pp"])
def test_strategies_leave_regions_and_precision_as_they_are(strategy: str) -> None:
    chosen = {"strategy": flow.strategies.named(strategy)}
    plain, _, _ = trained(2, **chosen)
    regions, _, _ = trained(2, wrap=flow.checkpointed, each=2, **chosen)
    assert np.array_equal(plain, regions)
    mixed, variables, job = trained(2, wrap=flow.checkpointed, mixed_precision=flow.bfloat16, **chosen)
    assert 0 < np.abs(mixed.mean(axis=1) - plain.mean(axis=1)).max() < 3e-2
    assert {a.dtype.name for a in variables.values()} == {"float32", "int64"}
    if strategy == "zero3":
        physical = explain(job_of(job), devices=2, stages=("physical",))
        gathers = [line for line in physical.splitlines() if "all_gather" in line]
        assert sum("again:" in line for line in gathers) * 2 == len(gathers), "what is gathered for the forward pass is gathered again"


@pytest.mark.parametrize("ranks", [1, 2])
def test_regions_take_less_memory(ranks: int) -> None:
    def arena(wrap: Wrap) -> int:
        _, _, job = trained(ranks, wrap=wrap, steps=1)
        plan = explain(job_of(job), devices=ranks, stages=("plan",))
        return int(plan.partition("arena ")[2].split()[0].replace(",", ""))

    assert arena(flow.checkpointed) < 0.75 * arena(lambda block: block)


def test_a_checkpointed_function_keeps_its_attributes() -> None:
    def block(x: int, y: int = 2) -> int:
        """Adds."""
        return x + y

    wrapped = flow.checkpointed(block)
    assert (wrapped.__name__, wrapped.__doc__) == ("block", "Adds.")
    assert wrapped(1) == 3 and wrapped(1, y=5) == 6, "outside of jobs it is a call"


def test_options_of_the_scope() -> None:
    with flow.experimental.scope.config(checkpointing=True, pipeline_stage_id_hint=1):
        pass
    for options, text in [
        ({"checkpoint": True}, 'experimental.scope.config at .*: unknown option "checkpoint"; did you mean "checkpointing"?'),
        ({"checkpointing": 1}, "checkpointing takes a value of type bool; got 1"),
        ({"pipeline_stage_id_hint": True}, "pipeline_stage_id_hint takes a value of type int; got True"),
        ({"pipeline_stage_id_hint": -1}, "pipeline_stage_id_hint must be at least 0; got -1"),
    ]:
        with pytest.raises(ConfigError, match=text.replace("?", r"\?")) as raised:
            flow.experimental.scope.config(**options)
        assert isinstance(raised.value, AssertionError)
