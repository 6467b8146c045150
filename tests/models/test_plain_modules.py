"""The modules of jobflow.models: the values of PyTorch, training, and weights of Hugging Face files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import models
from jobflow.core.errors import ArgumentError

#: arguments of each module, and the sum of its outputs times cos(index) in PyTorch 2.13 with the same code, weights and inputs in float64
MODULES: dict[str, tuple[str, dict[str, Any], float]] = {
    "GPT": ("GPT", {"words": 11, "length": 6, "width": 8, "heads": 2, "blocks": 2}, 5.731629124099291),
    "Llama": ("Llama", {"words": 11, "length": 6, "width": 8, "heads": 2, "groups": 1, "blocks": 2, "hidden": 12}, -0.9838571777089072),
    "ResNet": ("ResNet", {"channels": 2, "classes": 3, "blocks": [1, 1], "width": 4}, -0.2841898623108429),
    "ResNet, bottlenecks": (
        "ResNet",
        {"channels": 2, "classes": 3, "blocks": [1, 1], "width": 4, "bottleneck": True, "stem": "large"},
        -0.5118200700753086,
    ),
    "ViT": ("ViT", {"channels": 2, "classes": 3, "size": 8, "patch": 4, "width": 8, "heads": 2, "blocks": 2}, 0.11052639334966291),
    "UNet": ("UNet", {"channels": 2, "outputs": 3, "width": 4, "factors": [1, 2], "groups": 2}, 3.9058671558484526),
    "UNet, times": ("UNet", {"channels": 2, "outputs": 3, "width": 4, "factors": [1, 2], "groups": 2, "times": True}, 6.10840519035345),
}


def waves(shape: Any, start: float = 0.0, rate: float = 1.7) -> Any:
    return np.sin(rate * np.arange(np.prod(shape, dtype=int)) + start).reshape(tuple(shape))


def inputs_of(name: str) -> list[Any]:
    if name in ("GPT", "Llama"):
        return [flow.tensor(np.arange(10).reshape(2, 5) * 7 % 11)]
    images = flow.tensor(waves((2, 2, 8, 8), rate=0.9))
    return [images, flow.tensor(np.array([3.0, 40.0]))] if name == "UNet, times" else [images]


@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_those_of_pytorch(name: str) -> None:
    kind, arguments, expected = MODULES[name]
    model = getattr(models, kind)(**arguments).double().eval()
    state = model.state_dict()
    for i, (key, value) in enumerate(state.items()):
        if "num_batches" not in key:
            state[key] = flow.tensor(waves(value.shape, i) * 0.5 + ("running_var" in key))
    model.load_state_dict(state)
    scores = model(*inputs_of(name)).detach().numpy()
    assert (scores * np.cos(np.arange(scores.size)).reshape(scores.shape)).sum() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_learns(name: str) -> None:
    kind, arguments, _ = MODULES[name]
    flow.manual_seed(0)
    model = getattr(models, kind)(**arguments).double()
    optimizer = flow.optim.Adam(model.parameters(), lr=0.03)
    inputs = inputs_of(name)

    def loss_of() -> Any:
        if name in ("GPT", "Llama"):
            return model(inputs[0][:, :-1], inputs[0][:, 1:])["loss"].mean()
        scores = model(*inputs)
        return scores.square().mean() if kind == "UNet" else flow.nn.functional.cross_entropy(scores, flow.tensor([0, 2]))

    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[3] < 0.9 * losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_invalid_sizes_raise_with_the_values() -> None:
    with pytest.raises(ArgumentError, match="patch 3 must divide size 8"):
        models.ViT(size=8, patch=3)
    with pytest.raises(ArgumentError, match=r'stem must be "small" \(3x3\) or "large" \(7x7 and pooling\), not .wide'):
        models.ResNet(stem="wide")
