"""The namespace `flow.distributions`: probability distributions of tensors, with PyTorch's names."""

from jobflow.core.lazy_imports import add_aliases as _add_aliases
from jobflow.distributions.continuous import Exponential as Exponential
from jobflow.distributions.continuous import Laplace as Laplace
from jobflow.distributions.continuous import LogNormal as LogNormal
from jobflow.distributions.continuous import Normal as Normal
from jobflow.distributions.continuous import Uniform as Uniform
from jobflow.distributions.counts import Binomial as Binomial
from jobflow.distributions.counts import Multinomial as Multinomial
from jobflow.distributions.discrete import Bernoulli as Bernoulli
from jobflow.distributions.discrete import Categorical as Categorical
from jobflow.distributions.discrete import Geometric as Geometric
from jobflow.distributions.discrete import OneHotCategorical as OneHotCategorical
from jobflow.distributions.discrete import OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough
from jobflow.distributions.distribution import Distribution as Distribution
from jobflow.distributions.divergence import kl_divergence as kl_divergence
from jobflow.distributions.divergence import register_kl as register_kl
from jobflow.distributions.gammas import Beta as Beta
from jobflow.distributions.gammas import Chi2 as Chi2
from jobflow.distributions.gammas import Dirichlet as Dirichlet
from jobflow.distributions.gammas import Gamma as Gamma
from jobflow.distributions.independent import Independent as Independent
from jobflow.distributions.multivariate import MultivariateNormal as MultivariateNormal

_add_aliases(__name__, "jobflow.distributions")
