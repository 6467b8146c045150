"""Initial values: distributions, fans and gains; regularizers; variables and their storage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from jobflow import distribute, initializers, regularizers, scope
from jobflow.core.errors import ArgumentError, ConfigError, DuplicateNameError, JobError, SbpError, ShapeError
from jobflow.core.layout import B, Placement, S
from jobflow.core.types import DType, float32, float64, int32
from jobflow.engine.job_config import function_config
from jobflow.initializers import Initializer, fans, from_conf
from jobflow.legacy.variables import get_variable, variable_of

SHAPE = (64, 20, 5, 5)


def drawn(initializer: Initializer, shape: tuple[int, ...] = SHAPE, dtype: DType = float64, key: str = "w", seed: int = 0) -> Any:
    y = np.empty(shape, dtype.numpy)
    initializer.op(shape, dtype, key, seed).kernel(np, y)
    return y


def test_constants() -> None:
    assert (drawn(initializers.constant_initializer(2.5)) == 2.5).all()
    assert drawn(initializers.ones_initializer(), (3,), int32).tolist() == [1, 1, 1]
    assert not drawn(initializers.zeros_initializer()).any() and not drawn(initializers.empty_initializer()).any()


def test_uniform() -> None:
    y = drawn(initializers.random_uniform_initializer(-2, 4))
    assert -2 <= y.min() < -1.99 and 3.99 < y.max() < 4 and abs(y.mean() - 1) < 0.05
    whole = drawn(initializers.random_uniform_initializer(-1, 2, int32), dtype=int32)
    assert set(np.unique(whole)) == {-1, 0, 1}


def test_normal() -> None:
    y = drawn(initializers.random_normal_initializer(1.0, 3.0))
    assert abs(y.mean() - 1) < 0.1 and abs(y.std() - 3) < 0.1
    with pytest.raises(AssertionError, match="random_seed"):
        initializers.random_normal_initializer(seed=3)
    with pytest.raises(AssertionError, match="dtype"):
        initializers.random_normal_initializer(dtype=float32)


@pytest.mark.parametrize("make", [initializers.truncated_normal, lambda std: initializers.truncated_normal_initializer(0.0, std)])
def test_truncated_normal_keeps_within_two_deviations(make: Any) -> None:
    y = drawn(make(0.1))
    assert abs(y).max() <= 0.2 and abs(y.std() / 0.1 - 0.8796) < 0.01


def test_values_depend_on_key_and_seed_alone() -> None:
    normal = initializers.random_normal_initializer()
    assert (drawn(normal) == drawn(normal)).all()
    assert (drawn(normal) != drawn(normal, key="v")).any() and (drawn(normal) != drawn(normal, seed=1)).any()


@pytest.mark.parametrize(
    ("shape", "data_format", "expected"),
    [
        ((10, 4), "", (4, 10)),
        ((10, 4), "NCHW", (4, 10)),
        ((64, 3, 5, 7), "NCHW", (105, 2240)),
        ((64, 5, 7, 3), "NHWC", (105, 2240)),
        ((64, 3, 5, 7), "", (105, 64)),
        ((64, 2, 3, 5, 7), "NDHWC", (210, 1920)),
    ],
)
def test_fans(shape: tuple[int, ...], data_format: str, expected: tuple[int, int]) -> None:
    assert fans(shape, data_format) == expected


@pytest.mark.parametrize("distribution", ["truncated_normal", "random_normal", "random_uniform"])
@pytest.mark.parametrize(("mode", "fan"), [("fan_in", 500), ("fan_out", 1600), ("fan_avg", 1050)])
def test_variance_scaling(distribution: str, mode: str, fan: float) -> None:
    y = drawn(initializers.variance_scaling_initializer(2.0, mode, distribution, "NCHW"))
    assert abs(y.std() / math.sqrt(2 / fan) - 1) < 0.02 and abs(y.mean()) < 0.02 * y.std() + 1e-3


def test_xavier() -> None:
    bound = math.sqrt(6 / (500 + 1600))
    y = drawn(initializers.xavier_uniform_initializer("NCHW"))
    assert 0.999 * bound < abs(y).max() <= bound
    z = drawn(initializers.xavier_normal_initializer("NCHW"))
    assert abs(z.std() / math.sqrt(2 / 2100) - 1) < 0.02
    assert initializers.glorot_normal_initializer is initializers.xavier_normal_initializer
    assert initializers.glorot_uniform_initializer is initializers.xavier_uniform_initializer


@pytest.mark.parametrize(
    ("nonlinearity", "gain"),
    [("linear", 1), ("conv2d", 1), ("sigmoid", 1), ("tanh", 5 / 3), ("relu", 2**0.5), ("leaky_relu", (2 / 1.04) ** 0.5), ("selu", 0.75)],
)
def test_kaiming(nonlinearity: str, gain: float) -> None:
    for distribution in ("random_normal", "random_uniform"):
        y = drawn(initializers.kaiming_initializer(SHAPE, distribution, "fan_in", nonlinearity, 0.2))
        assert abs(y.std() / (gain / math.sqrt(500)) - 1) < 0.02
    assert abs(y).max() <= math.sqrt(3) * gain / math.sqrt(500)
    fans = initializers.fans(SHAPE, "NCHW")
    y = drawn(initializers.kaiming_initializer(SHAPE, mode="fan_avg", nonlinearity=nonlinearity, negative_slope=0.2))
    assert abs(y.std() / (gain / math.sqrt(sum(fans) / 2)) - 1) < 0.02


def test_wrong_words_raise_with_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match=r'"fan_in"'):
        initializers.variance_scaling_initializer(mode="fan_inn")
    with pytest.raises(ConfigError, match="random_uniform"):
        initializers.variance_scaling_initializer(distribution="uniform")
    with pytest.raises(ConfigError, match="leaky_relu"):
        initializers.kaiming_initializer((3, 3), nonlinearity="leaky")


def test_old_style_dictionaries() -> None:
    assert (drawn(from_conf({"constant_conf": {"value": 10}})) == 10).all()
    assert abs(drawn(from_conf({"random_normal_conf": {"mean": 1.0, "std": 0.1}})).mean() - 1) < 0.01
    assert drawn(from_conf({"random_uniform_conf": {"min": 2, "max": 3}})).min() >= 2
    with pytest.raises(ConfigError, match='"constant_conf"'):
        from_conf({"constant_cnf": {}})


def test_regularizers() -> None:
    assert regularizers.l1_l2(0.1, 0.2) == regularizers.Regularizer(0.1, 0.2)
    assert regularizers.l1() == regularizers.Regularizer(0.01, 0) and regularizers.l2(0.5) == regularizers.Regularizer(0, 0.5)


# Variables ----------------------------------------------------------------------------------------------------------


def test_a_variable_is_declared_with_all_options(run: Any) -> None:
    def body() -> Any:
        with scope.using(namespace=("a", "b")):
            return get_variable("w", [4, 2], float64, initializers.ones_initializer(), regularizers.l1_l2(0.1, 0.2), False, random_seed=5)

    assert (run(body) == np.ones((4, 2))).all()
    variable = run.job.variables["a-b-w"]
    assert (variable.l1, variable.l2, variable.trainable, variable.sbp) == (0.1, 0.2, False, (B,))
    assert str(variable.type) == "float64[4,2]"


def test_the_job_has_a_default_type(run: Any) -> None:
    assert run(lambda: get_variable("w", (2,), None, initializers.ones_initializer()), default_dtype=float64).dtype == np.float64
    assert run(lambda: get_variable("w", (2,), initializer=initializers.ones_initializer()), default_dtype=float64).dtype == np.float32


def test_seed_of_the_job_or_of_the_variable(run: Any) -> None:
    normal = initializers.random_normal_initializer()
    values = [
        run(lambda s=random_seed: get_variable("w", (3,), initializer=normal, random_seed=s), seed=seed)
        for seed, random_seed in ((0, None), (1, None), (7, 1), (8, 1))
    ]
    assert (values[0] != values[1]).all() and (values[1] != values[2]).all() and (values[2] == values[3]).all()


def test_reuse(run: Any) -> None:
    zeros = initializers.zeros_initializer()

    def body(**options: Any) -> Any:
        get_variable("w", (3,), initializer=zeros)
        return get_variable("w", **options)

    assert run(lambda: body(shape=(3,))).shape == (3,) and run(body).shape == (3,)
    with pytest.raises(DuplicateNameError, match=r"'w' at test_initializers\.py:\d+"):
        run(lambda: body(shape=(3,), reuse=False))
    with pytest.raises(ShapeError, match=r"shape \(4,\).*float32\[3\]"):
        run(lambda: body(shape=(4,)))


def test_get_variable_checks_its_arguments(run: Any) -> None:
    with pytest.raises(ConfigError, match=r"'w'.*initializer"):
        run(lambda: get_variable("w", (3,)))
    config = function_config()
    config.default_initializer_conf({"constant_conf": {"value": 4}})
    assert run(lambda: get_variable("w", (3,)), config=config).tolist() == [4, 4, 4]
    for shape in (None, 3, (0, 2), (2.0,)):
        with pytest.raises(AssertionError, match="shape"):
            run(lambda s=shape: get_variable("w", s, initializer=initializers.ones_initializer()))
    with pytest.raises(JobError, match="outside a job"):
        get_variable("w", (3,))


def test_storage(run: Any) -> None:
    ones = initializers.ones_initializer()
    grid = Placement("cpu", (0, 1, 2, 3), (2, 2))

    def sbp(*arguments: Any, placement: Placement = grid, **options: Any) -> Any:
        run(lambda: get_variable("w", (4, 8), float32, ones, None, True, None, None, *arguments, **options), placement=placement)
        return run.job.variables["w"].sbp

    split = distribute.split
    assert sbp(distribute=split(1)) == (S(1), S(1)) and sbp(distribute=split(-1), placement=Placement("cpu", (0, 1))) == (S(1),)
    assert sbp(parallel_distribution=["S(0)", "B"]) == (S(0), B) and sbp([distribute.broadcast(), split(1)]) == (B, S(1))
    assert sbp(split(0), placement=Placement("cpu", (0, 1))) == (S(0),), "v0.2 had distribute as the ninth argument"
    assert sbp(distribute=distribute.auto()) == (B, B)
    with pytest.raises(ValueError, match="axis 2"):
        sbp(distribute=split(2))
    with pytest.raises(SbpError, match="2 mesh dimensions"):
        sbp(parallel_distribution=["B", "B", "B"])
    with pytest.raises(SbpError, match='write "S\\(0\\)"'):
        sbp(parallel_distribution=["X", "B"])
    with pytest.raises(ArgumentError, match="not both"):
        sbp(["B", "B"], split(0))


def test_variable_of(run: Any) -> None:
    ones = initializers.ones_initializer()
    assert run(lambda: variable_of(get_variable("w", (3,), initializer=ones))) == "w"
    assert run(lambda: variable_of(get_variable("w", (3,), initializer=ones) + 1)) is None
