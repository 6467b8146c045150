"""`graph.config.strategy(...)`: the losses of a graph equal those of one rank, and those of the same model as a job, under each strategy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow import optimizer as legacy
from jobflow import strategies
from jobflow.core.errors import ConfigError, JobError, JobflowError
from jobflow.engine.placements import placement, sbp
from jobflow.nn.graph import Graph, GraphModule
from jobflow.nn.modules.module import Module
from jobflow.optim.optimizers import SGD

ROWS, STEPS = 12, 4
S0 = sbp.split(0)
DRAW = np.random.RandomState(5).standard_normal
SHAPES = {"w0": (6, 16), "w1": (16, 8), "w2": (8, 4)}
FIRST = {name: (0.5 * DRAW(shape)).astype(np.float32) for name, shape in SHAPES.items()}
BATCHES = [(DRAW((ROWS, 6)).astype(np.float32), DRAW((ROWS, 4)).astype(np.float32)) for _ in range(STEPS)]

#: per case: ranks, the strategy, and in how many parts the batch passes beside what the strategy says
CASES: dict[str, tuple[int, Any, int]] = {
    "alone": (1, strategies.data_parallel(), 1),
    "data": (2, strategies.data_parallel(), 1),
    "data of 4": (4, strategies.data_parallel(), 1),
    "zero 1": (2, strategies.zero(1, least=1), 1),
    "zero 2": (4, strategies.zero(2, least=1), 1),
    "zero 3": (2, strategies.zero(3, least=1), 2),
    "tensor": (2, strategies.tensor_parallel(), 1),
    "pipeline": (2, strategies.pipeline(microbatches=4), 1),
    "uneven parts": (2, strategies.pipeline(), 5),
    "gpipe": (4, strategies.pipeline(2, microbatches=2, schedule="gpipe"), 1),
    "interleaved": (2, strategies.pipeline(2, microbatches=4, schedule="interleaved", stages=4), 1),
    "data x tensor": (4, strategies.mesh(data=2, tensor=2), 1),
    "pipeline x data": (4, strategies.mesh(pipeline=2, data=2, microbatches=2), 1),
    "pipeline x zero": (4, strategies.mesh(pipeline=2, zero=2, data=2, microbatches=3, least=1), 1),
    "consistent": (2, strategies.consistent(), 3),
}
CASES["gpipe"] = (2, strategies.pipeline(2, microbatches=2, schedule="gpipe"), 1)


class Layer(Module):
    def __init__(self, name: str, where: placement) -> None:
        super().__init__()
        self.w = flow.nn.Parameter(flow.tensor(FIRST[name], placement=where, sbp=sbp.broadcast))

    def forward(self, x: Any) -> Any:
        return flow.matmul(x, self.w).tanh()


class Model(Module):
    def __init__(self, where: placement) -> None:
        super().__init__()
        self.w0, self.w1, self.w2 = (Layer(name, where) for name in FIRST)

    def forward(self, x: Any) -> Any:
        return self.w2(self.w1(self.w0(x)))


class Train(Graph):
    def __init__(self, model: Model, strategy: Any, parts: int = 1) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(SGD(model.parameters(), 0.1, momentum=0.9))
        if strategy is not None:
            self.config.strategy(strategy)
        if parts > 1:
            self.config.set_gradient_accumulation_steps(parts)

    def build(self, x: Any, y: Any) -> Any:
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        return loss


class Look(Graph):
    def __init__(self, model: Model, strategy: Any) -> None:
        super().__init__()
        self.model = model
        self.config.strategy(strategy)

    def build(self, x: Any) -> Any:
        return self.model(x)


def losses_of(rank: int, n: int, strategy: Any, parts: int, how: Any = S0) -> Any:
    where = placement("cpu", range(n))
    model = Model(where)
    train = Train(model, strategy, parts)
    losses: list[float] = []
    for x, y in BATCHES:
        loss = train(*(flow.tensor(array, placement=where, sbp=how) for array in (x, y)))
        losses.append(float(np.mean(loss.numpy())))
    evaluate = Look(model, strategies.data_parallel() if strategy is None else strategy)
    scores = evaluate(flow.tensor(BATCHES[0][0], placement=where, sbp=how)).numpy()
    return losses, [p.numpy() for p in model.parameters()], scores


@cache
def expected() -> Any:
    return on_ranks(1, losses_of, 1, None, 1)[0]


def as_job(n: int, strategy: Any, parts: int) -> list[float]:
    flow.config.cpu_device_num(n)
    config = flow.function_config()
    config.strategy(strategy)
    if parts > 1:
        config.train.num_gradient_accumulation_steps(parts)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((ROWS, 6)), y: tp.Numpy.Placeholder((ROWS, 4))) -> tp.Numpy:  # type: ignore[valid-type]
        for name, shape in SHAPES.items():
            x = flow.math.tanh(flow.matmul(x, flow.get_variable(name, shape, initializer=flow.zeros_initializer())))
        loss = flow.math.reduce_mean(flow.math.square(flow.math.subtract(x, y)))
        legacy.SGD(legacy.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
        return loss

    flow.load_variables(FIRST)
    weights = [len(part) for part in np.array_split(np.arange(ROWS), parts)] if parts > 1 else None  # the option gives one loss per part
    losses = [float(np.average(job(x, y), weights=weights)) for x, y in BATCHES]
    flow.clear_default_session()
    return losses


@pytest.mark.parametrize("case", list(CASES))
def test_the_losses_equal_one_rank_and_the_job(case: str) -> None:
    n, strategy, parts = CASES[case]
    losses, weights, scores = expected()
    for mine, own, shown in on_ranks(n, losses_of, n, strategy, parts):
        np.testing.assert_allclose(mine, losses, rtol=2e-6)
        for a, b in zip([*own, shown], [*weights, scores], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(as_job(n, strategy, parts), mine, rtol=2e-6)


# -------------------------------------------------------------------- what else a graph says


class Staged(Train):
    """A model with stages by module: the first layer, then the other layers."""

    def __init__(self, model: Model, strategy: Any, parts: int = 1) -> None:
        super().__init__(model, strategy, parts)
        for layer, stage in ((self.model.w0, 0), (self.model.w1, 1), (self.model.w2, 1)):
            layer.to(GraphModule).set_stage(stage)
            layer.to(GraphModule).activation_checkpointing = True


def test_stages_may_be_named_by_module() -> None:
    def program(rank: int) -> Any:
        where = placement("cpu", range(2))
        model = Model(where)
        train = Staged(model, strategies.pipeline(microbatches=2))
        losses = [float(np.mean(train(*(flow.tensor(a, placement=where, sbp=S0) for a in batch)).numpy())) for batch in BATCHES]
        return losses, [str(p.layout) for p in model.parameters()]

    for losses, places in on_ranks(2, program):
        np.testing.assert_allclose(losses, expected()[0], rtol=2e-6)
        assert places == ["cpu[0]:B", "cpu[1]:B", "cpu[1]:B"]


def test_parameters_have_the_layout_of_the_strategy_and_train_eagerly() -> None:
    """The inputs have other lengths, with random numbers and buffers, under ZeRO; the model also runs eagerly."""

    class Noisy(Module):
        def __init__(self, where: placement) -> None:
            super().__init__()
            self.inner = Layer("w0", where)
            self.norm = flow.nn.BatchNorm1d(16).to_global(placement=where, sbp=sbp.broadcast)
            self.drop = flow.nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            return self.drop(self.norm(self.inner(x)))

    class Graphed(Graph):
        def __init__(self, model: Noisy, strategy: Any) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(SGD(model.parameters(), 0.1))
            if strategy is not None:
                self.config.strategy(strategy)

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    def program(rank: int, n: int, strategy: Any) -> Any:
        flow.manual_seed(7)
        where = placement("cpu", range(n))
        model = Noisy(where)
        train = Graphed(model, strategy)
        results = []
        for rows in (12, 8, 12, 8):
            x = flow.tensor(BATCHES[0][0][:rows], placement=where, sbp=sbp.broadcast)
            results.append(float(train(x).numpy()))
            results.append(float(model.eval()(x).sum().numpy()))
            model.train()
        return results, str(model.inner.w.layout), [x.numpy().tolist() for x in model.state_dict().values()]

    (one, _, final), *_ = on_ranks(1, program, 1, None)
    for results, layout, state in on_ranks(4, program, 4, strategies.zero(2, least=32)):
        np.testing.assert_allclose(results, one, rtol=2e-5)
        assert layout == "cpu[0-3]:S(0)"
        for a, b in zip(state, final, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


class Moved(Train):
    """A graph that moves its labels to another placement."""

    def build(self, x: Any, y: Any) -> Any:
        return super().build(x, y.to_global(placement=placement("cpu", range(2)), sbp=sbp.broadcast))


def refused(rank: int, how: str) -> str:
    where = placement("cpu", range(2))
    model = Model(where)
    if how == "local":
        for layer in (model.w0, model.w1, model.w2):
            layer.w = flow.nn.Parameter(layer.w.detach().to_local())
    strategy = strategies.mirrored() if how == "mirrored" else strategies.pipeline(2) if how == "stages" else strategies.data_parallel()
    train = (Moved if how == "places" else Train)(model, strategy)
    x, y = (flow.tensor(a, placement=where, sbp=S0) for a in BATCHES[0])
    if how == "zero":
        train.config.enable_zero()
    if how == "places":
        y = y.to_global(placement=placement("cpu", [0]), sbp=sbp.broadcast)
    if how == "local":
        x, y = x.to_local(), y.to_local()
    if how == "stages":
        for stage in range(3):
            getattr(train.model, f"w{stage}").to(GraphModule).set_stage(stage)
    with pytest.raises(JobflowError) as caught:
        train.config.strategy("zero") if how == "text" else train(x, y)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("mirrored", ConfigError, "in a graph each tensor has its own layout: use strategies.data_parallel()"),
        ("zero", ConfigError, "config.enable_zero and config.strategy both define the storage of parameters"),
        ("places", JobError, "input0 is on cpu[0-1] and input1 on cpu[0]"),
        ("local", JobError, "input0 is local: convert it with to_global"),
        ("stages", ConfigError, "stages 3 must be a multiple of 2"),
        ("text", ConfigError, "the argument must be a strategy such as strategies.data_parallel(); got 'zero'"),
    ],
)
def test_invalid_strategies_raise(how: str, error: type[Exception], words: str) -> None:
    for message in on_ranks(2, refused, how):
        assert message.startswith(f"{error.__name__}: ") and words in message
        assert "test_graph_strategies.py:" in message or how == "stages"
