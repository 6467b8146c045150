"""Small models of records: columns of numbers, of categories, and pairs."""

from __future__ import annotations

from typing import Any

from models.library import F, flow, nn


def layers(*widths: int) -> list[Any]:
    """Linear layers with ReLU after each."""
    return [parts for inputs, outputs in zip(widths, widths[1:], strict=False) for parts in (nn.Linear(inputs, outputs), nn.ReLU())]


class Tabular(nn.Module):
    """Columns of numbers, normalised over the batch at every layer."""

    def __init__(self) -> None:
        super().__init__()
        parts = [part for a, b in ((50, 128), (128, 128), (128, 64)) for part in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.ELU())]
        self.layers, self.head = nn.Sequential(nn.BatchNorm1d(50), *parts), nn.Linear(64, 1)

    def forward(self, x: Any, y: Any) -> Any:
        return F.mse_loss(self.head(self.layers(x)), y)


class Recommendation(nn.Module):
    """A user and a thing, of which there are many, to the chance that they fit."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.things, self.kinds = nn.Embedding(20000, 32), nn.Embedding(10000, 32), nn.Embedding(50, 8)
        self.layers = nn.Sequential(*layers(72, 64, 32), nn.Linear(32, 1))

    def forward(self, users: Any, things: Any, kinds: Any, fits: Any) -> Any:
        x = flow.cat([self.users(users), self.things(things), self.kinds(kinds)], 1)
        return F.binary_cross_entropy_with_logits(self.layers(x), fits)


class Interactions(nn.Module):
    """Categories and numbers as vectors, and the products of each two of them (DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 16) for size in (30000, 10000, 5000, 1000, 100, 10)])
        self.numbers = nn.Sequential(*layers(13, 64, 16))
        self.head = nn.Sequential(*layers(16 + 21, 64, 32), nn.Linear(32, 1))
        pairs = [7 * i + j for i in range(7) for j in range(i)]
        self.register_buffer("pairs", flow.tensor(pairs), persistent=False)

    def forward(self, features: Any, categories: Any, clicks: Any) -> Any:
        dense = self.numbers(features)
        vectors = flow.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], 1)
        products = flow.matmul(vectors, vectors.transpose(1, 2)).flatten(1)
        x = flow.cat([dense, flow.index_select(products, 1, self.pairs)], 1)
        return F.binary_cross_entropy_with_logits(self.head(x), clicks)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(32 * 49, 64)

    def forward(self, x: Any) -> Any:
        return F.normalize(self.head(self.layers(x).flatten(1)), dim=1)


class Siamese(nn.Module):
    """Three pictures through one tower: like ones are to be near each other, and others far."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower()

    def forward(self, anchor: Any, like: Any, other: Any) -> Any:
        return F.triplet_margin_loss(self.tower(anchor), self.tower(like), self.tower(other), margin=1.0)


class Messages(nn.Module):
    """A graph whose nodes send messages along its edges, three times over, and are told apart by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(24, 48), nn.Linear(48, 7)
        self.edges = nn.ModuleList([nn.Sequential(nn.Linear(96, 48), nn.Softplus()) for _ in range(3)])
        self.nodes = nn.ModuleList([nn.Sequential(nn.Linear(96, 48), nn.Tanh()) for _ in range(3)])

    def forward(self, features: Any, sources: Any, targets: Any, kinds: Any) -> Any:
        x = self.first(features)
        for edge, node in zip(self.edges, self.nodes, strict=True):
            sent = edge(flow.cat([flow.index_select(x, 0, sources), flow.index_select(x, 0, targets)], 1))
            heard = flow.index_add(flow.zeros_like(x), 0, targets, sent)
            x = x + node(flow.cat([x, heard], 1))
        return F.cross_entropy(self.head(x), kinds)
