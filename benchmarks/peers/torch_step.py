"""The benchmark models in PyTorch, as its users write them; runs in an environment of its own.

    python torch_step.py MODEL [--variant V] [--check] [--device cuda] [--rank R --ranks N --rendezvous FILE]

Variants: eager; compiled (`torch.compile` of forward and loss); fused (eager, the optimizer in one kernel); channels_last.

With several ranks it is DistributedDataParallel over gloo, every rank with its share of the batch.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

START = time.perf_counter()

import torch  # noqa: E402 - its import is timed
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

IMPORTED = time.perf_counter() - START
sys.path.insert(0, str(Path(__file__).parents[1]))

import models  # noqa: E402
import worker  # noqa: E402


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(784, models.HIDDEN)
        self.output = nn.Linear(models.HIDDEN, models.CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.output(F.relu(self.hidden(images.flatten(1))))


class LeNet(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.hidden = nn.Linear(64 * 7 * 7, models.HIDDEN)
        self.dropout = nn.Dropout(rate)
        self.outlayer = nn.Linear(models.HIDDEN, models.CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.outlayer(self.dropout(F.relu(self.hidden(x.flatten(1)))))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        d = models.GPT_WIDTH
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, models.GPT_HEADS, -1).transpose(1, 2).split(d // models.GPT_HEADS, dim=3)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(context.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(models.GPT_WORDS, models.GPT_WIDTH)
        self.positions = nn.Parameter(torch.zeros(models.GPT_LENGTH, models.GPT_WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(models.GPT_BLOCKS))
        self.norm = nn.LayerNorm(models.GPT_WIDTH)
        self.head = nn.Linear(models.GPT_WIDTH, models.GPT_WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def jobflow_name(name: str) -> str:
    """blocks.0.norm1.weight -> block0-norm1-gamma"""
    if name in ("positions", "words.weight"):
        return name.split(".")[0]
    *path, kind = name.replace("blocks.", "block", 1).split(".")
    if "norm" in path[-1]:
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    return "-".join([*path, kind])


def build(model: str, rate: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model with the weights of `models.weights`."""
    net = {"mlp": Mlp, "lenet": lambda: LeNet(rate), "gpt": Gpt}[model]().to(dtype)
    values = models.weights(model, torch.empty((), dtype=dtype).numpy().dtype)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(values.pop(jobflow_name(name))))
    assert not values, f"weights without a parameter: {sorted(values)}"
    return net


def optimizer_of(model: str, net: nn.Module, decay: float, fused: bool) -> torch.optim.Optimizer:
    if model == "gpt":
        return torch.optim.AdamW(net.parameters(), lr=models.ADAMW_RATE, weight_decay=decay, fused=fused)
    return torch.optim.SGD(net.parameters(), lr=models.SGD_RATE, fused=fused)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=models.MODELS)
    parser.add_argument("--variant", choices=("eager", "compiled", "fused", "channels_last"), default="eager")
    parser.add_argument("--check", action="store_true", help="without dropout and weight decay, so that losses can be compared")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rendezvous", default="")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = build(options.model, 0.0 if options.check else models.LENET_RATE).to(options.device)
    optimizer = optimizer_of(options.model, net, 0.0 if options.check else models.ADAMW_DECAY, options.variant == "fused")
    if options.ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{options.rendezvous}", rank=options.rank, world_size=options.ranks)
        net = nn.parallel.DistributedDataParallel(net)
    inputs, labels = (torch.from_numpy(part).chunk(options.ranks)[options.rank].clone() for part in models.batch(options.model))
    inputs, labels = inputs.to(options.device), labels.flatten().long().to(options.device)
    if options.model == "gpt":
        inputs = inputs.long()
    if options.variant == "channels_last":
        net, inputs = net.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)

    def loss_now() -> torch.Tensor:
        return F.cross_entropy(net(inputs), labels)

    run = torch.compile(loss_now) if options.variant == "compiled" else loss_now

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = run()
        loss.backward()
        optimizer.step()
        return loss.detach().cpu()  # where the step ends

    def loss_of(loss: torch.Tensor) -> float:
        if options.ranks > 1:
            torch.distributed.all_reduce(loss)
        return float(loss) / options.ranks

    start = time.perf_counter()
    first = step()
    first_step = time.perf_counter() - start

    def facts() -> dict[str, object]:
        return {"version": torch.__version__, "import_s": IMPORTED, "first_step_s": first_step, "first_loss": loss_of(first.clone())}

    worker.serve(step, loss_of, facts, answers=options.rank == 0)
    if options.ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
