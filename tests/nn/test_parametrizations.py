"""Parametrized and pruned weights, lazy modules, and fusion of batch norm: values, names in the state, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import ArgumentError, JobError, JobflowError, ShapeError
from jobflow.nn import utils
from jobflow.nn.utils import parametrizations, parametrize, prune


class Symmetric(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.triu() + x.triu(1).transpose(0, 1)


class Doubled(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2.0

    def right_inverse(self, x: Any) -> Any:
        return x * 0.5


def rows(*shape: int) -> Any:
    return flow.tensor(np.random.default_rng(0).standard_normal(shape))


def linear() -> Any:
    return nn.Linear(4, 4).double()


def distance(x: Any, y: Any) -> float:
    return float(np.abs(x.detach().numpy() - y.detach().numpy()).max())


NORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], list[str]]] = {
    "weight_norm": (utils.weight_norm, utils.remove_weight_norm, ["bias", "weight_g", "weight_v"]),
    "spectral_norm": (utils.spectral_norm, utils.remove_spectral_norm, ["bias", "weight_orig", "weight_u", "weight_v"]),
    "parametrized weight_norm": (
        parametrizations.weight_norm,
        lambda m: parametrize.remove_parametrizations(m, "weight"),
        ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"],
    ),
    "parametrized spectral_norm": (
        parametrizations.spectral_norm,
        lambda m: parametrize.remove_parametrizations(m.eval(), "weight"),
        ["bias", "parametrizations.weight.0._u", "parametrizations.weight.0._v", "parametrizations.weight.original"],
    ),
    "pruning": (lambda m: prune.l1_unstructured(m, "weight", 0.5), lambda m: prune.remove(m, "weight"), ["bias", "weight_mask", "weight_orig"]),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalized_weights_train_copy_compile_and_return(name: str) -> None:
    apply, remove, names = NORMS[name]
    module = linear()
    assert apply(module) is module
    assert sorted(module.state_dict()) == names
    x = rows(3, 4)
    module(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    module.eval()
    y = module(x)
    assert distance(copy.deepcopy(module)(x), y) == 0
    assert distance(flow.compile(module)(x), y) < 1e-12
    restored = apply(linear()).eval()
    restored.load_state_dict(module.state_dict())
    assert distance(restored(x), y) == 0
    remove(module)
    assert type(module) is nn.Linear and sorted(module.state_dict()) == ["bias", "weight"]
    assert isinstance(module.weight, nn.Parameter) and distance(module(x), y) < 1e-12


def test_spectral_norm_divides_by_the_largest_singular_value() -> None:
    for apply in (utils.spectral_norm, parametrizations.spectral_norm):
        flow.manual_seed(0)
        module = nn.Conv2d(3, 4, 2).double()
        largest = np.linalg.svd(module.weight.detach().numpy().reshape(4, -1))[1][0]
        weight = module.weight.detach().numpy() / largest
        apply(module, n_power_iterations=200)
        np.testing.assert_allclose(module.weight.detach().numpy(), weight, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights_remain_orthogonal(kind: str, shape: tuple[int, int]) -> None:
    for trivialized in (True, False):
        module = nn.Linear(*shape[::-1]).double()
        parametrizations.orthogonal(module, orthogonal_map=kind, use_trivialization=trivialized)
        (original,) = [p for name, p in module.named_parameters() if "original" in name]
        with flow.no_grad():
            original += 0.1 * flow.ones(*shape, dtype=flow.float64).tril(-1)
        module.weight.sum().backward()
        weight = module.weight.detach().numpy()
        product = weight @ weight.T if shape[0] < shape[1] else weight.T @ weight
        np.testing.assert_allclose(product, np.eye(min(shape)), atol=1e-12)
        assert original.grad.abs().sum().item() > 0 or shape[0] == shape[1]
        if trivialized or kind == "householder":
            target = np.linalg.qr(rows(max(shape), min(shape)).numpy())[0]
            module.weight = flow.tensor(target if shape[0] >= shape[1] else target.T)
            np.testing.assert_allclose(np.abs(module.weight.detach().numpy()), np.abs(target if shape[0] >= shape[1] else target.T), atol=1e-12)


def test_parametrizations_compose_and_accept_assignment() -> None:
    module = linear()
    before = module.weight.detach().clone()
    parametrize.register_parametrization(module, "weight", Doubled())
    parametrize.register_parametrization(module, "weight", Doubled())
    assert parametrize.is_parametrized(module, "weight") and not parametrize.is_parametrized(module, "bias")
    assert distance(module.weight, before) == 0
    module.weight = rows(4, 4)
    assert distance(module.weight, rows(4, 4)) == 0
    with parametrize.cached():
        assert module.weight is module.weight
    symmetric = parametrize.register_parametrization(linear(), "weight", Symmetric())
    assert distance(symmetric.weight, symmetric.weight.transpose(0, 1)) == 0
    assert parametrize.type_before_parametrizations(symmetric) is nn.Linear


def test_parametrized_weights_of_global_modules_equal_local_ones() -> None:
    def program(rank: int) -> list[float]:
        result = []
        for apply in (utils.weight_norm, parametrizations.spectral_norm):
            flow.manual_seed(0)
            local = apply(linear()).eval()
            y = local(rows(3, 4))
            spread = copy.deepcopy(local).to_global(flow.placement("cpu", [0, 1]), flow.sbp.broadcast).to_global(sbp=flow.sbp.split(0))
            x = flow.tensor(rows(3, 4).numpy(), placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.broadcast)
            result.append(float(np.abs(spread(x).detach().numpy() - y.detach().numpy()).max()))
        return result

    assert max(on_ranks(2, program)[0]) < 1e-12


def test_masks_prune_the_smallest_elements() -> None:
    module = linear()
    smallest = np.sort(np.abs(module.weight.detach().numpy()).ravel())[:3]
    prune.l1_unstructured(module, "weight", 3)
    hidden = module.weight_mask.numpy() == 0
    np.testing.assert_array_equal(np.sort(np.abs(module.weight_orig.detach().numpy()[hidden])), smallest)
    prune.custom_from_mask(module, "weight", flow.eye(4))
    assert prune.is_pruned(module) and int((module.weight_mask != 0).sum().item()) <= 4
    prune.random_structured(module, "bias", 1, 0)
    assert int(module.bias_mask.sum().item()) == 3
    structured = prune.ln_structured(linear(), "weight", 0.5, 2, 1)
    assert int((structured.weight_mask.amax(0) == 0).sum().item()) == 2


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.LazyLinear(5), (3, 4)),
        (lambda: nn.LazyConv2d(4, 3, groups=2), (2, 6, 5, 5)),
        (lambda: nn.LazyConvTranspose1d(2, 3), (3, 4)),
        (lambda: nn.LazyBatchNorm1d(bias=False), (4, 3)),
        (lambda: nn.LazyInstanceNorm2d(affine=True), (2, 3, 4, 4)),
    ],
)
def test_lazy_modules_become_ordinary_ones_at_their_first_call(make: Any, shape: tuple[int, ...]) -> None:
    module = make()
    parameters = list(module.parameters())
    assert all(isinstance(p, nn.UninitializedParameter) for p in parameters)
    module.double()
    module(rows(*shape)).sum().backward()
    assert "Lazy" not in type(module).__name__ and list(module.parameters()) == parameters
    assert all(type(p) is nn.Parameter and p.dtype is flow.float64 and p.grad is not None for p in parameters)


def test_fused_modules_equal_both_modules() -> None:
    for module, norm, fuse, x in (
        (nn.Conv2d(3, 4, 2, bias=False), nn.BatchNorm2d(4), utils.fuse_conv_bn_eval, rows(2, 3, 4, 4)),
        (nn.Linear(4, 5), nn.BatchNorm1d(5), utils.fuse_linear_bn_eval, rows(3, 4)),
    ):
        module, norm = module.double(), norm.double()
        norm(module(x))
        assert distance(fuse(module.eval(), norm.eval())(x), norm(module(x))) < 1e-12


def test_total_norm_covers_all_gradients() -> None:
    module = linear()
    module(rows(3, 4)).sum().backward()
    grads = [p.grad for p in module.parameters()]
    total = utils.get_total_norm(grads)
    assert abs(float(total.item()) - float(np.sqrt(sum((g.numpy() ** 2).sum() for g in grads)))) < 1e-9
    utils.clip_grads_with_norm_(module.parameters(), 0.5, total)
    assert abs(float(utils.get_total_norm(grads).item()) - 0.5) < 1e-6


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: utils.weight_norm(linear(), "weights"), ArgumentError, "no parameter or buffer 'weights'; it has weight, bias"),
        (lambda: utils.weight_norm(3), ArgumentError, "module must be an nn.Module; got 3"),
        (lambda: utils.remove_weight_norm(linear()), ArgumentError, "has no weight_norm of 'weight'"),
        (lambda: utils.spectral_norm(linear(), n_power_iterations=0), ArgumentError, "must be at least 1; got 0"),
        (lambda: setattr(utils.weight_norm(linear()), "weight", rows(4, 4)), ArgumentError, "computed from other parameters"),
        (lambda: parametrize.register_parametrization(linear(), "weight", abs), ArgumentError, "must be an nn.Module"),
        (lambda: parametrize.register_parametrization(linear(), "weight", nn.Linear(4, 3).double()), ShapeError, "or pass unsafe=True"),
        (lambda: parametrizations.orthogonal(linear(), "bias"), ShapeError, "it needs at least two axes"),
        (lambda: parametrize.remove_parametrizations(linear(), "weight"), ArgumentError, "no parametrized tensor 'weight'"),
        (lambda: copy.copy(utils.weight_norm(linear())), JobError, "save its state_dict()"),
        (lambda: prune.l1_unstructured(linear(), "weight", 1.5), ArgumentError, "a fraction must be at most 1"),
        (lambda: prune.custom_from_mask(linear(), "weight", rows(2, 2)), ShapeError, "must be a tensor with the shape of the parameter"),
        (lambda: nn.LazyLinear(5)(3), ArgumentError, "the first argument must be a tensor"),
        (lambda: nn.LazyConv2d(4, 3)(rows(2, 2)), ShapeError, "must have 3 or 4 axes"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 9, [5, 2]), ArgumentError, "cutoffs must be increasing ints from 1 to 8"),
        (lambda: utils.fuse_linear_bn_eval(linear(), nn.BatchNorm1d(4)), ArgumentError, "call eval() first"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], kind: type[JobflowError], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value) and "test_parametrizations.py" in str(caught.value)
