"""GPT-2 and ResNet-50 in PyTorch, with the weights of `workloads`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import workloads
from torch import nn
from workloads import Gpt2, ResNet50


class Block(nn.Module):
    def __init__(self, size: Gpt2) -> None:
        super().__init__()
        w = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(w, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2Loss(nn.Module):
    def __init__(self, size: Gpt2) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.positions = nn.Parameter(torch.zeros(size.length, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.blocks))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)
        self.changes = stride > 1 or channels != 4 * width
        if self.changes:
            self.shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut_bn = nn.BatchNorm2d(4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = self.shortcut_bn(self.shortcut(x)) if self.changes else x
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet50Loss(nn.Module):
    def __init__(self, size: ResNet50) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, size.width, 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(size.width)
        described = list(size.stages())
        self.stages = nn.ModuleList(
            nn.ModuleList(Bottleneck(*rest) for name, *rest in described if name.startswith(f"stages-{stage}-")) for stage in range(len(size.blocks))
        )
        self.classes = nn.Linear(4 * described[-1][2], size.classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.conv(images))), 3, 2, 1)
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return F.cross_entropy(self.classes(x.mean((2, 3))), labels)


def jobflow_name(name: str, parameter: torch.Tensor) -> str:
    """Return the name of the corresponding jobflow variable: blocks.0.norm1.weight -> blocks-0-norm1-gamma."""
    if name == "words.weight":
        return "words"
    *path, kind = name.split(".")
    if path and ("norm" in path[-1] or "bn" in path[-1]):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    return "-".join([*path, kind])


def build(size: Gpt2 | ResNet50) -> nn.Module:
    """Build the module, which returns the mean loss, with the initial weights."""
    net = Gpt2Loss(size) if isinstance(size, Gpt2) else ResNet50Loss(size)
    values = workloads.weights(size)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(values.pop(jobflow_name(name, parameter))))
    assert not values, f"weights without a parameter: {sorted(values)}"
    return net


def optimizer(size: Gpt2 | ResNet50, net: nn.Module) -> torch.optim.Optimizer:
    """Return a fused optimizer that decays matrices and filters only."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": size.decay},
        {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    if isinstance(size, Gpt2):
        return torch.optim.AdamW(groups, lr=size.rate, betas=size.betas, eps=size.epsilon, fused=True)
    return torch.optim.SGD(groups, lr=size.rate, momentum=size.momentum, fused=True)
