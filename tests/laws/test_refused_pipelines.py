"""A rejected microbatch of a pipeline with two stages leaves variables, counters and statistics unchanged on both stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp

ROWS, CLASSES, WORDS, PARTS = 8, 3, 5, 4
RANDOM = np.random.default_rng(1)
IDS = RANDOM.integers(0, WORDS, ROWS).astype(np.int32)
LABELS = RANDOM.integers(0, CLASSES, ROWS).astype(np.int32)


def with_wrong(array: Any, row: int, value: int) -> Any:
    changed = array.copy()
    changed[row] = value
    return changed


#: the wrong input, its row, its value, and a pattern of the error; the first stage reads ids, the second labels
WRONG = [
    ("ids", 0, -9, r"gather at test_refused_pipelines.py:\d+: index -9 at \[0.* \(on rank 0\)"),
    ("ids", 7, -9, r"gather at test_refused_pipelines.py:\d+: index -9 at \[.* \(on rank 0\)"),
    ("labels", 1, 7, r"sparse_softmax_cross_entropy at test_refused_pipelines.py:\d+: label 7 at \[.* \(on rank 1\)"),
    ("labels", 6, 7, r"sparse_softmax_cross_entropy at test_refused_pipelines.py:\d+: label 7 at \[.* \(on rank 1\)"),
]


def declare(schedule: str) -> Callable[..., Any]:
    config = flow.function_config()
    config.strategy(flow.strategies.pipeline(2, microbatches=PARTS, cuts=["out-*"], schedule=schedule))

    @flow.global_function("train", config)
    def train(
        ids: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32),
        labels: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32),
        add: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32),
    ) -> tp.Numpy:
        table = flow.get_variable("table", shape=(WORDS, 6), initializer=flow.random_normal_initializer())
        x = flow.gather(table, ids + add)
        x = flow.layers.batch_normalization(x, axis=1, name="norm")
        x = flow.nn.dropout(x, rate=0.3)
        x = flow.layers.dense(x, 6, kernel_initializer=flow.random_normal_initializer(), name="up")
        x = flow.layers.dense(x, CLASSES, kernel_initializer=flow.random_normal_initializer(), name="out")
        x = flow.nn.dropout(x, rate=0.1)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels + add - add, x)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([2], [0.1, 0.05])).minimize(loss)
        return loss

    return train


def losses(schedule: str, wrong: tuple[str, int, int, str] | None) -> list[Any]:
    """Return the losses of four steps and the final variables; a rejected step is run between the second and the third one."""
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    train, nothing = declare(schedule), np.zeros(ROWS, np.int32)
    results = [train(IDS, LABELS, nothing) for _ in range(2)]
    if wrong is not None:
        before = {name: np.array(value.numpy()) for name, value in flow.get_all_variables().items()}
        what, row, value, words = wrong
        batch = {"ids": IDS, "labels": LABELS}
        batch[what] = with_wrong(batch[what], row, value)
        with pytest.raises(ValueError, match=words):
            train(batch["ids"], batch["labels"], nothing)
        after = flow.get_all_variables()
        assert before.keys() == after.keys() and len(before) > 12
        for name, array in before.items():
            np.testing.assert_array_equal(after[name].numpy(), array, err_msg=name)
    results += [train(IDS, LABELS, nothing) for _ in range(2)]
    return results + [value.numpy() for _, value in sorted(flow.get_all_variables().items())]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong[0]} of row {wrong[1]}")
@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("gpipe", marks=pytest.mark.full)])
def test_a_rejected_step_of_a_pipeline_has_no_effect(fresh: None, schedule: str, wrong: Any) -> None:
    for left, right in zip(losses(schedule, wrong), losses(schedule, None), strict=True):
        np.testing.assert_array_equal(left, right)


# ------------------------------------------------------------------------------- graphs


class First(flow.nn.Module):
    def __init__(self, where: Any) -> None:
        super().__init__()
        self.embedding, self.norm = flow.nn.Embedding(WORDS, 6), flow.nn.BatchNorm1d(6)
        self.to_global(placement=where, sbp=flow.sbp.broadcast)

    def forward(self, ids: Any) -> Any:
        return flow.nn.functional.dropout(self.norm(self.embedding(ids)), 0.3)


class Second(flow.nn.Module):
    def __init__(self, where: Any) -> None:
        super().__init__()
        self.norm, self.out = flow.nn.BatchNorm1d(6), flow.nn.Linear(6, CLASSES)
        self.to_global(placement=where, sbp=flow.sbp.broadcast)

    def forward(self, x: Any) -> Any:
        return self.out(self.norm(x))


class Training(flow.nn.Graph):
    def __init__(self, places: Any) -> None:
        super().__init__()
        flow.manual_seed(0)
        self.first, self.second, self.places = First(places[0]), Second(places[1]), places
        self.first.to(flow.nn.graph.GraphModule).set_stage(0, places[0])
        self.second.to(flow.nn.graph.GraphModule).set_stage(1, places[1])
        self.add_optimizer(flow.optim.Adam([*self.first.parameters(), *self.second.parameters()], lr=0.1))
        self.config.set_gradient_accumulation_steps(PARTS)

    def build(self, ids: Any, labels: Any) -> Any:
        x = self.first(ids).to_global(placement=self.places[1], sbp=flow.sbp.broadcast)
        loss = flow.nn.functional.cross_entropy(self.second(x), labels)
        loss.backward()
        return loss


def trained(rank: int, wrong: tuple[str, int, int] | None) -> list[Any]:
    """Return the losses of four steps and the modules' state; a rejected step is run between the second and the third one."""
    places = [flow.placement("cpu", [i]) for i in range(2)]
    graph = Training(places)

    def step(ids: Any, labels: Any) -> Any:
        pairs = zip((ids, labels), places, strict=True)
        return graph(*(flow.tensor(array, placement=where, sbp=flow.sbp.broadcast) for array, where in pairs))

    def held() -> list[Any]:
        parts = (graph.first, graph.second)
        return [x.to_global(placement=flow.placement("cpu", [0, 1])).numpy().tolist() for part in parts for x in part.state_dict().values()]

    def loss() -> Any:
        return step(IDS, LABELS).to_global(placement=flow.placement("cpu", [0, 1])).numpy().tolist()

    results = [loss(), loss()]
    if wrong is not None:
        before = held()
        what, row, value = wrong
        batch = {"ids": IDS, "labels": LABELS}
        batch[what] = with_wrong(batch[what], row, value)
        words = (
            rf"{'embedding' if what == 'ids' else 'cross_entropy'} at test_refused_pipelines.py:\d+: .*{value} at .*rank {int(what == 'labels')}\)"
        )
        with pytest.raises(ValueError, match=words):
            step(batch["ids"], batch["labels"])
        assert held() == before
    return [*results, loss(), loss(), held()]


@pytest.mark.parametrize(
    "wrong", [("ids", 0, 9), ("ids", 7, -9), ("labels", 1, 7), ("labels", 6, 7)], ids=lambda wrong: f"{wrong[0]} of row {wrong[1]}"
)
def test_a_rejected_step_of_a_pipelined_graph_has_no_effect(wrong: Any) -> None:
    assert on_ranks(2, trained, wrong) == on_ranks(2, trained, None)
