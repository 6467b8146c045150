"""Names that both faces have: in the body of a job they are the job face's, elsewhere those of tensors.

    reshape = by_face(arrays.reshape)      # elsewhere jobflow.functional.reshape, which is imported at the first call

Modules that the job face has as functions (`nn.MSELoss(x, y)`) are told apart where `jobflow.nn` is asked for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import jobflow.arrays as arrays
import jobflow.math as math
import jobflow.scope as scope

#: where the other functions are
TENSORS = "jobflow.functional"


def in_job() -> bool:
    """True in the body of a job function, False elsewhere, also while nn.Graph.build runs."""
    here = scope.current()
    return here.interpreter is not None and (here.root.eager is None or here.root.eager.building is None)


def by_face(job: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """`job` in the body of a job; elsewhere the function of tensors of this name."""
    word = name or job.__name__

    @wraps(job)
    def either(*args: Any, **named: Any) -> Any:
        if in_job():
            return job(*args, **named)
        function: Callable[..., Any] = getattr(importlib.import_module(TENSORS), word)
        return function(*args, **named)

    return either


cast = by_face(arrays.cast)
clamp = by_face(math.clamp)
clip = by_face(math.clip)
concat = by_face(arrays.concat)
expand = by_face(arrays.expand)
flatten = by_face(arrays.flatten)
gather = by_face(arrays.gather)
masked_fill = by_face(arrays.masked_fill)
matmul = by_face(arrays.matmul)
one_hot = by_face(arrays.one_hot)
ones = by_face(arrays.ones)
ones_like = by_face(arrays.ones_like)
reshape = by_face(arrays.reshape)
squeeze = by_face(arrays.squeeze)
stack = by_face(arrays.stack)
transpose = by_face(arrays.transpose)
where = by_face(arrays.where)
zeros = by_face(arrays.zeros)
zeros_like = by_face(arrays.zeros_like)
