"""Namespaces nn and nn.functional of the cases, and a runner of a case on any ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from nn_cases import GRADIENTS, Case, _Called

import jobflow.nn.functional as F
import jobflow.nn.utils as utils
from jobflow.core.layout import Layout
from jobflow.core.types import DType
from jobflow.functional.creation import cut, tensor
from jobflow.functional.gradients import grad
from jobflow.nn.modules import activation_layers as activation
from jobflow.nn.modules import adaptive_softmax as adaptive
from jobflow.nn.modules import attention_layers as attention
from jobflow.nn.modules import container, module
from jobflow.nn.modules import conv_layers as conv
from jobflow.nn.modules import embedding_layers as embedding
from jobflow.nn.modules import linear_layers as linear
from jobflow.nn.modules import loss_layers as loss
from jobflow.nn.modules import norm_layers as norm
from jobflow.nn.modules import pool_layers as pool
from jobflow.nn.modules import recurrent_layers as recurrent
from jobflow.nn.modules import transformer_layers as transformer
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter

nn = SimpleNamespace(Parameter=Parameter, utils=utils)
for _each in (activation, adaptive, attention, container, conv, embedding, linear, loss, module, norm, pool, recurrent, transformer):
    vars(nn).update({name: value for name, value in vars(_each).items() if isinstance(value, type) and issubclass(value, Module)})

#: per input, given how many axes it has: how it lies; None makes everything local
Lay = Callable[[int, int], Layout] | None


@cache
def references(file: str) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Return the results of PyTorch, by case and name."""
    by_case: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    with np.load(Path(__file__).parent / "references" / file) as stored:
        flat, at = stored["numbers"], 0
        for name, shape in json.loads(str(stored["index"])).items():
            case, _, own = name.partition("/")
            size = int(np.prod(shape))
            by_case.setdefault(case, {})[own] = flat[at : at + size].reshape(shape)
            at += size
    return by_case


def reference(case: Case, file: str = "references.npz") -> dict[str, np.ndarray[Any, Any]]:
    """Return the results of PyTorch for one case."""
    return references(file).get(case.name, {})


def lain(array: np.ndarray[Any, Any], layout: Layout | None) -> Any:
    """Return a tensor with these values."""
    return tensor(array) if layout is None else cut("test", np.array(array), layout)


def called(case: Case, inputs: Lay, weights: Lay) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any], tuple[Any, ...]]:
    """Return the weighted sum of the outputs, the tensors (inputs, parameters, buffers), and the outputs."""
    called_module = case.make(nn, F)
    module = called_module.module if isinstance(called_module, _Called) else called_module
    parameters: dict[str, Any] = {}
    buffers: dict[str, Any] = {}
    if isinstance(module, Module):
        module.double().train(case.train)
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        for i, (name, p) in enumerate(parameters.items()):
            p.array[...] = case.parameter(name, tuple(p.shape))
            if weights is not None:
                placed = lain(np.array(p.array), weights(i, p.ndim))
                p.layout, p.array = placed.layout, placed.array
        if weights is not None:
            for x in buffers.values():
                whole = lain(np.array(x.array), weights(-1, 0))
                x.layout, x.array = whole.layout, whole.array
    tensors = [lain(array, None if inputs is None else inputs(i, array.ndim)) for i, array in enumerate(case.arrays())]
    for x, (kind, _) in zip(tensors, case.inputs, strict=True):
        x.requires_grad = kind in GRADIENTS
    outputs = called_module(*tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    weighed = [lain(case.weights(i, tuple(y.shape)), None if inputs is None else inputs(-1, 0)) for i, y in enumerate(outputs)]
    total = sum(((y * w).sum() for y, w in zip(outputs, weighed, strict=True)), start=0.0)
    return total, tensors, parameters, buffers, outputs


def run_case(case: Case, inputs: Lay = None, weights: Lay = None) -> dict[str, np.ndarray[Any, Any]]:
    """Return outputs, gradients and buffers by the names of `record.py`; `inputs(i, ndim)` and `weights(i, ndim)` return layouts."""
    total, tensors, parameters, buffers, outputs = called(case, inputs, weights)
    if total.requires_grad:
        total.backward()
    arrays = {f"out/{i}": y for i, y in enumerate(outputs)}
    arrays |= {f"input/{i}": x.grad for i, x in enumerate(tensors) if x.grad is not None}
    arrays |= {f"parameter/{name}": p.grad for name, p in parameters.items() if p.grad is not None}
    arrays |= {f"buffer/{name}": x for name, x in buffers.items()}
    return {name: np.array(x.detach().numpy()) for name, x in arrays.items()}


def run_twice(case: Case, inputs: Lay = None, weights: Lay = None) -> dict[str, np.ndarray[Any, Any]]:
    """Return the gradients of a weighted sum of the gradients."""
    total, tensors, parameters, _, _ = called(case, inputs, weights)
    differentiated = {f"input/{i}": x for i, x in enumerate(tensors) if x.requires_grad} | {f"parameter/{name}": p for name, p in parameters.items()}
    first = grad(total, list(differentiated.values()), create_graph=True)
    whole = None if inputs is None else inputs(-1, 0)
    weighed = [(g * lain(case.weights_of_gradient(name, tuple(g.shape)), whole)).sum() for name, g in zip(differentiated, first, strict=True)]
    second = grad(sum(weighed, start=0.0), list(differentiated.values()), allow_unused=True)
    return {name: np.zeros(tuple(x.shape)) if g is None else g.numpy() for (name, x), g in zip(differentiated.items(), second, strict=True)}


def forward(case: Case, dtype: DType) -> tuple[Any, ...]:
    """Return the outputs on one rank in an element type, after a backward pass."""
    called_module = case.make(nn, F)
    module = called_module.module if isinstance(called_module, _Called) else called_module
    if isinstance(module, Module):
        module.train(case.train)
        for name, p in module.named_parameters():
            p.array[...] = case.parameter(name, tuple(p.shape))
        module.to(dtype)
    tensors = [tensor(array, dtype=dtype) if array.dtype.kind == "f" else tensor(array) for array in case.arrays()]
    for x, (kind, _) in zip(tensors, case.inputs, strict=True):
        x.requires_grad = kind in GRADIENTS
    outputs = called_module(*tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if outputs[0].requires_grad:
        sum((y.sum() for y in outputs), start=0.0).backward()
        assert all(x.grad is None or x.grad.dtype is dtype for x in tensors)
    return outputs


def check(case: Case, results: dict[str, np.ndarray[Any, Any]], how: str = "", file: str = "references.npz") -> None:
    """Compare results with those of PyTorch."""
    expected = reference(case, file)
    tolerance = 1e-7 if case.name.startswith("Hardsigmoid") else 1e-9  # PyTorch's gradient has 1/6 as a float32
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=tolerance, atol=tolerance, err_msg=f"{case.name} {name} {how}")
