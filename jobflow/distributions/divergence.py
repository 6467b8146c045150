"""Kullback-Leibler divergences, by formulas that are registered for pairs of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.distributions.continuous import Exponential, Laplace, LogNormal, Normal, Uniform
from jobflow.distributions.counts import Binomial
from jobflow.distributions.discrete import Bernoulli, Categorical, Geometric, OneHotCategorical
from jobflow.distributions.distribution import Distribution, broadcast
from jobflow.distributions.gammas import Beta, Dirichlet, Gamma
from jobflow.distributions.independent import Independent
from jobflow.functional.nn_activations import softplus
from jobflow.functional.tensor_class import Tensor

Formula = Callable[[Any, Any], Tensor]
_FORMULAS: dict[tuple[type, type], Formula] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Return a decorator that registers a function of p and q as the divergence of two classes and their subclasses.

    Raises: ArgumentError unless both are classes of distributions.
    """
    for name, kind in (("type_p", type_p), ("type_q", type_q)):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise ArgumentError(f"register_kl at {user_line()}: {name} must be a class of distributions; got {kind!r}")

    def decorator(function: Formula) -> Formula:
        _FORMULAS[type_p, type_q] = function
        return function

    return decorator


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return the Kullback-Leibler divergence E_p[log p(x) - log q(x)], in the shape `batch_shape`.

    Raises: JobError if no formula is registered for the classes of p and q.
    """
    for name, each in (("p", p), ("q", q)):
        if not isinstance(each, Distribution):
            raise ArgumentError(f"kl_divergence at {user_line()}: {name} must be a distribution; got {each!r}")
    orders = type(p).__mro__, type(q).__mro__
    candidates = [(orders[0].index(a) + orders[1].index(b), n) for n, (a, b) in enumerate(_FORMULAS) if a in orders[0] and b in orders[1]]
    if not candidates:
        raise JobError(
            f"kl_divergence at {user_line()}: there is no formula for {type(p).__name__} and {type(q).__name__}; register one with register_kl"
        )
    return list(_FORMULAS.values())[min(candidates)[1]](p, q)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    first = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    first = first.masked_fill(q.probs == 0, math.inf).masked_fill(p.probs == 0, 0.0)
    second = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    second = second.masked_fill(q.probs == 1, math.inf).masked_fill(p.probs == 1, 0.0)
    return first + second


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    divergence = p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())
    return divergence.masked_fill(p.total_count > q.total_count, math.inf)


@register_kl(Categorical, Categorical)
@register_kl(OneHotCategorical, OneHotCategorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    return terms.masked_fill((q.probs == 0).expand(terms.shape), math.inf).masked_fill((p.probs == 0).expand(terms.shape), 0.0).sum(-1)


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Normal, Normal)
@register_kl(LogNormal, LogNormal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    distance = ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + distance - 1 - ratio.log())


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio = p.scale / q.scale
    distance = (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    divergence = ((q.high - q.low) / (p.high - p.low)).log()
    return divergence.masked_fill((q.low > p.low) + (q.high < p.high), math.inf)


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    return b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma() + (a - b) * a.digamma() + (q.rate - p.rate) * (a / p.rate)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    total_p, total_q = p.concentration1 + p.concentration0, q.concentration1 + q.concentration0
    constants = q.concentration1.lgamma() + q.concentration0.lgamma() + total_p.lgamma()
    constants = constants - (p.concentration1.lgamma() + p.concentration0.lgamma() + total_q.lgamma())
    one = (p.concentration1 - q.concentration1) * p.concentration1.digamma()
    zero = (p.concentration0 - q.concentration0) * p.concentration0.digamma()
    return constants + one + zero + (total_q - total_p) * total_p.digamma()


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = broadcast("kl_divergence", p=p.concentration, q=q.concentration)
    total = a.sum(-1)
    constants = total.lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    return constants + ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        counts = f"{p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims}"
        raise JobError(f"kl_divergence at {user_line()}: reinterpreted_batch_ndims of p and q must be equal; got {counts}")
    return p.summed(kl_divergence(p.base_dist, q.base_dist))
