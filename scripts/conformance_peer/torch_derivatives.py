"""Gradients and second derivatives of a call, as PyTorch gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from conformance_format import weights
from torch_trees import Encoder, error_record, tensors


def weighted(outputs: Sequence[torch.Tensor], first: int) -> torch.Tensor | None:
    """The sum of all elements, each with its own weight, of those that have a gradient."""
    differentiable = [(i, y) for i, y in enumerate(outputs) if y.requires_grad and y.is_floating_point()]
    parts = [(y * torch.from_numpy(weights(tuple(y.shape), first + i)).to(y.dtype)).sum() for i, y in differentiable]
    return sum(parts[1:], parts[0]) if parts else None


def derivatives(outputs: Any, leaves: Sequence[torch.Tensor], second: bool, encode: Encoder) -> dict[str, Any]:
    """{"grads": one per leaf, "grads2": the same of the weighted sum of the gradients}; null where nothing depends on the leaf."""
    loss = weighted(list(tensors(outputs)), 0)
    if loss is None:
        return {}
    try:
        grads = torch.autograd.grad(loss, leaves, create_graph=second, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        return {"grads": error_record(error)}
    encoded: dict[str, Any] = {"grads": [None if g is None else encode(g.detach()) for g in grads]}
    again = weighted([g for g in grads if g is not None], 100) if second else None
    if again is None:
        return encoded
    try:
        grads2 = torch.autograd.grad(again, leaves, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        return encoded | {"grads2": error_record(error)}
    return encoded | {"grads2": [None if g is None else encode(g.detach()) for g in grads2]}
