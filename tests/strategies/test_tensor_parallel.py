"""Which layers are split by columns, which by rows, and what happens to names that fit nothing."""

from __future__ import annotations

import re
from typing import Any

import gpt
import numpy as np
import pytest
import trained

import jobflow as flow
import jobflow.typing as tp
from jobflow import strategies as st
from jobflow.core.errors import ConfigError


def storage(strategy: Any, body: Any, shape: tuple[int, ...], devices: int = 2, dtype: Any = flow.float64) -> dict[str, str]:
    """Return the storage of a body's variables; check that the body computes the result of one device."""
    results = []
    for count, each in ((1, None), (devices, strategy)):
        trained.begin(count)

        @flow.global_function(function_config=trained.config_of(each))
        def job(x: tp.Numpy.Placeholder(shape, dtype=dtype)) -> tp.Numpy:
            return body(x)

        argument = np.arange(np.prod(shape)).reshape(shape) % 7
        results.append(job(argument.astype(dtype.numpy)))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9)
    return trained.stored()


def dense(x: Any, units: int, name: str, activation: Any = None) -> Any:
    return flow.layers.dense(x, units, activation=activation, kernel_initializer=trained.normal(), name=name)


def test_a_pair_is_split_by_columns_and_rows() -> None:
    layouts = storage(st.tensor_parallel(), lambda x: flow.math.reduce_max(dense(dense(x, 8, "up", flow.nn.relu), 6, "down"), axis=1), (4, 6))
    assert layouts == {"up-weight": "S(0)", "up-bias": "S(0)", "down-weight": "S(1)", "down-bias": "B"}


def test_a_layer_whose_outputs_are_needed_together_stays_whole() -> None:
    """The largest of each row is not known to who has half of it."""
    layouts = storage(st.tensor_parallel(), lambda x: flow.math.argmax(dense(x, 8, "only"), axis=1), (4, 6))
    assert set(layouts.values()) == {"B"}


def test_too_few_columns_for_the_ranks() -> None:
    layouts = storage(st.tensor_parallel(), lambda x: dense(dense(x, 3, "up", flow.nn.relu), 6, "down"), (4, 6), devices=4)
    assert layouts["up-weight"] == layouts["down-weight"].replace("S(0)", "B") == "B"


def test_heads_that_do_not_divide_stay_together() -> None:
    """Four heads on three ranks: attention is whole, the layers behind it are split."""
    trained.gpt_curve("tp", 3, 1)
    layouts = trained.stored("weight")
    assert layouts["block0-qkv-weight"] == layouts["block0-out-weight"] == "B"
    assert (layouts["block0-up-weight"], layouts["block0-down-weight"], layouts["head-weight"]) == ("S(0)", "S(1)", "S(0)")


def test_a_gpt_is_split_as_in_megatron() -> None:
    trained.gpt_curve("tp", 4, 1)
    block = {name.removeprefix("block0-"): sbp for name, sbp in trained.stored().items() if name.startswith("block0-")}
    assert block == {
        "norm1-gamma": "B",
        "norm1-beta": "B",
        "qkv-weight": "S(0)",
        "qkv-bias": "S(0)",
        "out-weight": "S(1)",
        "out-bias": "B",
        "norm2-gamma": "B",
        "norm2-beta": "B",
        "up-weight": "S(0)",
        "up-bias": "S(0)",
        "down-weight": "S(1)",
        "down-bias": "B",
    }


def test_convolutions_pair_by_channels() -> None:
    def body(x: Any) -> Any:
        options = {"kernel_size": 3, "padding": "SAME", "kernel_initializer": trained.normal()}
        first = flow.layers.conv2d(x, 8, activation=flow.nn.relu, name="conv1", **options)
        second = flow.layers.conv2d(flow.nn.max_pool2d(first, 2, 2, "VALID"), 4, name="conv2", **options)
        return flow.math.reduce_max(second, axis=1)

    layouts = storage(st.tensor_parallel(), body, (2, 3, 8, 8))
    assert layouts == {"conv1-weight": "S(0)", "conv1-bias": "S(0)", "conv2-weight": "S(1)", "conv2-bias": "B"}


def looked_up(ids: Any) -> Any:
    table = flow.get_variable("table", (64, 8), flow.float64, trained.normal())
    return flow.math.reduce_max(flow.gather(table, ids), axis=1)


@pytest.mark.parametrize(("strategy", "expected"), [(st.tensor_parallel(), "B"), (st.tensor_parallel(large=512), "S(0)")])
def test_large_tables_are_split_along_the_vocabulary(strategy: st.Strategy, expected: str) -> None:
    assert storage(strategy, looked_up, (6,), dtype=flow.int32) == {"table": expected}


def test_a_table_by_name() -> None:
    assert storage(st.tensor_parallel(vocabulary="table"), looked_up, (6,), dtype=flow.int32) == {"table": "S(0)"}
    assert storage(st.tensor_parallel(columns="table"), looked_up, (6,), dtype=flow.int32) == {"table": "S(1)"}


def test_names_leave_all_others_whole() -> None:
    strategy = st.tensor_parallel(columns="block*-up-weight", rows=[flow.filters.AllOf((re.compile("down-weight$"), flow.filters.Not("up*")))])
    trained.begin(2)
    job = named_gpt(strategy)
    words = np.zeros((trained.GPT.batch, trained.GPT.length), np.int32)
    job(words, words)
    split = {name.partition("-")[2] for name, sbp in trained.stored().items() if sbp != "B"}
    assert split == {"up-weight", "up-bias", "down-weight"}


def named_gpt(strategy: st.Strategy) -> Any:
    config = flow.function_config()
    config.strategy(strategy)
    size = trained.GPT
    Words = tp.Numpy.Placeholder((size.batch, size.length), dtype=flow.int32)

    @flow.global_function("train", config)
    def job(words: Words, following: Words) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(following, [-1]), gpt.gpt(words, size))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    return job


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            st.tensor_parallel(columns="hidden-*"),
            'no variable of job train_mlp matches "hidden-*"; its variables are up-weight, up-bias, down-weight',
        ),
        (st.tensor_parallel(vocabulary="up-weight"), 'variable "up-weight" float64[64,32], but no operation supports this split'),
        (st.tensor_parallel(columns="*-bias"), '"*-bias" matches variable "up-bias" float64[64], but no operation supports this split'),
    ],
)
def test_names_that_do_not_fit(strategy: st.Strategy, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trained.mlp_curve(strategy, 2, 1)
    assert message in str(caught.value)
