"""Distributions with parameters and values, written for any library with PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_RANDOM = np.random.default_rng(12)


def _positive(*shape: int) -> Array:
    return _RANDOM.uniform(0.4, 2.5, shape)


def _real(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape)


def _shares(*shape: int) -> Array:
    x = _RANDOM.uniform(0.1, 1.0, shape)
    return x / x.sum(-1, keepdims=True)


def _unit(*shape: int) -> Array:
    return _RANDOM.uniform(0.1, 0.9, shape)


def _bits(*shape: int) -> Array:
    return (_RANDOM.random(shape) < 0.5).astype(float)


def _classes(count: int, *shape: int) -> Array:
    return _RANDOM.integers(0, count, shape)


def _constructor(name: str, *positional: Any, **options: Any) -> Callable[..., Any]:
    """Return a function that creates the distribution from its namespace and the parameters in the order of their names."""

    def make(d: Any, **parameters: Any) -> Any:
        return getattr(d, name)(*positional, **parameters, **options)

    return make


def _independent(d: Any, **parameters: Any) -> Any:
    return d.Independent(d.Normal(**parameters), 1)


#: name -> (constructor, parameters, parameters of the second distribution of a divergence or None, value)
CASES: dict[str, tuple[Callable[..., Any], dict[str, Array], dict[str, Array] | None, Array]] = {
    "normal": (_constructor("Normal"), {"loc": _real(4, 3), "scale": _positive(3)}, {"loc": _real(3), "scale": _positive(4, 1)}, _real(2, 4, 3)),
    "log_normal": (_constructor("LogNormal"), {"loc": _real(3), "scale": _positive(3)}, {"loc": _real(3), "scale": _positive(3)}, _positive(4, 3)),
    "uniform": (
        _constructor("Uniform"),
        {"low": -_positive(3), "high": _positive(3)},
        {"low": -3 - _positive(3), "high": 1 + _positive(3)},
        _unit(2, 3) * 0.4,
    ),
    "laplace": (_constructor("Laplace"), {"loc": _real(4), "scale": _positive(4)}, {"loc": _real(4), "scale": _positive(4)}, _real(2, 4)),
    "exponential": (_constructor("Exponential"), {"rate": _positive(4)}, {"rate": _positive(4)}, _positive(2, 4)),
    "gamma": (
        _constructor("Gamma"),
        {"concentration": _positive(4), "rate": _positive(4)},
        {"concentration": _positive(4), "rate": _positive(4)},
        _positive(3, 4),
    ),
    "chi2": (_constructor("Chi2"), {"df": _positive(4) * 2}, None, _positive(3, 4)),
    "beta": (
        _constructor("Beta"),
        {"concentration1": _positive(4), "concentration0": _positive(4)},
        {"concentration1": _positive(4), "concentration0": _positive(4)},
        _unit(3, 4),
    ),
    "dirichlet": (_constructor("Dirichlet"), {"concentration": _positive(2, 4)}, {"concentration": _positive(2, 4)}, _shares(3, 2, 4)),
    "bernoulli": (_constructor("Bernoulli"), {"probs": _unit(4)}, {"probs": _unit(4)}, _bits(3, 4)),
    "bernoulli_logits": (_constructor("Bernoulli"), {"logits": _real(4)}, {"logits": _real(4)}, _bits(3, 4)),
    "geometric": (_constructor("Geometric"), {"probs": _unit(4)}, {"probs": _unit(4)}, _classes(5, 3, 4).astype(float)),
    "categorical": (_constructor("Categorical"), {"probs": _positive(2, 4)}, {"probs": _positive(2, 4)}, _classes(4, 3, 2)),
    "categorical_logits": (_constructor("Categorical"), {"logits": _real(2, 4)}, {"logits": _real(4)}, _classes(4, 2)),
    "one_hot": (_constructor("OneHotCategorical"), {"probs": _positive(2, 4)}, {"probs": _positive(2, 4)}, np.eye(4)[_classes(4, 3, 2)]),
    "binomial": (_constructor("Binomial", 5), {"probs": _unit(4)}, {"probs": _unit(4)}, _classes(6, 3, 4).astype(float)),
    "binomial_logits": (_constructor("Binomial", 3), {"logits": _real(4)}, {"logits": _real(4)}, _classes(4, 4).astype(float)),
    "multinomial": (_constructor("Multinomial", 3), {"probs": _positive(2, 4)}, None, np.array([[1.0, 2, 0, 0], [0, 1, 1, 1]])),
    "multivariate": (
        _constructor("MultivariateNormal"),
        {"loc": _real(2, 3), "covariance_matrix": np.eye(3) + 0.3 * np.ones((3, 3))},
        {"loc": _real(3), "covariance_matrix": 2 * np.eye(3) + 0.1 * np.ones((3, 3))},
        _real(4, 2, 3),
    ),
    "multivariate_factor": (_constructor("MultivariateNormal"), {"loc": _real(3), "scale_tril": np.tri(3) + np.eye(3)}, None, _real(4, 3)),
    "independent": (_independent, {"loc": _real(4, 3), "scale": _positive(4, 3)}, {"loc": _real(4, 3), "scale": _positive(4, 3)}, _real(2, 4, 3)),
}
#: properties and methods whose results are compared where PyTorch has them
PROPERTIES = ("mean", "mode", "variance", "stddev")
QUANTILES = np.array([0.1, 0.5, 0.7])


def results(distributions: Any, case: str, tensor: Callable[[Array], Any]) -> dict[str, Any]:
    """Return the values of all functions of the case; `tensor` makes tensors, of which floats require gradients."""
    make, parameters, others, value = CASES[case]
    first = {name: tensor(x) for name, x in parameters.items()}
    p = make(distributions, **first)
    at = tensor(value)
    count = value.shape[0] if value.ndim > len(p.batch_shape) + len(p.event_shape) else 2
    outputs = {"log_prob": p.log_prob(at), "entropy": p.entropy(), "expanded": p.expand((count, *p.batch_shape)).log_prob(at)}
    if others is not None:
        second = {f"q_{name}": tensor(x) for name, x in others.items()}
        outputs["kl"] = distributions.kl_divergence(p, make(distributions, **{name[2:]: x for name, x in second.items()}))
        first |= second
    total = sum((y * y).sum() for y in outputs.values())
    total.backward()
    outputs |= {f"gradient/{name}": x.grad for name, x in {**first, "value": at}.items() if x.grad is not None}
    for name in PROPERTIES:
        if case not in ("categorical", "categorical_logits", "uniform") or (name == "variance" and case == "uniform"):
            outputs |= _optional(name, lambda name=name: getattr(p, name))
    outputs |= _optional("cdf", lambda: p.cdf(at))
    outputs |= _optional(
        "icdf", lambda: p.icdf(tensor(np.broadcast_to(QUANTILES.reshape(3, *(1,) * len(p.batch_shape)), (3, *p.batch_shape)).copy()))
    )
    outputs |= _optional("support", lambda: p.enumerate_support())
    outputs |= _optional("support_1", lambda: p.enumerate_support(expand=False))
    return outputs


def _optional(name: str, call: Callable[[], Any]) -> dict[str, Any]:
    """Return the result under its name, or nothing if the distribution lacks the function."""
    try:
        return {name: call()}
    except NotImplementedError:
        return {}
