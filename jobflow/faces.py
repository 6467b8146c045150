"""Names that both faces have: in the body of a job they are the job face's, elsewhere those of tensors.

    reshape = by_face(arrays.reshape)      # elsewhere jobflow.functional.reshape, which is imported at the first call

Classes of modules that the job face has as functions (`nn.MSELoss(x, y)`) are told apart in the same way: `in_job`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

from jobflow import scope

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
