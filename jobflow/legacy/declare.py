"""The decorator `global_function`, which turns a Python function over logical tensors into a job.

@flow.global_function(type="train")
def train_job(images: tp.Numpy.Placeholder((100, 784)), labels: tp.Numpy.Placeholder((100,), dtype=flow.int32)) -> tp.Numpy:
    ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.notices import notice
from jobflow.engine.body import JobBody, Replacing
from jobflow.engine.eager_job import EagerJob
from jobflow.engine.job_config import FunctionConfig
from jobflow.engine.session import current_session
from jobflow.engine.staged_job import StagedJob
from jobflow.legacy.optimizer.from_options import optimizer_of
from jobflow.strategies import zero


def global_function(type: str | FunctionConfig = "predict", function_config: FunctionConfig | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function as a job.

    A job of `type` "predict" computes its results. A "train" job also minimizes a loss at every call. The older form passes a FunctionConfig first:
    the job trains if the configuration has training options.

    Raises: JobError for another type or `function_config`, unsupported annotations, and a function that is already a job. Also raised for use
    without call parentheses, or in the body of a job.

    Examples:
        >>> import jobflow.typing as tp
        >>> @flow.global_function()
        ... def double(x: tp.Numpy.Placeholder((3,))) -> tp.Numpy:
        ...     return x * 2
        ...
        >>> double(np.float32([1, 2, 3]))
        array([2., 4., 6.], dtype=float32)
    """
    where = user_line()
    if scope.current().interpreter is not None:
        raise JobError(f"global_function at {where}: the body of a job is running; declare jobs outside of jobs")
    if isinstance(type, FunctionConfig):
        notice("global_function(config) is deprecated; write global_function(type, config)")
        function_config = type
        type = "train" if type.trains else "predict"
    if callable(type):
        raise JobError(f'global_function at {where} requires call parentheses; write @global_function() or @global_function(type="train")')
    if not isinstance(type, str) or type not in ("predict", "train"):
        raise JobError(f'global_function at {where}: type must be "predict" or "train", not {type!r}')
    if function_config is not None and not isinstance(function_config, FunctionConfig):
        raise JobError(f"global_function at {where}: function_config is {function_config!r}; pass a flow.function_config()")
    config = (function_config or FunctionConfig()).copy()
    trainable = type == "train"
    if trainable and _spreads_optimizers(config):
        config.set("strategy", zero(1, least=config.options.get("optimizer_placement_optimization_threshold", 1024)))

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        if hasattr(function, "job"):
            raise JobError(f"global_function at {where}: {function.__name__} is already a job; decorate it once")
        session = current_session()
        job = (EagerJob if session.settings.eager else StagedJob)(function, trainable, config, where, optimizer_of, _replacing(config))
        session.register(job)

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if named:
                raise ArgumentError(f"{job.name}({', '.join(named)}=...) at {user_line()}: pass the arguments of a job by position")
            if scope.current().interpreter is not None:
                raise JobError(
                    f"call of job {job.name} at {user_line()}: another job's body is running; move shared computation into a plain function"
                )
            with scope.lock():  # the session stays open during the call
                give = current_session().performed(job, args)
            return give()

        call.job = job  # type: ignore[attr-defined]
        return call

    return declare


def _spreads_optimizers(config: FunctionConfig) -> bool:
    """Return True if the options request a sharded optimizer state, without a strategy, a placement hierarchy or the mirrored view."""
    options = config.options
    if "strategy" in options or not (options.get("optimizer_placement_optimization_mode") or options.get("enable_non_distributed_optimizer")):
        return False
    place, view = options.get("default_placement_scope"), options.get("default_logical_view")
    return (place is None or place.hierarchy is None) and not isinstance(view, scope.mirrored_view)


def _replacing(config: FunctionConfig) -> Callable[[JobBody], Replacing] | None:
    """Return a function that creates the quantization-aware rewrite of a job body, or None if the configuration does not enable it."""
    if not config.options.get("enable_quantization_aware_training"):
        return None
    from jobflow.legacy.extras.quantization_aware import Quantization

    return functools.partial(Quantization, config)
