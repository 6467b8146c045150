"""Updates on an imitated GPU.

After every kind of write, a step with half-precision copies of weights equals a step that casts them.  Clipped steps equal those of CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_cupy
import fake_nccl
import fake_nvrtc
import fake_streams
import host_cuda
import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn, scope
from jobflow.compiler.rank import fuse
from jobflow.engine.session import current_session
from jobflow.ops.op import apply
from jobflow.ops.reduce import SquareSum
from jobflow.plan.plan import Compute
from jobflow.program.commands import executors_of

pytestmark = [pytest.mark.full, pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no g++")]

X = np.random.default_rng(0).uniform(-1, 1, (4, 8)).astype(np.float32)
GOOD, BAD = np.array([0, 1, -1, 0], np.int32), np.array([0, 1, 0, 4], np.int32)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = fake_streams.current.device
    with fake_nvrtc.installed(monkeypatch):
        yield
    fake_streams.current.device = before
    fake_streams.current.streams.clear()


@contextmanager
def session(gpus: int = 1) -> Iterator[None]:
    with scope.using(root=scope.Root()):
        if gpus:
            flow.config.gpu_device_num(gpus)
        yield
        flow.clear_default_session()


@contextmanager
def only_casts() -> Iterator[None]:
    """Compile programs without shadows in this context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse, "add_shadows", lambda program: program)
        yield


# -------------------------------------------------------------------- graphs


class Training(nn.Graph):
    """Steps of AdamW in mixed precision."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.AdamW(model.parameters(), lr=0.1))

    def build(self, x: Any) -> Any:
        with flow.autocast("cuda", dtype=flow.float16):
            loss = self.model(x).square().mean()
        loss.backward()
        return loss


class Averaging(nn.Graph):
    """A program that overwrites a weight of another graph."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        with flow.no_grad():
            self.model[0].weight.mul_(0.5)
        return x


def view_write(model: Any) -> None:
    model[0].weight.view(-1)[3:9] = 0.25


def write_by_data(model: Any) -> None:
    model[0].weight.data.add_(0.125)


def replace_data(model: Any) -> None:
    model[0].weight.data = flow.full((8, 8), 0.0625, device="cuda")


def shared_data(model: Any) -> Any:
    model[0].weight.data = shared = flow.full((8, 8), 0.5, device="cuda")
    return lambda: shared.mul_(0.5)


def eager_step(model: Any) -> None:
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = flow.ones_like(p)
    optimizer.step()


def load(model: Any) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def other_library(model: Any) -> Callable[[], None]:
    """Export a weight, and return a function that writes to it without a call of jobflow."""
    weight = model[0].weight.detach()
    assert weight.__cuda_array_interface__
    array = weight.array
    return lambda: array.fill(0.25)


def other_graph(model: Any) -> None:
    Averaging(model)(flow.ones(2, device="cuda"))


@flow.no_grad()
def copy(model: Any) -> None:
    model[2].weight.copy_(flow.full((3, 8), 0.1, device="cuda"))


WRITES = {f.__name__: f for f in (copy, view_write, write_by_data, load, eager_step, other_graph, replace_data, other_library, shared_data)}


def graph_losses() -> dict[str, list[float]]:
    flow.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to("cuda")
    graph, x = Training(model), flow.tensor(X, device="cuda")
    losses = {"start": [float(graph(x)) for _ in range(3)]}
    for name, write in WRITES.items():
        with flow.no_grad():
            again = write(model)
        losses[name] = [float(graph(x)) for _ in range(2)]
        if again is not None:
            again()
            losses[name].append(float(graph(x)))
    return losses


def test_graph_reads_new_weights_after_every_kind_of_write(gpu: None) -> None:
    with scope.using(root=scope.Root()), only_casts():
        expected = graph_losses()
    with scope.using(root=scope.Root()):
        losses = graph_losses()
    for name, values in expected.items():
        assert losses[name] == values, name


# -------------------------------------------------------------------- jobs


def job_losses() -> dict[str, list[Any]]:
    config = flow.function_config()
    config.mixed_precision(flow.float16)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((4, 8)), y: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        h = flow.layers.dense(x, 8, activation=flow.nn.relu, kernel_initializer=flow.random_normal_initializer(), name="a")
        logits = flow.layers.dense(h, 3, kernel_initializer=flow.random_normal_initializer(), name="b")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y + 1, logits)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        policy = flow.optimizer.loss_scale.dynamic_loss_scale(increment_period=2)
        flow.optimizer.Adam(rate, loss_scale_policy=policy).minimize(loss)
        return loss

    @flow.global_function("train")
    def decay(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
        loss = flow.layers.dense(x, 8, kernel_initializer=flow.random_normal_initializer(), name="a")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    def saved() -> dict[str, Any]:
        return {name: np.array(value.numpy()) for name, value in flow.get_all_variables().items()}

    losses: dict[str, list[Any]] = {}

    def steps(name: str, count: int = 2) -> None:
        losses[name] = [train(X, GOOD).tolist() for _ in range(count)]

    steps("start", 3)
    before = saved()
    steps("more")
    flow.load_variables(before)
    steps("load_variables")
    decay(X)
    steps("other job")
    with pytest.raises(ValueError, match="label 5"):
        train(X, BAD)
    steps("refused step")
    losses["infinite"] = [train(X * np.float32(1e30), GOOD).tolist()]
    steps("skipped step")
    return losses


def test_job_reads_new_weights_after_loads_other_jobs_and_refused_steps(gpu: None) -> None:
    with session(), only_casts():
        expected = job_losses()
    with session():
        losses = job_losses()
        world = current_session().world
        assert world is not None
        train, _ = executors_of(world.ranks[0]).values()
        assert train.plan.shadows.keys() == {"a-weight", "a-bias", "b-weight", "b-bias"}
    for name, values in expected.items():
        np.testing.assert_array_equal(losses[name], values, err_msg=name)


# -------------------------------------------------------------------- several GPUs


def losses_of_ranks(mode: str) -> tuple[list[Any], list[int]]:
    """Return losses of a job on two GPUs, and the number of shadows of each."""
    config = flow.function_config()
    config.mixed_precision(flow.float16)
    if mode == "ZeRO":
        config.optimizer_placement_optimization_mode("distributed_split")
        config.optimizer_placement_optimization_threshold(16)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
        h = flow.layers.dense(x, 8, kernel_initializer=flow.random_normal_initializer(), name="a")
        loss = flow.layers.dense(h, 16, kernel_initializer=flow.random_normal_initializer(), name="b")
        clipping = flow.optimizer.grad_clipping.by_global_norm(0.5)
        flow.optimizer.AdamW(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), grad_clipping=clipping).minimize(flow.math.square(loss))
        return loss

    losses = [train(X).tolist() for _ in range(3)]
    before = {name: np.array(value.numpy()) for name, value in flow.get_all_variables().items()}
    losses += [train(X).tolist() for _ in range(2)]
    flow.load_variables(before)
    losses += [train(X).tolist() for _ in range(2)]
    world = current_session().world
    assert world is not None
    return losses, [len(next(iter(executors_of(rank).values())).plan.shadows) for rank in world.ranks]


@pytest.mark.parametrize("mode, shadows", [("replicated", 3), ("ZeRO", 1)])
def test_ranks_read_new_weights(mode: str, shadows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With ZeRO, weights are cast before they are gathered, except the bias that every rank stores."""
    with fake_nvrtc.installed(monkeypatch, fake_cupy.modules(2)):
        fake_nccl.install(tmp_path)
        with session(2), only_casts():
            expected, _ = losses_of_ranks(mode)
        with session(2):
            losses, counts = losses_of_ranks(mode)
    np.testing.assert_array_equal(losses, expected)
    assert counts == [shadows, shadows]


# -------------------------------------------------------------------- gradient clipping


def clipped_losses() -> tuple[list[Any], list[str]]:
    """Return losses of a job, and the operations of its update."""

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
        h = flow.layers.dense(x, 4, kernel_initializer=flow.random_normal_initializer(), name="a")  # four biases leave a gap before "b"
        loss = flow.layers.dense(h, 16, kernel_initializer=flow.random_normal_initializer(), name="b")
        clipping = flow.optimizer.grad_clipping.by_global_norm(0.5)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.AdamW(rate, weight_decay=0.1, grad_clipping=clipping).minimize(flow.math.square(loss))
        return loss

    losses = [train(X).tolist() for _ in range(4)]
    world = current_session().world
    assert world is not None
    (executor,) = executors_of(world.ranks[0]).values()
    return losses, [
        str(instruction.op) for instruction in executor.plan.instructions if isinstance(instruction, Compute) and instruction.phase == "update"
    ]


def test_clipping_reads_flat_gradients_but_no_gaps(gpu: None) -> None:
    with session(0):
        expected, _ = clipped_losses()
    with session():
        losses, update = clipped_losses()
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    assert sum(op.count("SquareSum") for op in update) == 2, update
    assert sum(op.count("ScaledUpdate") for op in update) == 1 and not any("Multiply" in op for op in update), update


def test_sum_of_squares_with_a_second_reader_remains(gpu: None) -> None:
    """A logged norm of one parameter is a second reader of a term of the global norm."""
    values = np.arange(16, dtype=np.float32)
    with session():

        @flow.global_function("predict")
        def norms(x: tp.Numpy.Placeholder((16,))) -> tp.Numpy:
            flat = x * 2.0
            first, second, third = (apply(SquareSum(), flow.slice(flat, [begin], [4])) for begin in (0, 4, 8))
            return (first + second + third) * 2.0 + second

        result = norms(values)
    assert float(result) == 2 * np.square(2 * values[:12]).sum() + np.square(2 * values[4:8]).sum()
