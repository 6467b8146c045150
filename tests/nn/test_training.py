"""Training of a small network gives equal results on one rank and on several, for every split of data and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks
from surroundings import F, lain, nn

from jobflow.core.layout import B, Layout, Placement, S
from jobflow.core.types import float64
from jobflow.engine.placements import placement as public
from jobflow.nn.utils import clip_grad_norm_
from jobflow.optim import SGD
from jobflow.tensors.state import state


class Net(nn.Module):
    """A network of convolution, batch norm, dropout, attention over the rows of the image, and classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.2))
        self.attention = nn.TransformerEncoderLayer(8, 2, 6, dropout=0.1, batch_first=True)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.GELU(), nn.Linear(10, 3))

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        return self.head(self.attention(x.reshape(x.shape[0], 2, 8)))


def trained(rank: int, ranks: int, data: tuple[Any, ...], weights: dict[str, tuple[Any, ...]], mesh: tuple[int, ...]) -> Any:
    """Return losses, norms of gradients and parameters of some steps; `weights` has the layouts of modules that are not broadcast."""
    state().manual_seed(9)
    net = Net().to(float64)
    state().manual_seed(10)  # local and global tensors have a generator each: both begin here
    lies = None
    if ranks > 1:
        where = Placement("cpu", tuple(range(ranks)), mesh)
        net.to_global(public.of(where), [B] * len(mesh))
        lies = Layout(where, data)
        for name, each in weights.items():
            net.get_submodule(name).to_global(sbp=list(each))
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    random = np.random.default_rng(0)
    losses = []
    for _ in range(4):
        x, labels = random.standard_normal((6, 2, 4, 4)), random.integers(0, 3, 6)
        loss = F.cross_entropy(net(lain(x, lies)), lain(labels, lies))
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(net.parameters(), 0.7)
        optimizer.step()
        losses.append((loss.item(), norm.item()))
    net.eval()
    output = net(lain(np.ones((2, 2, 4, 4)), lies)).detach().numpy()
    return losses, output, {name: x.numpy() for name, x in net.state_dict().items()}


WAYS: dict[str, Any] = {
    "data": (2, (S(0),), {}, (2,)),
    "three": (3, (S(0),), {}, (3,)),
    "weights": (2, (B,), {"head.1": (S(0),), "attention.linear1": (S(0),), "body.0": (S(0),)}, (2,)),
    "both": (4, (S(0), B), {"head.1": (B, S(0)), "attention.linear1": (B, S(0))}, (2, 2)),
    "spread": (2, (S(0),), {"head.1": (S(0),), "attention": (S(0),), "body.1": (S(0),)}, (2,)),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_does_not_depend_on_layouts(way: str) -> None:
    ((steps, output, parts),) = on_ranks(1, trained, 1, (), {}, ())
    assert steps[0][0] != steps[-1][0]
    for others, other_output, other_parts in on_ranks(WAYS[way][0], trained, *WAYS[way]):
        np.testing.assert_allclose(others, steps, rtol=1e-9)
        np.testing.assert_allclose(other_output, output, rtol=1e-8)
        for name, x in parts.items():
            np.testing.assert_allclose(other_parts[name], x, rtol=1e-7, atol=1e-9, err_msg=name)
