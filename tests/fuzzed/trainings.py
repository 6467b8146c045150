"""Random trainings of small networks, as jobs and as graphs: on other numbers of devices, in other strategies, with checkpoints.

A training is plain data: layers, optimizer, schedule and options, as text. Losses and variables are compared with an uninterrupted
run on one device. In float64 only rounding differs; in half precision the tolerance is wide.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.session import started_session
from jobflow.storage import sessions

CLASSES, WORDS = 5, 11
#: layers of a job, and of a module, on x of c channels: {n} becomes the channels, {c} are those before, {name} is new
ROWS = [
    ("flow.layers.dense(x, {n}, kernel_initializer=start, name='{name}')", "nn.Linear({c}, {n})"),
    ("flow.layers.dense(x, {n}, use_bias=False, kernel_initializer=start, name='{name}')", "nn.Linear({c}, {n}, bias=False)"),
    ("x + flow.layers.dense(flow.math.gelu(x), {c}, kernel_initializer=start, name='{name}')", "Added({c})"),
    ("flow.math.relu(x)", "nn.ReLU()"),
    ("flow.math.tanh(x)", "nn.Tanh()"),
    ("flow.layers.layer_norm(x, name='{name}')", "nn.LayerNorm({c})"),
    ("flow.layers.batch_normalization(x, axis=1, name='{name}')", "nn.BatchNorm1d({c})"),
    ("flow.nn.dropout(x, rate=0.3, name='{name}')", "nn.Dropout(0.3)"),
]  # fmt: skip
IMAGES = [
    ("flow.layers.conv2d(x, {n}, 3, padding='SAME', kernel_initializer=start, name='{name}')", "nn.Conv2d({c}, {n}, 3, padding=1)"),
    ("flow.layers.batch_normalization(x, axis=1, name='{name}')", "nn.BatchNorm2d({c})"),
    ("flow.math.relu(x)", "nn.ReLU()"),
    ("flow.nn.avg_pool2d(x, 2, 1, 'VALID')", "nn.AvgPool2d(2, 1)"),
]
#: what a network begins and ends with, by what it takes: shapes of a sample, channels after it
BEGINNINGS: dict[str, tuple[tuple[int, ...], str, str]] = {
    "rows": ((7,), "x", "nn.Identity()"),
    "images": ((2, 5, 4), "x", "nn.Identity()"),
    "words": ((6,), "flow.gather(flow.get_variable('words', (11, 6), dtype=kind, initializer=start), x)", "nn.Embedding(11, 6)"),
}
OPTIMIZERS = [
    ("SGD({rate}, momentum=0)", "SGD(p, lr=0.05)"),
    ("SGD({rate}, momentum=0.9)", "SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)"),
    ("Adam({rate})", "Adam(p, lr=0.05)"),
    ("Adam({rate}, do_bias_correction=True)", "AdamW(p, lr=0.05, weight_decay=0.1)"),
    ("AdamW({rate}, weight_decay=0.1, weight_decay_excludes=['bias'])", "RMSprop(p, lr=0.05)"),
    ("RMSProp({rate}, centered=True)", "Adagrad(p, lr=0.05)"),
    ("LAMB({rate}, weight_decay=0.1)", "LAMB(p, lr=0.05, weight_decay=0.1)"),
    ("LARS({rate}, lars_coefficient=0.1)", "Adadelta(p, lr=0.5)"),
]
RATES = [
    ("PiecewiseConstantScheduler([], [0.05])", "None"),
    ("PiecewiseConstantScheduler([1, 3], [0.05, 0.02, 0.01], warmup.linear(2, 0.1))", "flow.optim.lr_scheduler.StepLR(o, 2, 0.5)"),
    ("CosineScheduler(0.05, 5)", "flow.optim.lr_scheduler.CosineAnnealingLR(o, 5)"),
    ("PolynomialScheduler(0.05, 4, 0.01)", "flow.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 3)"),
]
#: ways to lay out a job, by the number of devices; {m} are the parts of a batch
STRATEGIES = {
    1: ["consistent()"],
    2: [
        "consistent()", "data_parallel()", "zero(1, least=1)", "zero(2, least=1)", "zero(3, least=1)", "tensor_parallel()",
        "pipeline(microbatches={m})",
    ],
    3: ["data_parallel()", "zero(3, least=1)", "tensor_parallel()", "pipeline(microbatches={m})"],
    4: [
        "mesh(data=2, tensor=2)", "mesh(data=2, tensor=2, zero=1)", "combine(zero(3, least=1), tensor_parallel(2))",
        "combine(pipeline(2, microbatches={m}), data_parallel(2))", "mesh(pipeline=2, tensor=2, microbatches={m})", "zero(2, least=1)",
    ],
}  # fmt: skip


class Added(nn.Module):  # type: ignore[misc]
    """A layer around which its input goes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Any) -> Any:
        return x + self.linear(flow.nn.functional.gelu(x))


class MeanOverWords(nn.Module):  # type: ignore[misc]
    """One row of a sample's words."""

    def forward(self, x: Any) -> Any:
        return x.mean(1)


def drawn(seed: int) -> dict[str, Any]:
    """The training of a seed."""
    draw = random.Random(seed)
    takes = draw.choice(["rows", "rows", "images", "words"])
    shape, *beginning = BEGINNINGS[takes]
    layers, channels, size = [tuple(beginning)], {"words": 6}.get(takes, shape[0]), list(shape[1:]) if takes == "images" else []
    body = [(IMAGES, draw.randint(1, 3))] * (takes == "images") + [("end", 1)] * (takes != "rows") + [(ROWS, draw.randint(1, 5))]
    for kinds, count in body:
        if kinds == "end":
            layers.append(("flow.reshape(x, [x.shape[0], -1])", "nn.Flatten()") if size else ("flow.math.reduce_mean(x, axis=1)", "MeanOverWords()"))
            channels *= int(np.prod(size, initial=1))
            continue
        for _ in range(count):
            job, module = draw.choice(kinds)
            new = draw.choice([4, 5, 6, 8]) if "{n}" in job else channels
            words = {"n": new, "c": channels, "name": f"layer{len(layers)}"}
            layers.append((job.format(**words), module.format(**words)))
            channels = new
            size = [n - 1 for n in size] if "pool" in job else size
    layers.append((f"flow.layers.dense(x, {CLASSES}, kernel_initializer=start, name='end')", f"nn.Linear({channels}, {CLASSES})"))
    parts = draw.choice([1, 1, 2, 3])
    return {
        "seed": seed,
        "takes": takes,
        "layers": layers,
        "optimizer": draw.choice(OPTIMIZERS),
        "rate": draw.choice(RATES),
        "clip": draw.choice([None, None, 0.1, 1.0]),
        "parts": parts,
        "batch": parts * draw.choice([4, 5, 8]),
        "half": draw.choice([None, None, None, None, "bfloat16", "float16"]),
        "steps": (draw.randint(1, 3), draw.randint(1, 3)),
        "again": draw.random() < 0.2,
    }


def batch(training: dict[str, Any], step: int) -> tuple[Any, Any]:
    draws, shape = np.random.RandomState(1000 * training["seed"] + step), (training["batch"], *BEGINNINGS[training["takes"]][0])
    x = draws.randint(0, WORDS, shape).astype(np.int32) if training["takes"] == "words" else draws.randn(*shape)
    return x, draws.randint(0, CLASSES, training["batch"]).astype(np.int32)


# --------------------------------------------------------------------- as a job


def job_of(training: dict[str, Any], strategy: str) -> Any:
    kind = flow.float32 if training["half"] else flow.float64
    config = flow.function_config()
    config.default_data_type(kind)
    config.strategy(eval(strategy.format(m=training["parts"]), vars(flow.strategies)))
    if "pipeline" not in strategy and training["parts"] > 1:
        config.train.num_gradient_accumulation_steps(training["parts"])
    if training["half"]:
        config.mixed_precision(getattr(flow, training["half"]))
    shape = (training["batch"], *BEGINNINGS[training["takes"]][0])
    clip = f", grad_clipping=flow.optimizer.grad_clipping.by_global_norm({training['clip']})" * (training["clip"] is not None)
    scale = ", loss_scale_policy=flow.optimizer.loss_scale.dynamic_loss_scale(2.0**10, 2)" * (training["half"] == "float16")
    rate = f"flow.optimizer.{training['rate'][0]}".replace(" warmup.", " flow.optimizer.warmup.")
    optimizer = f"flow.optimizer.{training['optimizer'][0].format(rate=rate)[:-1]}{clip}{scale})"

    def network(x: Any) -> Any:
        words = {"flow": flow, "kind": kind, "start": flow.random_normal_initializer(stddev=0.3)}
        for line, _ in training["layers"]:
            x = eval(line, words | {"x": x})
        return x

    @flow.global_function("train", config)
    def train(
        x: tp.Numpy.Placeholder(shape, dtype=flow.int32 if training["takes"] == "words" else kind),
        labels: tp.Numpy.Placeholder(shape[:1], dtype=flow.int32),
    ) -> tp.Numpy:
        scores = flow.checkpointed(network)(x) if training["again"] else network(x)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        eval(optimizer, {"flow": flow}).minimize(loss)
        return loss

    return train


def job_curve(training: dict[str, Any], runs: list[tuple[int, str, int]]) -> tuple[list[float], dict[str, Any]]:
    """Return the losses of consecutive runs, and the final variables.

    Each run has a number of devices and a strategy, and loads the checkpoint of the run before.
    """
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for i, (devices, strategy, steps) in enumerate(runs):
            flow.clear_default_session()
            flow.config.cpu_device_num(devices)
            train = job_of(training, strategy)
            if i:
                sessions.load(started_session(), f"{folder}/{i - 1}")
            for _ in range(steps):
                losses.append(float(np.mean(train(*batch(training, len(losses))), dtype=np.float64)))
            if i + 1 < len(runs):
                sessions.save(started_session(), f"{folder}/{i}")
        return losses, {name: x.numpy() for name, x in flow.get_all_variables().items()}


# ------------------------------------------------------------------- as a graph


class TrainGraph(nn.Graph):  # type: ignore[misc]
    """A step of a training: the parameters lie as the strategy says, or each linear layer as the seed draws."""

    def __init__(self, training: dict[str, Any], ranks: int, strategy: str) -> None:
        super().__init__()
        flow.manual_seed(training["seed"])
        words = vars(nn) | {"nn": nn, "Added": Added, "MeanOverWords": MeanOverWords}
        self.model = nn.Sequential(*(eval(line, words) for _, line in training["layers"]))
        self.model = self.model if training["half"] else self.model.double()
        self.placement, draw = flow.placement("cpu", list(range(ranks))), random.Random(training["seed"])
        self.model.to_global(self.placement, flow.sbp.broadcast)
        if strategy != "laid":
            self.config.strategy(eval(strategy.format(m=training["parts"]), vars(flow.strategies)))
        for layer in self.model.modules():
            if strategy == "laid" and isinstance(layer, nn.Linear | nn.Conv2d) and draw.random() < 0.5:
                layer.to_global(self.placement, flow.sbp.split(0))
        clip = {} if training["clip"] is None else {"clip_grad_max_norm": training["clip"], "clip_grad_norm_type": 2.0}
        optimizer = eval(f"optim.{training['optimizer'][1]}", {"optim": flow.optim, "p": [{"params": self.model.parameters(), **clip}]})
        self.optimizer, self.schedule = optimizer, eval(training["rate"][1], {"flow": flow, "o": optimizer})
        self.add_optimizer(optimizer, lr_sch=self.schedule)
        if training["parts"] > 1:
            self.config.set_gradient_accumulation_steps(training["parts"])
        if training["half"]:
            self.config.enable_amp(True, dtype=getattr(flow, training["half"]))
        if training["half"] == "float16":
            self.set_grad_scaler(flow.amp.GradScaler(init_scale=1024.0))
        if training["again"]:
            self.model.to(nn.graph.GraphModule).activation_checkpointing = True

    def build(self, x: Any, labels: Any) -> Any:
        loss = nn.functional.cross_entropy(self.model(x), labels)
        loss.backward()
        return loss

    def at_once(self, x: Any, labels: Any) -> Any:
        """The same without a graph."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), labels)
        loss.backward()
        self.optimizer.clip_grad()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss

    def saved_tensors(self) -> dict[str, Any]:
        """Return the states of model, optimizer and schedule."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "rate": self.schedule and self.schedule.state_dict()}

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(saved["rate"])


def graph_curve(training: dict[str, Any], runs: list[tuple[int, str, int]]) -> tuple[list[float], dict[str, Any]]:
    """As `job_curve`, as a graph on ranks; the strategy "at once" is none, and no graph."""
    losses: list[float] = []

    def program(rank: int, folder: str, i: int) -> Any:
        ranks, strategy, steps = runs[i]
        step = TrainGraph(training, ranks, "laid" if strategy == "at once" else strategy)
        if i:
            saved = flow.load(f"{folder}/{i - 1}", global_src_rank=0)
            flow.set_rng_state(flow.tensor(saved.pop("draws").numpy()))
            step.load(saved) if strategy == "at once" else step.load_state_dict(saved)
        curve = []
        for k in range(steps):
            x, labels = batch(training, len(losses) + k)
            batch_inputs = x.astype(np.int64) if training["takes"] == "words" else x.astype(np.float32) if training["half"] else x
            how = {"placement": step.placement, "sbp": flow.sbp.split(0) if training["seed"] % 2 else flow.sbp.broadcast}
            run = step.at_once if strategy == "at once" else step
            curve.append(float(run(flow.tensor(batch_inputs, **how), flow.tensor(labels.astype(np.int64), **how)).mean().item()))
        if i + 1 < len(runs):
            saved = step.saved_tensors() if strategy == "at once" else step.state_dict()
            flow.save(saved | {"draws": flow.get_rng_state()}, f"{folder}/{i}", global_dst_rank=0)
        return curve, {name: x.numpy() for name, x in step.model.state_dict().items()}

    with tempfile.TemporaryDirectory() as folder:
        for i, (ranks, _, _) in enumerate(runs):
            curve, variables = on_ranks(ranks, program, folder, i)[0]
            losses += curve
    return losses, variables


# ---------------------------------------------------------------- what differs

#: how trainings are run, by name, and in which strategies besides those of all
RUNS_BY_API: dict[str, tuple[Callable[..., tuple[list[float], dict[str, Any]]], list[str]]] = {
    "job": (job_curve, []),
    "graph": (graph_curve, ["laid"]),
}
#: how far apart numbers may be
CLOSE, CLOSE_IN_HALF = 1e-7, 5e-2


def interrupted(training: dict[str, Any], api: str) -> list[tuple[int, str, int]]:
    """Devices, strategy and steps before and after a save; sometimes of a graph that is none."""
    draw, others = random.Random(training["seed"]), RUNS_BY_API[api][1]
    if api == "graph" and training["parts"] == 1 and not training["half"] and draw.random() < 0.2:
        return [(draw.choice([1, 2]), "at once", steps) for steps in training["steps"]]
    devices = [draw.choice([1, 2, 3, 4]) for _ in training["steps"]]
    return [(n, draw.choice(STRATEGIES[n] + others), steps) for n, steps in zip(devices, training["steps"], strict=True)]


def differences(training: dict[str, Any], api: str) -> list[str]:
    """Return the differences between an interrupted training and an uninterrupted one on one device."""
    curve, runs = RUNS_BY_API[api][0], interrupted(training, api)
    close = CLOSE_IN_HALF if training["half"] else CLOSE
    try:
        expected, variables = curve(training, [(1, "consistent()", sum(training["steps"]))])
        losses, actual = curve(training, runs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is found
        return [f"{runs}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"]
    listed = [f"{runs}: losses {losses}, not {expected}"] * (not np.allclose(losses, expected, rtol=close, atol=close))
    listed += [f"{runs}: variables {sorted(actual.keys() ^ variables.keys())}"] * (actual.keys() != variables.keys())
    for name in sorted(actual.keys() & variables.keys()):
        if not np.allclose(actual[name], variables[name], rtol=10 * close, atol=10 * close):
            listed.append(f"{runs}: {name} off by {np.abs(actual[name] - variables[name]).max():.3g}")
    return listed
