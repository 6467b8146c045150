"""Small data, shapes and optimizers for the tests of this folder, and the text of error messages."""

import inspect
import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
Y = np.array([0, 1, 2, 0], np.int32)
Rows = tp.Numpy.Placeholder((4, 6))
Labels = tp.Numpy.Placeholder((4,), dtype=flow.int32)
#: begins a session anew, on so many devices
Begin = Callable[[int], None]
Job = Callable[..., Any]


def constant(rate: float) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def sgd(rate: float = 0.5, momentum: float = 0.0, **options: Any) -> Any:
    return flow.optimizer.SGD(constant(rate), momentum=momentum, **options)


def normal() -> Any:
    return flow.random_normal_initializer(stddev=0.3)


def values() -> dict[str, Any]:
    """Return the current values of all variables."""
    return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}


def message_of(error: BaseException) -> str:
    """Return the message and its notes; replace each "file.py:line" of this folder by «the code of that line»."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])

    def code(match: re.Match[str]) -> str:
        line = linecache.getline(str(Path(__file__).with_name(match[1])), int(match[2])).strip()
        return f"«{line.rstrip(':')}»"

    return re.sub(r"(test_\w+\.py):(\d+)", code, text)


def declare(body: Callable[..., Any], *arguments: Any, gives: Any = tp.Numpy, type: str = "predict", config: Any = None, name: str = "job") -> Job:
    """Declare a job with this body, whose parameters are annotated with `arguments`, and its results with `gives`."""

    def job(*annotation: Any) -> Any:
        return body(*annotation)

    annotated = zip(inspect.signature(body).parameters.values(), arguments, strict=True)
    job.__name__ = name
    vars(job)["__signature__"] = inspect.Signature([each.replace(annotation=annotation) for each, annotation in annotated], return_annotation=gives)
    return flow.global_function(type, config)(job)
