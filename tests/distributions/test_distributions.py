"""Distributions: values and gradients equal PyTorch's in every layout; samples have the right moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distribution_cases import CASES, results
from ranks import on_ranks

import jobflow as flow
from jobflow import distributions as d

RECORDED = dict(np.load(Path(__file__).parent / "references" / "values.npz"))


def check(case: str, actual: dict[str, Any]) -> None:
    expected = {name.partition("/")[2]: x for name, x in RECORDED.items() if name.startswith(f"{case}/")}
    assert set(expected) - {"cdf"} <= set(actual), case  # cumulative gamma and beta functions do not exist
    for name in expected.keys() & actual.keys():
        np.testing.assert_allclose(actual[name].detach().numpy(), expected[name], rtol=1e-7, atol=1e-9, err_msg=f"{case} {name}")


def local(array: Any) -> Any:
    x = flow.tensor(array)
    return x.requires_grad_() if x.is_floating_point() else x


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_equal_pytorch(case: str) -> None:
    check(case, results(d, case, local))


SPLIT, WHOLE = flow.sbp.split(0), flow.sbp.broadcast
#: ranks and their layouts
SPREAD = [([0, 1], [WHOLE]), ([0, 1, 2], [SPLIT]), ([[0, 1], [2, 3]], [SPLIT, WHOLE])]


@pytest.mark.parametrize(("ranks", "sbp"), [([0, 1], [SPLIT]), *(pytest.param(*each, marks=pytest.mark.full) for each in SPREAD)], ids=str)
def test_global_parameters_have_the_values_and_gradients_of_pytorch(ranks: Any, sbp: list[Any]) -> None:
    def program(rank: int) -> None:
        here = flow.placement("cpu", ranks)

        def spread(array: Any) -> Any:
            x = flow.tensor(array, placement=here, sbp=sbp if array.ndim else [WHOLE] * len(sbp))
            return x.requires_grad_() if x.is_floating_point() else x

        for case in CASES:
            check(case, results(d, case, spread))

    on_ranks(int(np.size(ranks)), program)


#: distribution -> mean and standard deviation of its samples, which `mean` and `stddev` return
SAMPLED = [
    lambda: d.Normal(flow.tensor([1.0, -2.0]), 0.5),
    lambda: d.LogNormal(flow.tensor([0.1]), 0.3),
    lambda: d.Uniform(flow.tensor([-1.0, 2.0]), flow.tensor([1.0, 5.0])),
    lambda: d.Laplace(flow.tensor([0.5]), 2.0),
    lambda: d.Exponential(flow.tensor([0.5, 4.0])),
    lambda: d.Gamma(flow.tensor([0.3, 1.0, 6.0]), 2.0),
    lambda: d.Chi2(flow.tensor([3.0])),
    lambda: d.Beta(flow.tensor([0.5, 2.0]), flow.tensor([0.5, 5.0])),
    lambda: d.Dirichlet(flow.tensor([0.4, 1.0, 3.0])),
    lambda: d.Bernoulli(flow.tensor([0.2, 0.9])),
    lambda: d.Geometric(flow.tensor([0.3, 0.8])),
    lambda: d.Binomial(6, flow.tensor([0.2, 0.7])),
    lambda: d.OneHotCategorical(flow.tensor([[1.0, 2.0, 5.0], [0.0, 1.0, 1.0]])),
    lambda: d.OneHotCategoricalStraightThrough(logits=flow.tensor([0.0, 1.0])),
    lambda: d.Multinomial(4, flow.tensor([1.0, 2.0, 5.0])),
    lambda: d.Independent(d.Normal(flow.zeros(2, 3), 1.0), 1),
    lambda: d.MultivariateNormal(flow.ones(2), flow.tensor([[1.0, 0.5], [0.5, 2.0]])),
]


@pytest.mark.parametrize("number", range(len(SAMPLED)))
def test_samples_have_the_moments_of_the_distribution(number: int) -> None:
    flow.manual_seed(3)
    p = SAMPLED[number]()
    n = 8000
    x = p.sample((n,))
    assert tuple(x.shape) == (n, *p.batch_shape, *p.event_shape) and not x.requires_grad
    samples, mean, deviation = x.numpy().astype(np.float64), p.mean.numpy(), p.stddev.numpy()
    np.testing.assert_allclose(samples.mean(0), mean, atol=5 * deviation.max() / np.sqrt(n))
    np.testing.assert_allclose(samples.std(0), deviation, atol=0.06 * deviation.max())
    assert np.isfinite(p.log_prob(x).numpy()).all()
    flow.manual_seed(3)
    np.testing.assert_array_equal(SAMPLED[number]().sample((n,)).numpy(), x.numpy())


def test_samples_of_classes_have_their_frequencies() -> None:
    flow.manual_seed(5)
    probs = np.array([[0.1, 0.0, 0.9], [0.3, 0.3, 0.4]])
    for p in (d.Categorical(flow.tensor(probs)), d.Categorical(logits=flow.tensor(np.log(np.maximum(probs, 1e-300))))):
        x = p.sample((4, 5000))
        assert x.dtype is flow.int64 and tuple(x.shape) == (4, 5000, 2)
        frequencies = np.stack([(x.numpy() == k).mean((0, 1)) for k in range(3)], -1)
        np.testing.assert_allclose(frequencies, probs, atol=0.02)


def test_samples_have_gradients_of_location_and_scale() -> None:
    """The gradient of a sample is 1 for the location, and the standardized sample for the scale."""
    for kind, names in ((d.Normal, ("loc", "scale")), (d.Laplace, ("loc", "scale"))):
        parameters = {name: flow.tensor([0.5, 2.0], requires_grad=True) for name in names}
        x = kind(**parameters).rsample((3,))
        x.sum().backward()
        np.testing.assert_allclose(parameters["loc"].grad.numpy(), [3, 3])
        np.testing.assert_allclose(
            parameters["scale"].grad.numpy(), ((x.detach() - parameters["loc"]) / parameters["scale"]).sum(0).detach().numpy(), rtol=1e-5
        )
    low, high = (flow.tensor([v], requires_grad=True) for v in (0.0, 2.0))
    x = d.Uniform(low, high).rsample()
    x.sum().backward()
    np.testing.assert_allclose([low.grad.item(), high.grad.item()], [1 - x.item() / 2, x.item() / 2], rtol=1e-6)
    a = flow.tensor([2.0], requires_grad=True)
    for p in (d.Gamma(a, 1.0), d.Beta(a, 1.0), d.Dirichlet(flow.stack([a, a], -1))):
        assert not p.sample().requires_grad
        with pytest.raises(flow.JobflowError, match=r"rsample.*concentration.*not supported"):
            p.rsample()


def test_compiled_policies_have_the_loss_of_eager_ones() -> None:
    def loss(logits: Any, action: Any) -> Any:
        p = d.Categorical(logits=logits)
        return -(p.log_prob(action) + 0.1 * p.entropy()).mean(), p.sample()

    logits, action = flow.tensor(np.random.default_rng(0).standard_normal((6, 4))), flow.tensor([0, 3, 1, 2, 0, 1])
    expected, sample = loss(logits, action)
    value, drawn = flow.compile(loss)(logits, action)
    np.testing.assert_allclose(value.item(), expected.item())
    assert drawn.shape == sample.shape == (6,)


def test_global_samples_come_from_the_global_stream() -> None:
    def program(rank: int) -> Any:
        flow.manual_seed(7)
        here = flow.placement("cpu", range(2))
        flow.rand(rank + 1)  # ranks sample different numbers of local tensors
        p = d.Normal(flow.zeros(4, placement=here, sbp=flow.sbp.split(0)), 1.0)
        return p.sample((3,)).numpy(), d.Gamma(flow.ones(4, placement=here, sbp=flow.sbp.broadcast), 1.0).sample().numpy()

    first, second = on_ranks(2, program)
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, y)


def test_other_divergences_can_be_registered() -> None:
    class Shifted(d.Normal):
        pass

    p, q = Shifted(0.0, 1.0), d.Laplace(0.0, 1.0)
    np.testing.assert_allclose(d.kl_divergence(p, d.Normal(1.0, 1.0)).item(), 0.5)
    with pytest.raises(flow.JobflowError, match=r"Shifted and Laplace.*register_kl"):
        d.kl_divergence(p, q)
    d.register_kl(Shifted, d.Laplace)(lambda p, q: p.loc + 3.0)
    assert d.kl_divergence(p, q).item() == 3.0


REFUSED = [
    (lambda: d.Normal(0.0, -1.0), r"Normal at .*: scale -1.0 must be greater than 0"),
    (lambda: d.Normal(float("nan"), 1.0), r"Normal at .*: loc nan"),
    (lambda: d.Normal("a", 1.0), r"loc must be a tensor or a number; got 'a'"),
    (lambda: d.Normal(flow.zeros(2), flow.ones(3)), r"Normal.*loc float32\[2\], scale float32\[3\]"),
    (lambda: d.Uniform(1.0, 0.0), r"Uniform at .*: high - low"),
    (lambda: d.Bernoulli(1.5), r"Bernoulli at .*: probs 1.5"),
    (lambda: d.Bernoulli(), r"Bernoulli.*probs or logits; got none"),
    (lambda: d.Bernoulli(0.5, 0.0), r"got both"),
    (lambda: d.Bernoulli(0.5).log_prob(flow.tensor(0.5)), r"Bernoulli.log_prob at .*: value 0.5"),
    (lambda: d.Bernoulli(0.5).log_prob(1), r"log_prob.*value must be a tensor, not int"),
    (lambda: d.Categorical(flow.tensor([-1.0, 2.0])), r"Categorical at .*: probs -1.0"),
    (lambda: d.Categorical([0.5, 0.5]), r"probs must be a tensor, not list"),
    (lambda: d.Categorical(flow.tensor(0.5)), r"last axis"),
    (lambda: d.Categorical(flow.ones(3)).log_prob(flow.tensor(3)), r"value 3"),
    (lambda: d.Categorical(flow.ones(2, 3)).log_prob(flow.tensor([0, 1, 2])), r"batch and event shape \[2\]"),
    (lambda: d.Categorical(flow.ones(3)).sample((-1,)), r"shape"),
    (lambda: d.Categorical(flow.ones(3)).sample(3), r"shape.*3"),
    (lambda: d.Categorical(flow.ones(3)).rsample(), r"no rsample"),
    (lambda: d.Categorical(flow.ones(3)).cdf(flow.tensor(1)), r"no cdf"),
    (lambda: d.Beta(1.0, 0.0), r"Beta at .*: concentration0 0.0"),
    (lambda: d.Dirichlet(2.0), r"Dirichlet.*tensor, not float"),
    (lambda: d.Dirichlet(flow.ones(2)).log_prob(flow.tensor([0.5, 0.9])), r"sum of value"),
    (lambda: d.Binomial(2.5, 0.5), r"Binomial at .*: total_count 2.5"),
    (lambda: d.Binomial(2, 0.5).log_prob(flow.tensor(3.0)), r"total_count - value"),
    (lambda: d.Multinomial(2.5, flow.ones(2)), r"total_count must be an int"),
    (lambda: d.Independent(d.Normal(0.0, 1.0), 1), r"reinterpreted_batch_ndims"),
    (lambda: d.Independent(d.Normal(flow.zeros(2), 1.0), 1).expand(3), r"shape.*3"),
    (lambda: d.MultivariateNormal(flow.ones(2)), r"MultivariateNormal.*one of .*got none"),
    (lambda: d.MultivariateNormal(flow.ones(2), flow.eye(3)), r"covariance_matrix float32\[3,3\]"),
    (lambda: d.Independent(3, 1), r"base_distribution"),
    (lambda: d.kl_divergence(1, 2), r"p must be a distribution"),
    (lambda: d.register_kl(int, d.Normal), r"type_p"),
    (lambda: d.Normal(0.0, 1.0).expand("ab"), r"shape.*'ab'"),
    (lambda: d.Distribution.set_default_validate_args("no"), r"True or False"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_invalid_arguments_raise_errors(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises(flow.JobflowError, match=message):
        call()


def test_validation_can_be_disabled() -> None:
    assert np.isnan(d.Normal(0.0, -1.0, validate_args=False).log_prob(flow.tensor(0.0)).item())
