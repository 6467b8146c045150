"""Tensors and DTensors of PyTorch, timed on order, as eager_ours.py does; one process per rank, in an environment of its own.

python torch_eager.py ops|routes|step [--ranks N --rank R --rendezvous FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import models
import torch
import torch.distributed as dist
import torch.nn.functional as F
import worker
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

Cases = dict[str, Callable[[], Any]]
B, P, S0, S1 = Replicate(), Partial(), Shard(0), Shard(1)
NAMES = {B: "B", P: "P", S0: "S(0)", S1: "S(1)"}


def everywhere(ranks: int) -> DeviceMesh:
    return DeviceMesh("cpu", list(range(ranks)))


# -------------------------------------------------------------------- small ops


def ops(ranks: int, rank: int) -> Cases:
    torch.manual_seed(3)
    operands = {"local": [torch.randn(shape) for shape in ((4, 6), (4, 6), (6, 5))]}
    if ranks > 1:
        mesh = everywhere(ranks)
        operands["global"] = [distribute_tensor(t, mesh, [how]) for t, how in zip(operands["local"], (S0, S0, B), strict=True)]
    cases: Cases = {}
    for kind, (x, y, w) in operands.items():
        cases |= {f"{kind} {name}": call for name, call in forward(x, y, w).items()}
        leaves = [t.detach().clone().requires_grad_() for t in (x, y, w)]
        cases |= {f"{kind} {name} backward": through(call, leaves) for name, call in forward(*leaves).items()}
    return cases


def forward(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    return {
        "relu": lambda: F.relu(x),
        "add": lambda: x + y,
        "add number": lambda: x + 2.0,
        "matmul": lambda: x @ w,
        "reshape": lambda: x.reshape(4, 2, 3),
        "sum": lambda: x.sum(),
    }


def through(call: Callable[[], torch.Tensor], leaves: list[torch.Tensor]) -> Callable[[], None]:
    """There and back."""
    seed = torch.ones_like(call().detach())
    if isinstance(seed, DTensor) and seed.placements == (P,):
        seed = distribute_tensor(torch.ones(seed.shape), seed.device_mesh, [B])

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        call().backward(seed)

    return both


# -------------------------------------------------------------------- routes


def routes(ranks: int, rank: int) -> Cases:
    """DTensors do not move between meshes: there it is what programs write instead, send and recv."""
    mesh = everywhere(ranks)
    cases: Cases = {}
    for label, rows in (("1 KiB", 16), ("1 MiB", 16 << 10), ("16 MiB", 256 << 10)):
        local, half = torch.ones(rows, 16), torch.ones(rows // ranks, 16)
        layouts = {
            S0: DTensor.from_local(half, mesh, [S0]),
            B: DTensor.from_local(local, mesh, [B]),
            P: DTensor.from_local(local, mesh, [P]),
        }
        for a, b in ((S0, B), (B, S0), (S0, S1), (P, B), (P, S0)):
            cases[f"{NAMES[a]}->{NAMES[b]} {label}"] = partial(arrived, layouts[a], mesh, b)
        cases[f"[0]->[1] {label}"] = partial(moved, local, rank)
        cases[f"local->S(0) {label}"] = partial(DTensor.from_local, half, mesh, [S0], run_check=True)
        cases[f"local->S(0) unchecked {label}"] = partial(DTensor.from_local, half, mesh, [S0])
        cases[f"local->B {label}"] = partial(DTensor.from_local, local, mesh, [B], run_check=True)
        cases[f"numpy() of B {label}"] = partial(numpy_of, layouts[B])
        cases[f"numpy() of S(0) {label}"] = partial(numpy_of, layouts[S0])
    return cases


def arrived(x: DTensor, mesh: DeviceMesh, target: Any) -> torch.Tensor:
    """In another layout; communication is over when its result is looked at."""
    local = x.redistribute(mesh, [target]).to_local()
    return local.wait() if hasattr(local, "wait") else local


def moved(x: torch.Tensor, rank: int) -> torch.Tensor | None:
    if rank == 0:
        dist.send(x, 1)
        return None
    y = torch.empty_like(x)
    dist.recv(y, 0)
    return y


def numpy_of(x: DTensor) -> Any:
    return x.full_tensor().numpy()


# -------------------------------------------------------------------- a training step


class Mlp(nn.Module):
    """With the weights of `models.weights`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(784, models.HIDDEN)
        self.output = nn.Linear(models.HIDDEN, models.CLASSES)
        values = models.weights("mlp")
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.from_numpy(values[name.replace(".", "-")]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.output(F.relu(self.hidden(images.flatten(1))))


def stepping(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=models.SGD_RATE)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def steps(ranks: int, rank: int) -> Cases:
    images, labels = (torch.from_numpy(part).chunk(ranks)[rank].clone() for part in models.batch("mlp"))
    labels = labels.long()
    if ranks == 1:
        return {"local": stepping(Mlp(), images, labels)}
    mesh = everywhere(ranks)
    net = distribute_module(Mlp(), mesh)
    data = [DTensor.from_local(t, mesh, [S0]) for t in (images, labels)]
    return {
        "averaged": stepping(DistributedDataParallel(Mlp()), images, labels),
        "global": stepping(net, data[0], data[1]),
    }


PARTS = {"ops": ops, "routes": routes, "step": steps}


def value(loss: torch.Tensor) -> float:
    """Of a global loss the mean over all ranks' shares."""
    return float(loss.full_tensor() if isinstance(loss, DTensor) else loss)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rendezvous", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{options.rendezvous}", rank=options.rank, world_size=options.ranks)
    cases = PARTS[options.part](options.ranks, options.rank)

    def timed(call: Callable[[], Any], calls: int) -> dict[str, Any]:
        if options.ranks > 1:
            dist.barrier()
        return {"seconds": worker.means(call, calls)}

    does: dict[str, Callable[[int], dict[str, Any]]] = {name: partial(timed, call) for name, call in cases.items()}
    does["facts"] = lambda _: {"version": torch.__version__, "cases": list(cases)}
    does["losses"] = lambda count: {"losses": {name: [value(call()) for _ in range(count)] for name, call in cases.items()}}
    worker.obey(does, answers=options.rank == 0)
    if options.ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
