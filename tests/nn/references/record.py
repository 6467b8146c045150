"""Recorder of references.npz, sequences.npz, models.npz, further.npz, and second.npz with second derivatives.

PyTorch's results of the cases are recorded in float64.

Run with a Python that has torch: `python tests/nn/references/record.py [file ...]`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from further_cases import FURTHER
from model_cases import MODELS
from nn_cases import CASES, GRADIENTS, TWICE, Case, _Called
from sequence_cases import SEQUENCES
from torch.nn.attention import SDPBackend, sdpa_kernel


def loss_of(case: Case) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any], tuple[Any, ...]]:
    """Return the weighted sum of the outputs, the tensors (inputs, parameters, buffers), and the outputs."""
    called = case.make(torch.nn, torch.nn.functional)
    module = called.module if isinstance(called, _Called) else called
    parameters: dict[str, Any] = {}
    buffers: dict[str, Any] = {}
    if isinstance(module, torch.nn.Module):
        module.double().train(case.train)
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        for name, p in parameters.items():
            p.data = torch.from_numpy(np.array(case.parameter(name, tuple(p.shape))))
    tensors = [torch.from_numpy(np.array(array)) for array in case.arrays()]
    for x, (kind, _) in zip(tensors, case.inputs, strict=True):
        x.requires_grad_(kind in GRADIENTS)
    outputs = called(*tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum((y * torch.from_numpy(np.array(case.weights(i, tuple(y.shape))))).sum() for i, y in enumerate(outputs))
    return loss, tensors, parameters, buffers, outputs


def recorded(case: Case) -> dict[str, Any]:
    """Return outputs, gradients of inputs and parameters, and buffers after one call."""
    loss, tensors, parameters, buffers, outputs = loss_of(case)
    arrays = {f"out/{i}": y for i, y in enumerate(outputs)}
    if loss.requires_grad:
        loss.backward()
    arrays |= {f"input/{i}": x.grad for i, x in enumerate(tensors) if x.grad is not None}
    arrays |= {f"parameter/{name}": p.grad for name, p in parameters.items() if p.grad is not None}
    arrays |= {f"buffer/{name}": x for name, x in buffers.items()}
    return {f"{case.name}/{name}": x.detach().numpy() for name, x in arrays.items()}


def recorded_twice(case: Case) -> dict[str, Any]:
    """Return the gradients of a weighted sum of the gradients, with zeros for tensors that the sum does not depend on."""
    with sdpa_kernel(SDPBackend.MATH):
        loss, tensors, parameters, _, _ = loss_of(case)
    inputs = {f"input/{i}": x for i, x in enumerate(tensors) if x.requires_grad} | {f"parameter/{name}": p for name, p in parameters.items()}
    first = torch.autograd.grad(loss, list(inputs.values()), create_graph=True)
    weighed = [(g * torch.from_numpy(case.weights_of_gradient(name, tuple(g.shape)))).sum() for name, g in zip(inputs, first, strict=True)]
    second = torch.autograd.grad(sum(weighed), list(inputs.values()), allow_unused=True)
    return {f"{case.name}/{name}": np.zeros(tuple(x.shape)) if g is None else g.numpy() for (name, x), g in zip(inputs.items(), second, strict=True)}


def write(file: str, everything: dict[str, Any]) -> None:
    index = json.dumps({name: list(x.shape) for name, x in everything.items()})
    flat = np.concatenate([x.astype(np.float64).ravel() for x in everything.values()])
    np.savez_compressed(Path(__file__).with_name(file), index=np.array(index), numbers=flat)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.backends.mha.set_fastpath_enabled(False)
    files = {
        "references.npz": (CASES, recorded),
        "sequences.npz": (SEQUENCES, recorded),
        "further.npz": (FURTHER, recorded),
        "models.npz": (MODELS, recorded),
        "second.npz": (TWICE, recorded_twice),
    }
    for file in sys.argv[1:] or files:
        cases, record = files[file]
        write(file, {name: x for case in cases for name, x in record(case).items()})


if __name__ == "__main__":
    main()
