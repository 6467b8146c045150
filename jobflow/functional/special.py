"""The namespace `flow.special`: special functions."""

from jobflow.functional import nn_activations as _nn_activations
from jobflow.functional import special_functions as _special_functions
from jobflow.functional.dispatch import all_of as _all_of
from jobflow.functional.dispatch import of_tensors as _of_tensors
from jobflow.functional.nn_activations import log_softmax as log_softmax
from jobflow.functional.nn_activations import softmax as softmax
from jobflow.functional.reductions import logsumexp as logsumexp
from jobflow.functional.special_functions import digamma as digamma
from jobflow.functional.special_functions import entr as entr
from jobflow.functional.special_functions import erfcx as erfcx
from jobflow.functional.special_functions import erfinv as erfinv
from jobflow.functional.special_functions import i0 as i0
from jobflow.functional.special_functions import i0e as i0e
from jobflow.functional.special_functions import i1 as i1
from jobflow.functional.special_functions import i1e as i1e
from jobflow.functional.special_functions import log_ndtr as log_ndtr
from jobflow.functional.special_functions import ndtr as ndtr
from jobflow.functional.special_functions import ndtri as ndtri
from jobflow.functional.special_functions import polygamma as polygamma
from jobflow.functional.special_functions import sinc as sinc
from jobflow.functional.special_functions import xlog1py as xlog1py
from jobflow.functional.special_functions import xlogy as xlogy
from jobflow.functional.special_functions import zeta as zeta
from jobflow.functional.unary_functions import erf as erf
from jobflow.functional.unary_functions import erfc as erfc
from jobflow.functional.unary_functions import exp2 as exp2
from jobflow.functional.unary_functions import expm1 as expm1
from jobflow.functional.unary_functions import log1p as log1p
from jobflow.functional.unary_functions import logit as logit
from jobflow.functional.unary_functions import round as round

expit = _nn_activations.sigmoid
gammaln = _special_functions.lgamma
multigammaln = _special_functions.mvlgamma
psi = _special_functions.digamma

globals().update(_all_of(__name__, globals(), "jobflow.functional", _of_tensors))
