"""Callbacks with a tensor of a job, or its gradient, after every run: `watch` and `watch_diff`.

    def show(x: tp.Numpy): print(x.mean())

    flow.watch(logits, show)              # in the body of the job
    flow.watch(logits, "logits")          # prints the string, then the array

Watched values are delivered with the results. The callbacks run before the call of the job returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from jobflow.core.errors import JobError, user_line
from jobflow.core.types import Tensor
from jobflow.engine.returned import Delivered, LocalBlob, array, arrays
from jobflow.legacy.variables import current_job
from jobflow.typing import ListNumpy, Numpy

#: A function of one argument, or a text to print before the value, or None to print the value alone.
Watcher = Callable[[Any], Any] | str | None


def watch(blob_watched: Tensor, handler_or_prompt: Watcher = None) -> None:
    """Call `handler_or_prompt` with the value of `blob_watched` after every run.

    A function receives the whole array if its argument is annotated `tp.Numpy`, and a list of one array per device for `tp.ListNumpy`. Without
    annotation it receives an object with the methods `numpy()` and `numpy_list()`. If `handler_or_prompt` is a string, the string is printed,
    followed by the value. If it is None, only the value is printed.
    """
    _watch("watch", blob_watched, handler_or_prompt, gradient=False)


def watch_diff(blob_watched: Tensor, handler_or_prompt: Watcher = None) -> None:
    """Call `handler_or_prompt` with the gradient of the loss with respect to `blob_watched` after every run of a train job.

    This loss is the sum of all loss elements, times the loss scale. The gradient is not yet divided by the number of elements, regularized or
    clipped. A tensor without a gradient causes no call.
    """
    _watch("watch_diff", blob_watched, handler_or_prompt, gradient=True)


def _watch(what: str, value: Any, watcher: Watcher, *, gradient: bool) -> None:
    job = current_job(what)
    if not isinstance(value, Tensor):
        raise JobError(f"{what} at {user_line()}: blob_watched must be a tensor of the job, not {value!r}")
    take = _reader(what, watcher) if callable(watcher) else partial(_print, watcher)
    job.watch(value, take, gradient)


def _reader(what: str, function: Callable[[Any], Any]) -> Callable[[Delivered], None]:
    """Return a callback that passes a value to `function` in the form that the annotation of its argument selects.

    Raises: JobError unless `function` accepts one argument, annotated tp.Numpy, tp.ListNumpy or not at all.
    """
    signature = inspect.signature(function, eval_str=True)
    try:
        (name,) = signature.bind(None).arguments
    except TypeError:
        raise JobError(f"{what} at {user_line()}: {function!r} must accept one argument, the value, but its signature is {signature}") from None
    annotation = signature.parameters[name].annotation
    shapes: dict[Any, Callable[[Delivered], Any]] = {Numpy: array, ListNumpy: arrays, inspect.Parameter.empty: LocalBlob}
    if annotation not in shapes:
        raise JobError(
            f"{what} at {user_line()}: argument {name} of {function!r} is annotated {annotation!r}; write tp.Numpy, tp.ListNumpy or nothing"
        )
    shape = shapes[annotation]

    def take(value: Delivered) -> None:
        function(shape(value))

    return take


def _print(prompt: object, value: Delivered) -> None:
    if prompt is not None:
        print(prompt)
    print(value)
