"""Programs that are saved in the middle and resume, in every way of saving: jobs, tensors, graphs and `jobflow train`.

A way is a program under a name; programs use the public interface only.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow import cli, nn
from jobflow.engine.session import started_session
from jobflow.storage import sessions, store
from jobflow.storage.series import Series
from jobflow.trainer import train
from jobflow.trainer import training_run as runs
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import load

#: steps until it is saved
BEFORE = 3
ROWS, WIDTH, CLASSES = 8, 6, 4
HALF = 4e-3


def batch(step: int) -> tuple[Any, Any]:
    draw = np.random.RandomState(step)
    return draw.standard_normal((ROWS, WIDTH)).astype(np.float32), draw.randint(0, CLASSES, ROWS).astype(np.int32)


class Program:
    """A training program.  `ranks` are processes, or threads; 1 is this process alone."""

    def step(self, number: int) -> float:
        raise NotImplementedError

    def save(self, path: Path) -> None:
        raise NotImplementedError

    def load(self, path: Path) -> None:
        raise NotImplementedError

    def tensors(self) -> Mapping[str, Any]:
        """Return all tensors that a checkpoint must restore, as arrays."""
        raise NotImplementedError


# -------------------------------------------------------------------- jobs


class Saver:
    """A way in which a program of jobs saves and loads."""

    def save(self, path: Path) -> None:
        flow.train.CheckPoint().save(str(path))

    def load(self, path: Path) -> None:
        flow.train.CheckPoint().load(str(path))


class ByName(Saver):
    def save(self, path: Path) -> None:
        flow.checkpoint.save(str(path))

    def load(self, path: Path) -> None:
        flow.load_variables(flow.checkpoint.get(str(path)))


class Managed(Saver):
    def save(self, path: Path) -> None:
        flow.train.SimpleCheckPointManager(str(path)).initialize_or_restore()

    load = save


class Numbered(Saver):
    def save(self, path: Path) -> None:
        Series(path, keep_last=2).save(started_session(), BEFORE, {"metrics": {"loss": 0.5}}, asynchronous=True).wait()

    def load(self, path: Path) -> None:
        newest = sessions.on_first(started_session(), Series(path).newest_good)
        assert newest is not None and sessions.load(started_session(), newest.path)["metrics"] == {"loss": 0.5}


def converted(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["ckpt", "convert", *words]) == 0


class Exported(Saver):
    """Legacy directories, or one file; converted by the command line in both directions."""

    def __init__(self, name: str, *options: str) -> None:
        self.name, self.options = name, options

    def save(self, path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            flow.train.CheckPoint().save(f"{folder}/all")
            path.mkdir()
            converted(f"{folder}/all", str(path / self.name), *self.options)

    def load(self, path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            converted(str(path / self.name), f"{folder}/all")
            flow.train.CheckPoint().load(f"{folder}/all")


def schedule() -> Any:
    return flow.optimizer.CosineScheduler(0.05, 20, warmup=flow.optimizer.warmup.linear(2, 0.5))


def adam() -> Any:
    return flow.optimizer.Adam(schedule(), do_bias_correction=True, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0))


def plain(x: Any) -> Any:
    normal = flow.random_normal_initializer(stddev=0.3)
    x = flow.layers.dense(x, 7, activation=flow.math.tanh, kernel_initializer=normal, name="up")
    return flow.layers.dense(x, CLASSES, kernel_initializer=normal, name="down")


def normalised(x: Any) -> Any:
    """Build a network with moving statistics, dropout and a table."""
    x = flow.layers.batch_normalization(x, axis=1, name="norm")
    table = flow.get_variable("table", (5, WIDTH), initializer=flow.random_normal_initializer(stddev=0.3))
    x = flow.nn.dropout(x + flow.gather(table, flow.constant(3, dtype=flow.int32, shape=(1,))), rate=0.2)
    return plain(x)


class Job(Program):
    def __init__(self, ranks: int, way: JobWay) -> None:
        flow.clear_default_session()
        flow.config.cpu_device_num(ranks)
        config = flow.function_config()
        if ranks > 1:
            config.strategy(way.strategy())
        if way.half is not None:
            config.mixed_precision(way.half)

        @flow.global_function("train", config)
        def train_job(x: tp.Numpy.Placeholder((ROWS, WIDTH)), y: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32)) -> tp.Numpy:
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, way.model(x))
            way.optimizer().minimize(loss)
            return loss

        self.job, self.saver = train_job, way.saver

    def step(self, number: int) -> float:
        return float(np.asarray(self.job(*batch(number))).mean())

    def save(self, path: Path) -> None:
        self.saver.save(path)

    def load(self, path: Path) -> None:
        self.saver.load(path)

    def tensors(self) -> Mapping[str, Any]:
        return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}


@dataclass(frozen=True)
class JobWay:
    strategy: Callable[[], Any] = flow.strategies.data_parallel
    optimizer: Callable[[], Any] = adam
    model: Callable[[Any], Any] = plain
    saver: Saver = field(default_factory=Saver)
    half: Any = None
    #: of the ranks that write
    ranks: int = 1
    close: float = 2e-5

    def begin(self, ranks: int) -> Program:
        return Job(ranks, self)


def scaled(policy: Any) -> Callable[[], Any]:
    return lambda: flow.optimizer.SGD(schedule(), momentum=0.9, loss_scale_policy=policy)


def both() -> Any:
    first = flow.optimizer.AdamW(schedule(), weight_decay=0.01, weight_decay_excludes=["bias"], variables=["up-weight", "up-bias"])
    return flow.optimizer.CombinedOptimizer([first, flow.optimizer.LARS(schedule(), variables=["down-weight", "down-bias"])])


SCALE = flow.optimizer.loss_scale.dynamic_loss_scale(2.0**12, 4, 2.0)
JOBS = {
    "job": JobWay(model=normalised),
    "job by name": JobWay(optimizer=lambda: flow.optimizer.SGD(schedule(), momentum=0.9), saver=ByName()),
    "job with a manager": JobWay(saver=Managed()),
    "job in a series": JobWay(model=normalised, saver=Numbered()),
    "job to a legacy directory": JobWay(optimizer=lambda: flow.optimizer.SGD(schedule(), momentum=0.9), saver=Exported("old", "--to", "legacy")),
    "job to npz": JobWay(saver=Exported("weights.npz")),
    "job to safetensors": JobWay(saver=Exported("weights.safetensors")),
    "job, shared": JobWay(ranks=2),
    "job, zero 1": JobWay(lambda: flow.strategies.zero(1, least=2), ranks=2),
    "job, zero 3 in a series": JobWay(lambda: flow.strategies.zero(3, least=2), saver=Numbered(), ranks=2),
    "job, tensor parallel": JobWay(flow.strategies.tensor_parallel, saver=ByName(), ranks=2),
    "job, pipeline": JobWay(lambda: flow.strategies.pipeline(microbatches=2), ranks=2),
    "job, mirrored": JobWay(flow.strategies.mirrored, ranks=2),
    "job, float16": JobWay(optimizer=scaled(SCALE), half=flow.float16, close=HALF),
    "job, float16, shared": JobWay(optimizer=scaled(SCALE), half=flow.float16, ranks=2, close=HALF),
    "job, bfloat16": JobWay(optimizer=scaled(flow.optimizer.loss_scale.static_loss_scale(64.0)), half=flow.bfloat16, close=10 * HALF),
    "job, sgdw": JobWay(optimizer=lambda: flow.optimizer.SGDW(schedule(), momentum=0.9, weight_decay=0.01)),
    "job, lazy adam": JobWay(optimizer=lambda: flow.optimizer.LazyAdam(schedule())),
    "job, rmsprop": JobWay(optimizer=lambda: flow.optimizer.RMSProp(schedule(), centered=True)),
    "job, lamb": JobWay(optimizer=lambda: flow.optimizer.LAMB(schedule(), weight_decay=0.01)),
    "job, adamw and lars": JobWay(optimizer=both),
}


# -------------------------------------------------------------------- tensors


def sequential() -> Any:
    """Build a network whose initial weights depend on the seed."""
    flow.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, CLASSES))


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return the tensors and numbers of a structure by path."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(state, list | tuple):
        for location, value in enumerate(state):
            yield from leaves(value, f"{path}/{location}")
    elif isinstance(state, bool | int | float) or hasattr(state, "numpy"):
        yield path, state.numpy() if hasattr(state, "numpy") else np.asarray(state)


class AtOnce(Program):
    """Local tensors of one process, or copies in several."""

    def __init__(self, ranks: int, optimizer: Callable[[Any], Any]) -> None:
        self.model = sequential()
        self.optimizer = optimizer(self.model.parameters())
        self.schedule = flow.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def data(self, number: int) -> tuple[Any, Any]:
        return tuple(flow.tensor(array) for array in batch(number))

    def step(self, number: int) -> float:
        x, y = self.data(number)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return float(loss.item())

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])

    def save(self, path: Path) -> None:
        flow.save(self.state(), path)

    def load(self, path: Path) -> None:
        self.restore(flow.load(path))

    def tensors(self) -> Mapping[str, Any]:
        return dict(leaves(self.state()))


class Global(AtOnce):
    """Global tensors: the first layer is split over the ranks, the rest replicated; rank 0 writes and reads."""

    def __init__(self, ranks: int, optimizer: Callable[[Any], Any]) -> None:
        self.ranks = flow.placement("cpu", ranks=list(range(ranks)))
        self.model = sequential()
        self.model.to_global(self.ranks, flow.sbp.broadcast)
        self.model[0].to_global(self.ranks, flow.sbp.split(0))
        self.optimizer = optimizer(self.model.parameters())
        self.schedule = flow.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def data(self, number: int) -> tuple[Any, Any]:
        return tuple(flow.tensor(array, placement=self.ranks, sbp=flow.sbp.split(0)) for array in batch(number))

    def save(self, path: Path) -> None:
        flow.save(self.state(), path, global_dst_rank=0)

    def load(self, path: Path) -> None:
        self.restore(flow.load(path, global_src_rank=0))


class Compiled(Global):
    """The same as a graph, whose state contains everything except the schedule."""

    def __init__(self, ranks: int, optimizer: Callable[[Any], Any], half: bool = False, zero: bool = False) -> None:
        super().__init__(ranks, optimizer)
        program = self

        class Step(nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = program.model
                self.add_optimizer(program.optimizer, lr_sch=program.schedule)
                if half:
                    self.config.enable_amp(True)
                    self.set_grad_scaler(flow.amp.GradScaler(init_scale=2.0**12, growth_interval=4))
                if zero:
                    self.config.enable_zero(True, stage=2, shard_min_size=2)

            def build(self, x: Any, y: Any) -> Any:
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                return loss

        self.graph = Step()

    def step(self, number: int) -> float:
        return float(self.graph(*self.data(number)).item())

    def state(self) -> dict[str, Any]:
        return {"graph": self.graph.state_dict(), "schedule": self.schedule.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.graph.load_state_dict(state["graph"])
        self.schedule.load_state_dict(state["schedule"])

    def tensors(self) -> Mapping[str, Any]:
        """Return the tensors without the number of the graph in their names."""
        return {name.replace(self.graph.name, "Step"): value for name, value in super().tensors().items()}


@dataclass(frozen=True)
class TensorWay:
    program: Callable[..., Program]
    optimizer: Callable[[Any], Any] = lambda p: flow.optim.Adam(p, 0.01, amsgrad=True)
    ranks: int = 1
    close: float = 2e-5
    options: Mapping[str, Any] = field(default_factory=dict)

    def begin(self, ranks: int) -> Program:
        return self.program(ranks, self.optimizer, **self.options)


TENSORS = {
    "tensors": TensorWay(AtOnce),
    "tensors, sgd": TensorWay(AtOnce, lambda p: flow.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
    "tensors, adamw": TensorWay(AtOnce, lambda p: flow.optim.AdamW(p, 0.01)),
    "tensors, rmsprop": TensorWay(AtOnce, lambda p: flow.optim.RMSprop(p, 0.01, momentum=0.5, centered=True)),
    "tensors, adagrad": TensorWay(AtOnce, lambda p: flow.optim.Adagrad(p, 0.1, lr_decay=0.01)),
    "tensors, adadelta": TensorWay(AtOnce, lambda p: flow.optim.Adadelta(p)),
    "tensors, lamb": TensorWay(AtOnce, lambda p: flow.optim.LAMB(p, 0.01, weight_decay=0.1)),
    "global tensors": TensorWay(Global, ranks=2),
    "graph": TensorWay(Compiled),
    "graph, two ranks": TensorWay(Compiled, ranks=2),
    "graph, zero": TensorWay(Compiled, lambda p: flow.optim.AdamW(p, 0.01), ranks=2, options={"zero": True}),
    "graph, float16": TensorWay(Compiled, lambda p: flow.optim.SGD(p, 0.1, momentum=0.9), close=HALF, options={"half": True}),
}


# -------------------------------------------------------------------- jobflow train

CONFIG = """
seed: 5
model:
  loss: softmax_cross_entropy
  layers:
    - dense: {units: 7, activation: tanh}
    - dropout: {rate: 0.25}
    - dense: {units: 4}
data:
  train: {reader: python, function: "halfway:samples"}
  batch_size: 8
optimizer: {name: adam, lr: 0.05, schedule: {name: cosine}, warmup_steps: 2}
training: {steps: 6}
checkpoint: {every_steps: 3, keep_last: 99}
logging: {every_steps: 1, progress: none, report: false}
"""


def samples() -> dict[str, Any]:
    """Return 26 samples: an epoch has 4 steps with a short last batch, and step 3 is inside an epoch."""
    drawn = np.random.RandomState(3)
    return {"x": drawn.standard_normal((26, WIDTH)).astype(np.float32), "labels": drawn.randint(0, CLASSES, 26).astype(np.int32)}


class Losses(Callback):
    observes = True

    def __init__(self) -> None:
        self.of: dict[int, float] = {}

    def on_step(self, run: runs.TrainingRun, report: runs.StepReport) -> None:
        self.of[report.step] = report.loss


class Run(Program):
    """A run of all steps at once, when the first loss is requested."""

    def __init__(self, ranks: int, settings: tuple[str, ...], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.yaml").write_text(CONFIG)
        self.output, self.losses = folder / "out", Losses()
        self.loaded = load(folder / "run.yaml", [f"output={self.output}", f"strategy.devices={ranks}", *settings])
        self.resumed: Path | None = None

    def step(self, number: int) -> float:
        if not self.losses.of:
            train(self.loaded, callbacks=[self.losses], resume=str(self.resumed) if self.resumed else None)
        return self.losses.of[number]

    def save(self, path: Path) -> None:
        shutil.copytree(self.output / "checkpoints" / f"step-{BEFORE:08d}", path)

    def load(self, path: Path) -> None:
        self.resumed = path

    def tensors(self) -> Mapping[str, Any]:
        path = self.resumed or self.output / "checkpoints" / f"step-{BEFORE:08d}"
        return dict(store.load(path))


@dataclass(frozen=True)
class RunWay:
    settings: tuple[str, ...] = ()
    ranks: int = 1
    close: float = 2e-5

    def begin(self, ranks: int, folder: Path) -> Program:
        return Run(ranks, self.settings if ranks > 1 else tuple(word for word in self.settings if "zero" not in word), folder)


RUNS = {
    "run": RunWay(),
    "run, zero": RunWay(("strategy.zero=1",), 2),
    "run, float16": RunWay(("strategy.precision=float16",), close=HALF),
}
