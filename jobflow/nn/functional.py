"""The namespace `flow.nn.functional`: the computations of modules as functions of tensors; `functional.pyi` lists the names."""

from typing import Any as _Any

from jobflow.core.lazy_imports import attach as _attach
from jobflow.functional.dispatch import all_of as _all_of
from jobflow.functional.dispatch import of_tensors as _of_tensors


def _as_public(name: str, value: _Any) -> _Any:
    return _all_of(__name__, {name: value}, "jobflow.functional", _of_tensors).get(name, value)


__getattr__, __dir__ = _attach(__name__, __file__, convert=_as_public)
