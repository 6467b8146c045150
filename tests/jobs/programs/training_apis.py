"""One small model and its training by three APIs: eager tensors, `nn.Graph`, and a job function.

All three start from the same weights and train on the same batches.

A run returns the loss of every step and the final weights. `Case` has the optimizer of each API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn

ROWS, INSIDE, HIDDEN, CLASSES = 12, 6, 8, 4
S0, S1, B = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast
NAMES = ("hidden-weight", "hidden-bias", "output-weight", "output-bias")

Run = tuple[list[float], list[Any]]


@dataclass(frozen=True)
class Case:
    """An optimizer in the spelling of each API."""

    #: parameters -> (optimizer, schedule or None)
    tensors: Callable[[Sequence[Any]], tuple[Any, Any]]
    job: Callable[[], Any]
    #: l2 regularizer of the job's weights
    l2: float = 0.0
    #: the loss is multiplied by it
    times: float = 1.0
    #: the batch passes in so many parts
    parts: int = 1


@dataclass(frozen=True)
class Sharding:
    """A mesh of ranks and S/B per mesh dimension."""

    mesh: tuple[int, ...]
    x: tuple[Any, ...] = (S0,)
    weight: tuple[Any, ...] = (B,)
    bias: tuple[Any, ...] = (B,)

    @property
    def placement(self) -> Any:
        return flow.placement("cpu", np.arange(int(np.prod(self.mesh))).reshape(self.mesh).tolist())


def first() -> list[Any]:
    """Return the initial weights."""
    draw = np.random.RandomState(3).standard_normal
    return [0.4 * draw((HIDDEN, INSIDE)), 0.1 * draw(HIDDEN), 0.4 * draw((CLASSES, HIDDEN)), 0.1 * draw(CLASSES)]


def batches(steps: int) -> list[tuple[Any, Any]]:
    """Return rows around a centre for each class, and their classes."""
    random = np.random.RandomState(5)
    centres = random.standard_normal((CLASSES, INSIDE))
    labels = random.randint(0, CLASSES, (steps, ROWS)).astype(np.int32)
    return [(centres[y] + 0.7 * random.standard_normal((ROWS, INSIDE)), y) for y in labels]


# ---------------------------------------------------------------- tensors


def model_of(sharding: Sharding | None, dtype: Any) -> Any:
    """Return two dense layers with the initial weights, local or sharded."""
    model = nn.Sequential(nn.Linear(INSIDE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    for layer, (w, b) in zip((model[0], model[2]), (first()[:2], first()[2:]), strict=True):
        layer.weight = nn.Parameter(tensor_of(w, sharding and Sharding(sharding.mesh, sharding.weight), dtype))
        layer.bias = nn.Parameter(tensor_of(b, sharding and Sharding(sharding.mesh, sharding.bias), dtype))
    return model


def tensor_of(array: Any, sharding: Sharding | None, dtype: Any) -> Any:
    """Return the array as a tensor in the layout of a batch; a tensor of one axis is split only along that axis."""
    if sharding is None:
        return flow.tensor(array, dtype=dtype)
    sbp = sharding.x if array.ndim > 1 else tuple(B if s == S1 else s for s in sharding.x)
    return flow.tensor(array, dtype=dtype, placement=sharding.placement, sbp=sbp)


def weights(model: Any) -> list[Any]:
    return [np.array(p.numpy()) for p in model.parameters()]


class AtOnce:
    """The eager training step."""

    def __init__(self, case: Case, model: Any) -> None:
        self.case, self.model = case, model
        self.optimizer, self.schedule = case.tensors(list(model.parameters()))

    def __call__(self, *parts: Any) -> Any:
        """Return the loss of a batch x, y, or of several batches one after another."""
        self.optimizer.zero_grad()
        total = sum(self._gradients(*parts[i : i + 2]) for i in range(0, len(parts), 2))
        self.optimizer.clip_grad()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return total

    def _gradients(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(self.model(x), y) * (self.case.times / self.case.parts)
        loss.backward()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        schedule = None if self.schedule is None else self.schedule.state_dict()
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "schedule": schedule}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(saved["schedule"])


def at_once(case: Case, sharding: Sharding | None, steps: int, dtype: Any = flow.float64) -> Run:
    model = model_of(sharding, dtype)
    training, losses = AtOnce(case, model), []
    for x, y in batches(steps):
        cut = zip(np.split(x, case.parts), np.split(y, case.parts), strict=True)
        losses.append(training(*(t for a, b in cut for t in (tensor_of(a, sharding, dtype), tensor_of(b, sharding, flow.int32)))).item())
    return losses, weights(model)


class Trained(nn.Graph):
    """The training step as a graph."""

    def __init__(self, case: Case, model: Any) -> None:
        super().__init__()
        self.model, self.times = model, case.times
        optimizer, schedule = case.tensors(list(model.parameters()))
        self.add_optimizer(optimizer, lr_sch=schedule)
        self.config.set_gradient_accumulation_steps(case.parts)

    def build(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(self.model(x), y) * self.times
        loss.backward()
        return loss


def as_graph(case: Case, sharding: Sharding | None, steps: int, dtype: Any = flow.float64) -> Run:
    model = model_of(sharding, dtype)
    graph = Trained(case, model)
    losses = [float(graph(tensor_of(x, sharding, dtype), tensor_of(y, sharding, flow.int32)).numpy().mean()) for x, y in batches(steps)]
    return losses, weights(model)


def each_its_own(case: Case, rank: int, ranks: int, steps: int) -> Run:
    """Train a local model on each rank with its rows of every batch; return its losses."""
    model = model_of(None, flow.float64)
    training, losses = AtOnce(case, nn.parallel.DistributedDataParallel(model)), []
    for x, y in batches(steps):
        mine = [np.split(a, ranks)[rank] for a in (x, y)]
        losses.append(training(tensor_of(mine[0], None, flow.float64), tensor_of(mine[1], None, flow.int32)).item())
    return losses, weights(model)


# ---------------------------------------------------------------- the job


def dense(x: Any, name: str, units: int, case: Case, sharding: Sharding | None) -> Any:
    """Return x w^T + b for w of shape (units, inputs), like `layers.dense`, in layouts that it does not offer."""
    l2 = flow.regularizers.l2(case.l2) if case.l2 else None
    if sharding is None:
        zeros = flow.zeros_initializer()
        return flow.layers.dense(x, units, kernel_initializer=zeros, kernel_regularizer=l2, bias_regularizer=l2, name=name)

    def variable(suffix: str, shape: Sequence[int], sbp: Sequence[Any]) -> Any:
        options = {"dtype": x.dtype, "initializer": flow.zeros_initializer(), "regularizer": l2}
        return flow.get_variable(f"{name}-{suffix}", shape, parallel_distribution=[word(s) for s in sbp], **options)

    w, b = variable("weight", (units, x.shape[1]), sharding.weight), variable("bias", (units,), sharding.bias)
    return flow.nn.bias_add(flow.matmul(x, w, transpose_b=True), b)


def word(sbp: Any) -> str:
    return "B" if sbp == B else "S(0)" if sbp == S0 else "S(1)"


def as_job(case: Case, sharding: Sharding | None, steps: int, dtype: Any = flow.float64) -> Run:
    """Train as a job on all devices; `sharding` None leaves layouts to the compiler."""
    config = flow.function_config()
    config.default_data_type(dtype)
    config.train.num_gradient_accumulation_steps(case.parts)
    if sharding is not None and len(sharding.mesh) > 1:
        config.default_placement_scope(flow.scope.placement("cpu", f"0:0-{int(np.prod(sharding.mesh)) - 1}", sharding.mesh))

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((ROWS, INSIDE), dtype), y: tp.Numpy.Placeholder((ROWS,), flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        if sharding is not None:
            x = flow.hierarchical_parallel_cast(x, [word(s) for s in sharding.x])
        hidden = flow.math.tanh(dense(x, "hidden", HIDDEN, case, sharding))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, dense(hidden, "output", CLASSES, case, sharding)) * case.times
        case.job().minimize(loss)
        return loss

    real = np.float64 if dtype is flow.float64 else np.float32
    flow.load_variables({name: w.astype(real) for name, w in zip(NAMES, first(), strict=True)}, ignore_mismatch=False)
    losses = [float(np.mean(job(x.astype(real), y), dtype=np.float64)) for x, y in batches(steps)]
    variables = flow.get_all_variables()
    return losses, [variables[name].numpy() for name in NAMES]


def mirrored(case: Case, devices: int, steps: int) -> Run:
    """Train as a job in the mirrored view: every device has its rows of every batch."""
    config = flow.function_config()
    config.default_data_type(flow.float64)
    config.default_logical_view(flow.scope.mirrored_view())
    rows = ROWS // devices

    @flow.global_function("train", config)
    def job(
        x: tp.ListNumpy.Placeholder((rows, INSIDE), flow.float64),  # type: ignore[valid-type]
        y: tp.ListNumpy.Placeholder((rows,), flow.int32),  # type: ignore[valid-type]
    ) -> tp.ListNumpy:
        hidden = flow.math.tanh(dense(x, "hidden", HIDDEN, case, None))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, dense(hidden, "output", CLASSES, case, None))
        case.job().minimize(loss)
        return loss

    flow.load_variables(dict(zip(NAMES, first(), strict=True)), ignore_mismatch=False)
    losses = [float(np.mean(job(np.split(x, devices), np.split(y, devices)))) for x, y in batches(steps)]
    variables = flow.get_all_variables()
    return losses, [variables[name].numpy() for name in NAMES]
