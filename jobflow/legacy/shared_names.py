"""Names of both APIs, dispatched by the arguments, else by the first tensor argument, else by the current job body.

The job function of a name is imported at the first use of the name.
`jobflow.nn.modules` dispatches between modules and job functions of the same name (`nn.MSELoss(x, y)`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import jobflow.engine.distribute as distribute
from jobflow.core.errors import no_attribute
from jobflow.engine.operators import TensorOperators
from jobflow.functional.tensor_class import Tensor
from jobflow.legacy.job_dispatch import by_arguments, of_jobs

if TYPE_CHECKING:
    from jobflow.legacy.arrays import cast as cast
    from jobflow.legacy.arrays import concat as concat
    from jobflow.legacy.arrays import expand as expand
    from jobflow.legacy.arrays import flatten as flatten
    from jobflow.legacy.arrays import gather as gather
    from jobflow.legacy.arrays import masked_fill as masked_fill
    from jobflow.legacy.arrays import matmul as matmul
    from jobflow.legacy.arrays import one_hot as one_hot
    from jobflow.legacy.arrays import ones as ones
    from jobflow.legacy.arrays import ones_like as ones_like
    from jobflow.legacy.arrays import range as range
    from jobflow.legacy.arrays import reshape as reshape
    from jobflow.legacy.arrays import squeeze as squeeze
    from jobflow.legacy.arrays import stack as stack
    from jobflow.legacy.arrays import transpose as transpose
    from jobflow.legacy.arrays import zeros as zeros
    from jobflow.legacy.arrays import zeros_like as zeros_like
    from jobflow.legacy.elements import argsort as argsort
    from jobflow.legacy.elements import diag as diag
    from jobflow.legacy.elements import sort as sort
    from jobflow.legacy.ids import argwhere as argwhere
    from jobflow.legacy.ids import nonzero as nonzero
    from jobflow.legacy.ids import where as where
    from jobflow.legacy.loss_functions import ctc_loss as ctc_loss
    from jobflow.legacy.math import clamp as clamp
    from jobflow.legacy.math import clip as clip
    from jobflow.legacy.time_steps import repeat as repeat

#: module of the job API -> its names, with the options of `by_arguments`
_CHOICES: dict[str, dict[str, dict[str, Any]]] = {
    "jobflow.legacy.arrays": {
        "cast": {},
        "concat": {},
        "expand": {"theirs": (int,)},
        "flatten": {},
        "gather": {"ours": (Tensor, TensorOperators), "theirs": (int,)},
        "masked_fill": {},
        "matmul": {},
        "one_hot": {"needs_dtype": True},
        "ones": {"theirs": (int,), "needs_dtype": True},
        "ones_like": {},
        "range": {},
        "reshape": {"theirs": (int,)},
        "squeeze": {"theirs": (int,)},
        "stack": {},
        "transpose": {"ours": (list, tuple), "theirs": (int,)},
        "zeros": {"theirs": (int,), "needs_dtype": True},
        "zeros_like": {},
    },
    "jobflow.legacy.elements": {"argsort": {"ours": (str,)}, "diag": {}, "sort": {"ours": (str,)}},
    "jobflow.legacy.ids": {"argwhere": {}, "nonzero": {"theirs": (bool,)}, "where": {}},
    "jobflow.legacy.loss_functions": {"ctc_loss": {}},
    "jobflow.legacy.math": {"clamp": {}, "clip": {}},
    "jobflow.legacy.time_steps": {"repeat": {"theirs": (list, tuple)}},
}


def __getattr__(name: str) -> Any:
    module = next((module for module, choices in _CHOICES.items() if name in choices), None)
    if module is None:
        raise no_attribute(name, f"module {__name__!r} has no attribute {name!r}", ())
    globals()[name] = by_arguments(getattr(import_module(module), name), **_CHOICES[module][name])
    return globals()[name]


_TO_GLOBAL = {"parallel_cast": "to_global(placement, sbp)", "hierarchical_parallel_cast": "to_global(placement, sbp)"}
parallel_cast = of_jobs(distribute.parallel_cast, "parallel_cast", _TO_GLOBAL)
hierarchical_parallel_cast = of_jobs(distribute.hierarchical_parallel_cast, "hierarchical_parallel_cast", _TO_GLOBAL)
