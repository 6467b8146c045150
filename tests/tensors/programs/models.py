"""Models that create tensors on the device of their input: `models.py`, alone or under mpiexec; rank 0 prints the losses of three steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import jobflow as torch
from jobflow import nn

F: Any = nn.functional
HERE = torch.placement.all("cpu")
B, S0 = torch.sbp.broadcast, torch.sbp.split(0)
DATA = np.random.default_rng(0).integers(0, 11, (2, 4, 6))


class Attention(nn.Module):
    """A language model with positions, a causal mask from a buffer, noise, and weights from Python data."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.offsets = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.qkv, self.output = nn.Linear(8, 24), nn.Linear(8, 11, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).view(1, 6, 6))
        self.scale = torch.full((1,), 0.5)

    def forward(self, x: Any, y: Any) -> Any:
        rows, length = x.size()
        hidden = self.tokens(x) + self.offsets(torch.arange(length, device=x.device)) * self.scale.to(x.device)
        q, k, v = self.qkv(hidden).split(8, dim=2)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        hidden = F.softmax(scores.masked_fill(self.mask[:, :length, :length] == 0, float("-inf")), dim=-1) @ v
        hidden = hidden * (torch.rand(rows, length, 1, device=x.device) < 0.9)
        losses = F.cross_entropy(self.output(hidden).view(-1, 11), y.view(-1), reduction="none").view(rows, length)
        valid = torch.ones(rows, length, device=x.device) * torch.tensor([1.0, 1, 1, 1, 1, 0]).to(x.device)
        return (losses * valid).sum() / valid.sum()


class Recurrent(nn.Module):
    """A recurrent language model with initial states."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.cells, self.output = nn.Embedding(11, 8), nn.LSTM(8, 8, 2, batch_first=True), nn.Linear(8, 11)

    def forward(self, x: Any, y: Any) -> Any:
        states = next(self.parameters()).new_zeros(2, x.size(0), 8), torch.zeros(2, x.size(0), 8, device=x.device)
        return F.cross_entropy(self.output(self.cells(self.tokens(x), states)[0]).transpose(1, 2), y)


class Variational(nn.Module):
    """A variational autoencoder, which samples noise."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Any, y: Any) -> Any:
        values = x.float() / 11
        mean, variance = self.encoder(values).chunk(2, 1)
        deviation = (variance / 2).exp()
        code = mean + torch.randn(deviation.size(), device=deviation.device) * deviation
        weights = torch.full((x.size(0),), 1.0, device=x.device)
        divergence = -0.5 * (1 + variance - mean**2 - variance.exp()).sum(1) * weights
        return F.mse_loss(torch.sigmoid(self.decoder(code)), values) + divergence.mean()


class Trained(nn.Graph):
    """A training step as a graph."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Any, y: Any) -> Any:
        loss = self.model(x, y)
        loss.backward()
        return loss


def step_of(model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step


MODES: dict[str, Callable[[Any, Any], Callable[[Any, Any], Any]]] = {
    "eager": step_of,
    "compiled": lambda model, optimizer: torch.compile(step_of(model, optimizer)),
    "graph": Trained,
}


def main() -> None:
    for kind in (Attention, Recurrent, Variational):
        for mode, start in MODES.items():
            torch.manual_seed(3)
            model = kind().to_global(HERE, B)
            step = start(model, torch.optim.SGD(model.parameters(), lr=0.1))
            torch.manual_seed(9)
            x, y = (torch.from_numpy(each).to(next(model.parameters()).device).to_global(sbp=S0) for each in DATA)
            losses = [step(x, y).item() for _ in range(3)]
            if torch.env.get_rank() == 0:
                print(kind.__name__, mode, *(f"{loss:.5f}" for loss in losses), flush=True)


main()
