"""Runtime assertions of indices, labels and rows name the rejected element.  All ranks raise the same error, and the step has no effect."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp

ROWS, CLASSES = 8, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((ROWS, 6)).astype(np.float32)
Y = RANDOM.integers(0, CLASSES, ROWS).astype(np.int32)
NOTHING = np.zeros(ROWS, np.int32)
WRONG = np.array([0] * (ROWS - 2) + [9, 0], np.int32)  # the wrong label is in row 6, on the last rank

F = flow.nn.functional


# ------------------------------------------------------------------------------- jobs


def declare(steps: int, view: str) -> Callable[..., Any]:
    config = flow.function_config()
    if view == "mirrored":
        config.default_logical_view(flow.scope.mirrored_view())
    if steps > 1:
        config.train.num_gradient_accumulation_steps(steps)

    @flow.global_function(type="train", function_config=config)
    def train(
        x: tp.Numpy.Placeholder((ROWS, 6)), y: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32), add: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32)
    ) -> tp.Numpy:
        x = flow.layers.batch_normalization(x, axis=1, name="norm")
        x = flow.nn.dropout(x, rate=0.3)
        x = flow.layers.dense(x, CLASSES, kernel_initializer=flow.random_normal_initializer(), name="dense")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y + add, x)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    return train


def holder_of_row_6(ranks: int, steps: int) -> int:
    """Return the rank with row 6; each microbatch of a step is split over all ranks."""
    rows = ROWS // steps
    return 6 % rows // (rows // max(ranks, 1))


def variables() -> dict[str, Any]:
    return {name: np.array(value.numpy()) for name, value in flow.get_all_variables().items()}


def losses(devices: int, steps: int, view: str, refused: bool) -> list[Any]:
    """Return the losses of four steps; a rejected step is run between the second and the third one."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    train = declare(steps, view)
    results = [train(X, Y, NOTHING) for _ in range(2)]
    if refused:
        before = variables()
        label = Y[6] + 9
        with pytest.raises(ValueError, match=rf"sparse_softmax_cross_entropy at test_refused_numbers.py:\d+: label {label} at \[6\]") as caught:
            train(X, Y, WRONG)
        assert "[0, 3)" in str(caught.value)
        assert (f"rank {holder_of_row_6(devices, steps)}" in str(caught.value)) == (devices > 1)
        after = variables()
        assert before.keys() == after.keys() and len(before) > 8
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value, err_msg=name)
    return results + [train(X, Y, NOTHING) for _ in range(2)]


@pytest.mark.parametrize("view", ["consistent", "mirrored"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("devices", [1, 2, pytest.param(4, marks=pytest.mark.full)])
def test_a_rejected_step_of_a_job_has_no_effect(fresh: None, devices: int, steps: int, view: str) -> None:
    np.testing.assert_array_equal(losses(devices, steps, view, True), losses(devices, steps, view, False))


def test_arguments_are_rejected_before_the_run(fresh: None) -> None:
    @flow.global_function()
    def looked_up(table: tp.Numpy.Placeholder((5, 2)), ids: tp.Numpy.Placeholder((2, 2), dtype=flow.int32)) -> tp.Numpy:
        return flow.gather(table, ids) + flow.gather(table, ids + 1)

    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(looked_up(table, np.array([[0, 3], [4, 7]]))[1], [table[4], [0, 0]])  # as in the legacy interface
    with pytest.raises(ValueError, match=r'"ids" holds -2 at \[1, 0\]; gather at test_refused_numbers.py:\d+'):
        looked_up(table, np.array([[0, 3], [-2, 1]]))

    @flow.global_function()
    def in_the_body(table: tp.Numpy.Placeholder((5, 2)), ids: tp.Numpy.Placeholder((2, 2), dtype=flow.int32)) -> tp.Numpy:
        return flow.gather(table, ids - 1)

    with pytest.raises(ValueError, match=r"gather at test_refused_numbers.py:\d+: index -1 at \[0, 1\]"):
        in_the_body(table, np.array([[1, 0], [1, 1]]))


# ----------------------------------------------------------------- eager tensors and graphs


def layouts(n: int) -> list[Any]:
    where = flow.placement("cpu", list(range(n)))
    return [{"placement": where, "sbp": how} for how in (flow.sbp.broadcast, flow.sbp.split(0))]


class Plain(flow.nn.Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = [function]

    def build(self, *arguments: Any) -> Any:
        return self.function[0](*arguments)


def lookups() -> list[tuple[Callable[..., Any], Any, Any, type[Exception], str]]:
    """Return rows (function of a table and ids, legal ids, ids with a wrong one, the error, a pattern of its message)."""
    right, wrong = np.array([0, -5, 4]), np.array([0, 2, 5])
    rows, no_rows = np.array([0, 3, 4]), np.array([0, 2, -1])
    return [
        (lambda t, i: t[i], right, wrong, IndexError, r"index 5 at \[2\]"),
        (lambda t, i: t[:, i[0:1] * 0, i], np.array([0, 3, -4]), np.array([0, 3, -7]), IndexError, r"index -7 at \[2\]"),
        (lambda t, i: flow.index_select(t, 0, i), right, wrong, IndexError, r"index_select at .*: index 5 at \[2\]"),
        (lambda t, i: flow.take(t, i), np.array([79, 0, -80]), np.array([0, 80, 3]), IndexError, r"take at .*: index 80 at \[1\]"),
        (
            lambda t, i: flow.gather(t[:3, :, 0], 1, i),
            np.array([[3], [0], [-4]]),
            np.array([[0], [4], [0]]),
            IndexError,
            r"gather at .*: index 4 at \[1, 0\]",
        ),
        (
            lambda t, i: flow.scatter(t[:3, :, 0], 1, i, 2.0),
            np.array([[3], [0], [1]]),
            np.array([[0], [4], [0]]),
            IndexError,
            r"scatter at .*: index 4 at \[1, 0\]",
        ),
        (lambda t, i: t.index_fill(0, i, 1.0), right, wrong, IndexError, r"index_fill at .*: index 5 at \[2"),
        (lambda t, i: t[:, :, 0].index_add(0, i, t[:3, :, 1]), right, wrong, IndexError, r"index_add at .*: index 5 at \[2\]"),
        (lambda t, i: F.embedding(i, t[:, :, 0]), rows, no_rows, ValueError, r"embedding at .*: row -1 at \[2\]"),
        (lambda t, i: F.one_hot(i, 5), rows, np.array([0, 5, 1]), ValueError, r"one_hot at .*: label 5 at \[1\]"),
        (
            lambda t, i: F.cross_entropy(t[:3, :, 0], i),
            np.array([0, 3, -100]),
            np.array([0, 3, 4]),
            ValueError,
            r"cross_entropy at .*: label 4 at \[2\]",
        ),
        (
            lambda t, i: F.nll_loss(t[:3], i, ignore_index=1),
            np.array([[0] * 4] * 3),
            np.array([[0] * 4] * 2 + [[0, 1, 7, 0]]),
            ValueError,
            r"nll_loss at .*: label 7 at \[2, 2\]",
        ),
    ]


@pytest.mark.parametrize("way", ["at once", "graph"])
@pytest.mark.parametrize("n", [0, 1, 2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("case", range(len(lookups())))
def test_lookups_reject_indices_out_of_range(case: int, n: int, way: str) -> None:
    """n = 0: local tensors.  Every rank raises the same error and continues."""
    function, right, wrong, error, words = lookups()[case]
    table = np.arange(80, dtype=np.float32).reshape(5, 4, 4)

    def program(rank: int) -> list[Any]:
        results = []
        for options in layouts(n) if n else [{}]:
            t, good, bad = (flow.tensor(array, **options) for array in (table, right, wrong))
            called = function if way == "at once" else Plain(function)
            first = called(t, good).numpy()
            with pytest.raises(error, match=words) as caught:
                called(t, bad)
            assert re.search(r"at test_refused_numbers.py:\d+: ", str(caught.value))
            again = called(t, good).numpy()
            np.testing.assert_array_equal(first, again)
            results += [str(caught.value), first.tolist()]
        return results

    ranks = on_ranks(max(n, 1), program)
    assert all(results == ranks[0] for results in ranks)


class Net(flow.nn.Module):
    def __init__(self, options: Any) -> None:
        super().__init__()
        flow.manual_seed(0)
        self.table = flow.nn.Parameter(flow.randn(5, 6, **options))
        self.norm = flow.nn.BatchNorm1d(6)
        if options:
            self.norm.to_global(**options)

    def forward(self, ids: Any) -> Any:
        return F.dropout(self.norm(F.embedding(ids, self.table)), 0.3)


class Training(flow.nn.Graph):
    def __init__(self, net: Net, steps: int) -> None:
        super().__init__()
        self.net = net
        self.add_optimizer(flow.optim.Adam(net.parameters(), lr=0.1))
        if steps > 1:
            self.config.set_gradient_accumulation_steps(steps)

    def build(self, ids: Any, labels: Any) -> Any:
        loss = F.cross_entropy(self.net(ids), labels)
        loss.backward()
        return loss


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("n", [0, 1, 2, pytest.param(4, marks=pytest.mark.full)])
def test_a_rejected_step_of_a_graph_has_no_effect(n: int, steps: int) -> None:
    ids, labels = RANDOM.integers(0, 5, ROWS), RANDOM.integers(0, 6, ROWS)

    def program(rank: int, refused: bool) -> list[Any]:
        whole, split = ({}, {}) if not n else layouts(n)
        net = Net(whole)
        graph = Training(net, steps)
        good, wrong = (flow.tensor(array, **split) for array in (ids, np.where(np.arange(ROWS) == 6, 5, ids)))
        target = flow.tensor(labels, **split)
        results = [graph(good, target).numpy().tolist() for _ in range(2)]
        if refused:
            before = {name: x.numpy().copy() for name, x in net.state_dict().items()}
            with pytest.raises(ValueError, match=r"embedding at test_refused_numbers.py:\d+: row 5 at \[6\]") as caught:
                graph(wrong, target)
            assert (f"rank {holder_of_row_6(n, steps)}" in str(caught.value)) == (n > 1)
            for name, x in net.state_dict().items():
                np.testing.assert_array_equal(x.numpy(), before[name], err_msg=name)
        return results + [graph(good, target).numpy().tolist() for _ in range(2)]

    count = max(n, 1)
    assert on_ranks(count, program, True) == on_ranks(count, program, False)


def test_the_ranks_of_mpiexec_raise_the_same_error_and_continue(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "refused.py"
    for client in ("single", "multi"):
        done = run(program, client, tmp_path, ranks=2, limit=300)
        assert done.code == 0, done.err
        messages = sorted(path.read_text() for path in tmp_path.glob(f"{client}*"))
        assert len(messages) == (1 if client == "single" else 2) and len(set(messages)) == 1
        assert re.search(r"label 12 at \[7\] .*rank 1", messages[0]) and "same losses" in messages[0], messages[0]
