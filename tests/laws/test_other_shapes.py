"""Jobs and graphs called with other shapes are compiled again, on the same variables, up to a maximum number of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((20, 6)), RANDOM.integers(0, 3, 20)
#: two epochs of 20 samples in batches of 8, the last of them short
BATCHES = [slice(0, 8), slice(8, 16), slice(16, 20)] * 2

F = flow.nn.functional


class Net(flow.nn.Module):
    def __init__(self, options: Any) -> None:
        super().__init__()
        flow.manual_seed(0)
        self.first = flow.nn.Linear(6, 5)
        self.norm = flow.nn.BatchNorm1d(5)
        self.last = flow.nn.Linear(5, 3)
        self.to(flow.float64)
        if options:
            self.to_global(**options)

    def forward(self, x: Any) -> Any:
        return self.last(F.dropout(self.norm(self.first(x)), 0.2))


class Training(flow.nn.Graph):
    def __init__(self, net: Net, optimizer: Any, schedule: Any) -> None:
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


def trained(n: int, as_graph: bool) -> tuple[list[float], list[Any]]:
    """Return the losses and the final state."""
    where = flow.placement("cpu", list(range(n))) if n else None
    whole, split = ({"placement": where, "sbp": how} if n else {} for how in (flow.sbp.broadcast, flow.sbp.split(0)))
    net = Net(whole)
    optimizer = flow.optim.Adam(net.parameters(), lr=0.05)
    schedule = flow.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    graph = Training(net, optimizer, schedule)
    losses = []
    for rows in BATCHES:
        x, y = (flow.tensor(array[rows], **split) for array in (X, Y))
        if as_graph:
            loss = graph(x, y)
        else:
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        losses.append(float(loss.numpy()))
    return losses, [x.numpy() for _, x in sorted(net.state_dict().items())]


@pytest.mark.parametrize("n", [0, 1, 2, pytest.param(3, marks=pytest.mark.full)])
def test_a_graph_trains_on_short_batches_like_modules(n: int) -> None:
    """n = 0: local tensors."""

    def program(rank: int) -> None:
        (losses, state), (expected, other) = trained(n, True), trained(n, False)
        np.testing.assert_allclose(losses, expected, rtol=1e-9)
        for mine, theirs in zip(state, other, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)

    on_ranks(max(n, 1), program)


class Doubled(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.builds = [0]

    def build(self, x: Any, *more: Any) -> Any:
        self.builds[0] += 1
        return x + x


def test_least_recently_used_programs_are_dropped(fresh: None, capfd: pytest.CaptureFixture[str]) -> None:
    flow.config.compiled_shapes(3)
    graph = Doubled()

    def call(rows: int) -> int:
        assert graph(flow.ones(rows, 2)).shape == (rows, 2)
        return graph.builds[0]

    assert [call(rows) for rows in (1, 2, 3, 1, 2, 3, 1)] == [1, 2, 3, 3, 3, 3, 3]
    assert capfd.readouterr().err == ""
    assert [call(rows) for rows in (4, 1, 4, 3, 2, 5)] == [4, 4, 4, 4, 5, 6]  # 2 was the least recently used
    notices = capfd.readouterr().err
    assert notices.count("\n") == 1 and all(fact in notices for fact in ("Doubled_0", "more than 3 argument shapes", "compiled_shapes"))


def test_other_types_raise() -> None:
    graph = Doubled()
    graph(flow.ones(2, 2))
    with pytest.raises(flow.errors.JobError, match=r"test_other_shapes.py:\d+.*input0 must be float32\[2,2\].*is int64\[2,2\]"):
        graph(flow.ones(2, 2, dtype=flow.int64))
    with pytest.raises(flow.errors.JobError, match="must have the structure of the first call"):
        graph(flow.ones(2, 2), flow.ones(2, 2))
    assert graph(flow.ones(3)).shape == (3,)


@pytest.mark.parametrize("devices", [1, 2])
def test_short_parts_of_devices_are_compiled(fresh: None, capfd: pytest.CaptureFixture[str], devices: int) -> None:
    """The last short batch, where the legacy interface allows one: a list with a part for each device."""
    flow.config.cpu_device_num(devices)
    flow.config.compiled_shapes(2)
    built = []

    @flow.global_function()
    def doubled(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        built.append(x.shape)
        return x + x

    def call(rows: int) -> int:
        parts = [RANDOM.standard_normal((rows, 3)).astype(np.float32) for _ in range(devices)]
        for part, result in zip(parts, doubled(parts), strict=True):
            np.testing.assert_array_equal(result, 2 * part)
        return len(built)

    assert [call(rows) for rows in (4, 1, 4, 1, 4)] == [1, 2, 2, 2, 2]
    assert "shapes" not in capfd.readouterr().err
    assert [call(rows) for rows in (2, 4, 1)] == [3, 3, 4]
    notices = capfd.readouterr().err
    assert notices.count("argument shapes") == 1 and "doubled" in notices and "more than 2" in notices
