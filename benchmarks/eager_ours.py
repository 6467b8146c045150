"""Tensors of jobflow, timed on order: every case of a part is an order of the protocol in worker.py.

    python eager_ours.py ops|routes|step|graph [--ranks N]

With several ranks each is started by itself, with the variables MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import models
import numpy as np
import worker

import jobflow as flow
from jobflow import optim
from jobflow.core.layout import Partial, Sbp
from jobflow.engine.placements import placement, sbp
from jobflow.functional import nn_activations, nn_classes, shapes
from jobflow.functional.creation import from_numpy
from jobflow.functional.global_tensors import to_global
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.graph.graph import Graph
from jobflow.nn.modules.linear_layers import Linear
from jobflow.nn.modules.module import Module
from jobflow.nn.parallel import DistributedDataParallel
from jobflow.tensors.state import state

Cases = dict[str, Callable[[], Any]]
B, P, S0, S1 = sbp.broadcast, sbp.partial_sum, sbp.split(0), sbp.split(1)


def everywhere(ranks: int) -> placement:
    return placement("cpu", list(range(ranks)))


# -------------------------------------------------------------------- small ops


def ops(ranks: int) -> Cases:
    """Local tensors, and global ones; `kernel` is the same by NumPy alone."""
    a, b, w = small(4, 6), small(4, 6), small(6, 5)
    cases: Cases = {f"kernel {name}": call for name, call in kernels(a, b, w).items()}
    mesh = everywhere(ranks)
    layouts = {
        "local": [from_numpy(array) for array in (a, b, w)],
        "global": [to_global(to_global(from_numpy(array), mesh, B), sbp=how) for array, how in ((a, S0), (b, S0), (w, B))],
    }
    for kind, (x, y, z) in layouts.items():
        cases |= {f"{kind} {name}": call for name, call in forward(x, y, z).items()}
        xs, ys, zs = (t.detach() for t in (x, y, z))
        for t in (xs, ys, zs):
            t.requires_grad = True
        cases |= {f"{kind} {name} backward": through(call, (xs, ys, zs)) for name, call in forward(xs, ys, zs).items()}
    return cases


def small(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.RandomState(3).standard_normal(shape).astype(np.float32)


def kernels(a: Any, b: Any, w: Any) -> Cases:
    return {
        "relu": lambda: np.maximum(a, np.float32(0)),
        "add": lambda: np.add(a, b),
        "add number": lambda: np.add(a, np.float32(2)),
        "matmul": lambda: np.matmul(a, w),
        "reshape": lambda: a.reshape(4, 2, 3),
        "sum": lambda: np.sum(a),
    }


def forward(x: Tensor, y: Tensor, w: Tensor) -> dict[str, Callable[[], Tensor]]:
    return {
        "relu": lambda: nn_activations.relu(x),
        "add": lambda: x + y,
        "add number": lambda: x + 2.0,
        "matmul": lambda: x @ w,
        "reshape": lambda: x.reshape(4, 2, 3),
        "sum": lambda: x.sum(),
    }


def through(call: Callable[[], Tensor], leaves: tuple[Tensor, ...]) -> Callable[[], None]:
    """Return a function that runs `call` forward and backward to the leaves."""
    result = call()
    seed = Tensor(result.tensor_type, result.layout, np.ones_like(result.array))
    if result.layout is not None and result.layout.is_partial:
        seed = to_global(seed, sbp=B)

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        call().backward(seed)

    return both


# -------------------------------------------------------------------- routes


def routes(ranks: int) -> Cases:
    """Changes of layout of matrices of 1 KiB, 1 MiB and 16 MiB."""
    mesh, first, second = everywhere(ranks), placement("cpu", [0]), placement("cpu", [1])
    cases: Cases = {}
    for label, rows in (("1 KiB", 16), ("1 MiB", 16 << 10), ("16 MiB", 256 << 10)):
        local = from_numpy(np.ones((rows, 16), np.float32))
        half = from_numpy(np.ones((rows // ranks, 16), np.float32))
        whole = to_global(local, mesh, B)
        layouts: dict[Sbp, Tensor] = {S0: to_global(half, mesh, S0), B: whole, Partial(): to_global(local, mesh, P)}
        for a, b in ((S0, B), (B, S0), (S0, S1), (P, B), (P, S0)):
            cases[f"{a}->{b} {label}"] = partial(to_global, layouts[a], sbp=b)
        alone = to_global(local, first, B)
        cases[f"[0]->[1] {label}"] = partial(to_global, alone, second)
        cases[f"local->S(0) {label}"] = partial(to_global, half, mesh, S0)
        cases[f"local->S(0) unchecked {label}"] = partial(to_global, half, mesh, S0, check_meta=False)
        cases[f"local->B {label}"] = partial(to_global, local, mesh, B)
        cases[f"numpy() of B {label}"] = whole.numpy
        cases[f"numpy() of S(0) {label}"] = layouts[S0].numpy
    return cases


# -------------------------------------------------------------------- a training step


class Mlp(Module):
    """With the weights of `models.weights`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = Linear(784, models.HIDDEN)
        self.output = Linear(models.HIDDEN, models.CLASSES)
        values = models.weights("mlp")
        for name, parameter in self.named_parameters():
            parameter.array[...] = values[name.replace(".", "-")]

    def forward(self, images: Tensor) -> Tensor:
        return self.output(nn_activations.relu(self.hidden(shapes.flatten(images, 1))))


def batch(ranks: int) -> tuple[Tensor, Tensor]:
    """This rank's share."""
    rank = state().rank.index
    images, labels = (np.array_split(part, ranks)[rank].copy() for part in models.batch("mlp"))
    return from_numpy(images), from_numpy(labels)


def stepping(net: Module, images: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    optimizer = optim.SGD(net.parameters(), lr=models.SGD_RATE)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn_classes.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def steps(ranks: int) -> Cases:
    """The batch split among the ranks: global tensors, and local ones whose gradients are averaged."""
    images, labels = batch(ranks)
    cases: Cases = {"local": stepping(Mlp(), images, labels)} if ranks == 1 else {}
    if ranks > 1:
        cases["averaged"] = stepping(DistributedDataParallel(Mlp()), images, labels)
    mesh = everywhere(ranks)
    data = [to_global(t, mesh, S0) for t in (images, labels)]
    return {**cases, "global": stepping(Mlp().to_global(mesh, B), data[0], data[1])}


class Train(Graph):
    """The same step, compiled."""

    def __init__(self, net: Module) -> None:
        super().__init__()
        self.net = net
        self.add_optimizer(optim.SGD(net.parameters(), lr=models.SGD_RATE))

    def build(self, images: Tensor, labels: Tensor) -> Tensor:
        loss = nn_classes.cross_entropy(self.net(images), labels)
        loss.backward()
        return loss


def graph(ranks: int) -> Cases:
    """Of local tensors, and of global ones."""
    images, labels = batch(ranks)
    mesh = everywhere(ranks)
    data = [to_global(t, mesh, S0) for t in (images, labels)]
    together = Train(Mlp().to_global(mesh, B))
    cases: Cases = {"graph": lambda: together(*data)}
    if ranks == 1:
        alone = Train(Mlp())
        cases["local graph"] = lambda: alone(images, labels)
    return cases


PARTS = {"ops": ops, "routes": routes, "step": steps, "graph": graph}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    comm = state().rank.comm
    cases = PARTS[options.part](options.ranks)

    def timed(call: Callable[[], Any], calls: int) -> dict[str, Any]:
        comm.barrier()
        return {"seconds": worker.means(call, calls)}

    does: dict[str, Callable[[int], dict[str, Any]]] = {name: partial(timed, call) for name, call in cases.items()}
    does["facts"] = lambda _: {"version": flow.__version__, "cases": list(cases)}
    if options.part in ("step", "graph"):
        does["losses"] = lambda count: {"losses": {name: [float(call().numpy()) for _ in range(count)] for name, call in cases.items()}}
    worker.obey(does, answers=state().rank.index == 0)


if __name__ == "__main__":
    main()
