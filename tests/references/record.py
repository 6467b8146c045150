"""Recorder of the references of tests, in float64; run it only for a new network or optimizer case.

    python tests/references/record.py nets         # needs PyTorch
    python tests/references/record.py ctc          # needs PyTorch
    python tests/references/record.py optimizers   # NumPy only

nets: losses, gradients and moved statistics of small networks by PyTorch's autograd.  Weights and inputs are not stored but
described (`entries`: name, shape, seed, scale, offset), so that the tests draw the same ones.  Of a large gradient the sums along each axis
and 200 entries at fixed places are stored.
optimizers: the path of one variable for given gradients, by the formulas of the legacy specification written out below.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LARGE, PLACES, PLACES_SEED = 2000, 200, 5
Array = np.ndarray[Any, Any]
Entry = tuple[str, tuple[int, ...], int, float, float]


def drawn(entry: Entry) -> Array:
    """Normal numbers times a scale plus an offset; the tests do the same."""
    _, shape, seed, scale, offset = entry
    return np.random.RandomState(seed).standard_normal(shape) * scale + offset


def summary(name: str, value: Array) -> Iterator[tuple[str, Array]]:
    """`value` itself if it is small, else its sums along each axis and some of its entries."""
    if value.size <= LARGE:
        yield name, value
        return
    for axis in range(value.ndim):
        yield f"{name}|sum{axis}", value.sum(axis=tuple(a for a in range(value.ndim) if a != axis))
    yield f"{name}|places", value.reshape(-1)[np.random.RandomState(PLACES_SEED).randint(0, value.size, PLACES)]


def layer(name: str, units: int, inputs: int, seed: int, kernel: tuple[int, ...] = ()) -> list[Entry]:
    return [
        (f"{name}-weight", (units, inputs, *kernel), seed, 1 / math.sqrt(inputs * math.prod(kernel)), 0.0),
        (f"{name}-bias", (units,), seed + 1, 0.1, 0.0),
    ]


def norm(name: str, size: int, seed: int) -> list[Entry]:
    return [(f"{name}-gamma", (size,), seed, 0.2, 1.0), (f"{name}-beta", (size,), seed + 1, 0.2, 0.0)]


#: name -> (shape of the input, classes, weights); the forward passes are below, those in jobflow in the test
NETS: dict[str, tuple[tuple[int, ...], int, list[Entry]]] = {
    "mlp": ((20, 1, 28, 28), 10, layer("hidden", 512, 784, 10) + layer("output", 10, 512, 20)),
    "lenet": (
        (10, 1, 28, 28),
        10,
        layer("conv1", 32, 1, 30, (5, 5)) + layer("conv2", 64, 32, 40, (5, 5)) + layer("hidden", 512, 3136, 50) + layer("outlayer", 10, 512, 60),
    ),
    "batch_norm": ((12, 3, 6, 6), 5, layer("conv", 8, 3, 70, (3, 3)) + norm("bn", 8, 80) + layer("out", 5, 288, 90)),
    "layer_norm": (
        (6, 4, 16),
        7,
        norm("ln1", 16, 100) + layer("up", 48, 16, 110) + layer("down", 16, 48, 120) + norm("ln2", 16, 130) + layer("out", 7, 16, 140),
    ),
}


def forward(net: str, x: Any, w: dict[str, Any]) -> tuple[Any, dict[str, Array]]:
    """(logits, statistics that moved) of a network in PyTorch."""
    import torch
    import torch.nn.functional as F

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}-weight"], w[f"{name}-bias"])

    def conv(x: Any, name: str) -> Any:
        return F.conv2d(x, w[f"{name}-weight"], w[f"{name}-bias"], padding="same")

    if net == "mlp":
        return linear(F.relu(linear(x.flatten(1), "hidden")), "output"), {}
    if net == "lenet":
        x = F.max_pool2d(F.relu(conv(x, "conv1")), 2)
        x = F.max_pool2d(F.relu(conv(x, "conv2")), 2)
        return linear(F.relu(linear(x.flatten(1), "hidden")), "outlayer"), {}
    if net == "batch_norm":
        mean, variance = torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
        x = F.batch_norm(conv(x, "conv"), mean, variance, w["bn-gamma"], w["bn-beta"], training=True, momentum=0.1, eps=1e-3)
        return linear(F.relu(x).flatten(1), "out"), {"bn-moving_mean": mean.numpy(), "bn-moving_variance": variance.numpy()}
    x = x + linear(F.gelu(linear(F.layer_norm(x, (16,), w["ln1-gamma"], w["ln1-beta"], 1e-5), "up")), "down")
    x = F.layer_norm(x, (16,), w["ln2-gamma"], w["ln2-beta"], 1e-5)
    return linear(x, "out").flatten(0, 1), {}


def record_net(net: str) -> None:
    import torch
    import torch.nn.functional as F

    shape, classes, weights = NETS[net]
    entries = [("input", shape, 1, 1.0, 0.0), *weights]
    w = {entry[0]: torch.from_numpy(drawn(entry)).requires_grad_(entry[0] != "input") for entry in entries}
    x = w.pop("input")
    logits, moved = forward(net, x, w)
    labels = np.random.RandomState(2).randint(0, classes, len(logits)).astype(np.int32)
    losses = F.cross_entropy(logits, torch.from_numpy(labels).long(), reduction="none")
    losses.mean().backward()
    stored = dict(summary("logits", logits.detach().numpy())) | {"losses": losses.detach().numpy(), "labels": labels}
    for name, value in w.items():
        stored |= dict(summary(f"grad|{name}", value.grad.numpy()))
    stored |= {f"moved|{name}": value for name, value in moved.items()}
    save(f"net_{net}", entries=np.array(json.dumps(entries)), **stored)


def save(name: str, **arrays: Array) -> None:
    path = HERE / f"{name}.npz"
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    print(f"{path.name}: {path.stat().st_size} bytes, {len(arrays)} arrays")


# ---- optimizers: g is the gradient after division and clipping, t the number of updates before this one ----

SHAPE, STEPS = (3, 4), 12
#: exact in float32
RATE, DECAY = 0.0625, 0.125
State = dict[str, Array]
Update = Callable[[State, Array, Array, float, int], Array]


def zeros(state: State, *names: str) -> list[Array]:
    return [state.setdefault(name, np.zeros(SHAPE)) for name in names]


def sgd(state: State, w: Array, g: Array, lr: float, t: int) -> Array:
    return w - lr * g


def momentum(state: State, w: Array, g: Array, lr: float, t: int, decay: float = 0.0) -> Array:
    (v,) = zeros(state, "momentum")
    v[...] = 0.9 * v - lr * g
    return w + v - lr * decay * w


def adam(state: State, w: Array, g: Array, lr: float, t: int, decay: float = 0.0, correct: bool = False) -> Array:
    m, v = zeros(state, "m", "v")
    m[...] = 0.9 * m + (1 - 0.9) * g
    v[...] = 0.999 * v + (1 - 0.999) * g * g
    if correct:
        lr = lr * math.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1))
    return w - lr * (m / (np.sqrt(v) + 1e-8) + decay * w)


def rmsprop(state: State, w: Array, g: Array, lr: float, t: int, centered: bool = False) -> Array:
    square, mean = zeros(state, "mean_square", "mean_gradient")
    square[...] = 0.99 * square + (1 - 0.99) * g * g
    mean[...] = 0.99 * mean + (1 - 0.99) * g
    return w - lr * g / np.sqrt(square - (mean * mean if centered else 0) + 1e-8)


def clipped(g: Array, norm: float) -> Array:
    length = math.sqrt(float((g * g).sum()))
    return g * (norm * min(1 / length, 1 / norm))


def piecewise(t: int) -> float:
    """[3, 6] -> 0.25, 0.0625, 0.03125: a value holds for all steps up to and including its boundary."""
    return 0.25 if t <= 3 else 0.0625 if t <= 6 else 0.03125


def cosine(t: int) -> float:
    share = 0.5 * (1 + math.cos(math.pi * min(t, 8) / 8))
    return RATE * ((1 - 0.25) * share + 0.25)


def warmed(t: int) -> float:
    """Linear from a quarter over four steps, then constant."""
    return RATE * (0.25 + 0.75 * t / 4) if t < 4 else RATE


CASES: dict[str, tuple[Update, Callable[[int], float], Callable[[Array, Array], Array]]] = {
    "sgd": (sgd, lambda t: RATE, lambda g, w: g),
    "sgd_piecewise": (sgd, piecewise, lambda g, w: g),
    "sgd_cosine": (sgd, cosine, lambda g, w: g),
    "sgd_warmup": (sgd, warmed, lambda g, w: g),
    "sgd_clipped": (sgd, lambda t: RATE, lambda g, w: clipped(g, 2.0)),
    "sgd_l1_l2_clipped": (sgd, lambda t: RATE, lambda g, w: clipped(g + 0.5 * np.sign(w) + 0.25 * w, 3.0)),
    "momentum": (momentum, lambda t: RATE, lambda g, w: g),
    "momentum_piecewise": (momentum, piecewise, lambda g, w: g),
    "sgdw": (lambda *a: momentum(*a, decay=DECAY), lambda t: RATE, lambda g, w: g),
    "adam": (adam, lambda t: RATE, lambda g, w: g),
    "adam_corrected": (lambda *a: adam(*a, correct=True), lambda t: RATE, lambda g, w: g),
    "adamw": (lambda *a: adam(*a, decay=DECAY), lambda t: RATE, lambda g, w: g),
    "adamw_corrected": (lambda *a: adam(*a, decay=DECAY, correct=True), lambda t: RATE, lambda g, w: g),
    "rmsprop": (rmsprop, lambda t: RATE, lambda g, w: g),
    "rmsprop_centered": (lambda *a: rmsprop(*a, centered=True), lambda t: RATE, lambda g, w: g),
}


def record_optimizers() -> None:
    random = np.random.RandomState(3)
    first, gradients = random.standard_normal(SHAPE), random.standard_normal((STEPS, *SHAPE)) * 2
    paths: dict[str, Array] = {}
    for name, (update, rate, shaped) in CASES.items():
        w, state, path = first.copy(), {}, []
        for t, g in enumerate(gradients):
            w = update(state, w, shaped(g, w), rate(t), t)
            path.append(w)
        paths[f"path|{name}"] = np.stack(path)
        paths |= {f"slot|{name}|{slot}": value for slot, value in state.items()}
    save("optimizers", first=first, gradients=gradients, **paths)


def record_ctc() -> None:
    """Losses of log-softmax of `x`, and the gradients of their mean: of x, and of the log-probabilities."""
    import torch

    rng = np.random.RandomState(3)
    x = torch.tensor(rng.standard_normal((6, 3, 4)), requires_grad=True)
    targets = [torch.tensor(each) for each in ([[1, 2, 2], [3, 1, 0], [2, 0, 0]], [6, 5, 2], [3, 2, 1])]
    logs = torch.log_softmax(x, 2)
    losses = {word: torch.nn.functional.ctc_loss(logs, *targets, reduction=word) for word in ("none", "sum", "mean")}
    dx, dlogs = torch.autograd.grad(losses["mean"], [x, logs])
    arrays = {word: loss.detach().numpy() for word, loss in losses.items()}
    save("ctc", x=x.detach().numpy(), dx=dx.numpy(), dlogs=dlogs.numpy(), **arrays)


def record_ctc_of_tensors() -> None:
    """Losses of the cases in tests/functional/ctc_cases.py, and the gradients of their weighted sums, of the log-probabilities."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "functional"))
    from ctc_cases import CASES, LENGTHS, scores, weights

    arrays: dict[str, Array] = {}
    for name, reduction, zero in CASES:
        case = LENGTHS[name]
        logs = torch.log_softmax(torch.tensor(scores(name)), -1).requires_grad_()
        targets = [torch.tensor(each) for each in (case.targets, case.input_lengths, case.target_lengths)]
        loss = torch.nn.functional.ctc_loss(logs, *targets, case.blank, reduction, zero)
        (torch.tensor(weights(loss.numel())) * loss.reshape(-1)).sum().backward()
        arrays |= {f"{name}|{reduction}|{zero}": loss.detach().numpy(), f"{name}|{reduction}|{zero}|gradient": logs.grad.numpy()}
    save("ctc_of_tensors", **arrays)


def main() -> None:
    if sys.argv[1:] == ["optimizers"]:
        record_optimizers()
    elif sys.argv[1:] == ["ctc"]:
        record_ctc()
        record_ctc_of_tensors()
    elif sys.argv[1:] == ["nets"]:
        for net in NETS:
            record_net(net)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
