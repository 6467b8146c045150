"""The configuration of a job: options set by calls such as ``config.default_data_type(flow.float32)`` or ``config.train.primary_lr(0.1)``.

Each option and its accepted values are a row of `OPTIONS`.
"""

from __future__ import annotations

from typing import Any

import jobflow.core.scope as scope
from jobflow.compiler.front.schedule import SCHEDULES
from jobflow.core.errors import JobError, SourceLine, user_line
from jobflow.core.notices import notice
from jobflow.core.types import DType, float16, float32
from jobflow.engine.options import Names, Option, ignored_options, notice_ignored, unknown
from jobflow.graph.strategy import Strategy

#: modes of the sharding of optimizer state, which have the same effect
PLACEMENTS = ("non_distributed", "distributed_split")

OPTIONS: dict[str, Option] = {
    "default_data_type": Option((DType,)),
    "default_initializer_conf": Option((dict,)),
    "default_logical_view": Option((scope.consistent_view, scope.mirrored_view)),
    "default_distribute_strategy": Option((scope.consistent_view, scope.mirrored_view), now="default_logical_view"),
    "default_placement_scope": Option((scope.placement,)),
    "strategy": Option((Strategy,)),
    "train.primary_lr": Option((int, float)),
    "train.secondary_lr": Option((int, float)),
    "train.model_update_conf": Option((dict,)),
    "train.loss_scale_factor": Option((int, float)),
    "train.num_gradient_accumulation_steps": Option((int,)),
    "optimizer_placement_optimization_mode": Option(choices=PLACEMENTS),
    "optimizer_placement_optimization_threshold": Option((int,), least=0),
    "train.optimizer_placement_optimization_mode": Option(choices=PLACEMENTS, now="optimizer_placement_optimization_mode"),
    "train.optimizer_placement_optimization_threshold": Option((int,), least=0, now="optimizer_placement_optimization_threshold"),
    "enable_non_distributed_optimizer": Option((bool,), True),
    "indexed_slices_optimizer_conf": Option((dict,)),
    "pipeline_schedule": Option((str,)),
    "enable_auto_mixed_precision": Option((bool,), True),
    "mixed_precision": Option((DType,)),
    "reduce_dtype": Option((DType,)),
    "enable_quantization_aware_training": Option((bool,), True),
    "enable_qat": Option((bool,), True, now="enable_quantization_aware_training"),
    "qat.per_channel_weight_quantization": Option((bool,), True),
    "qat.symmetric": Option((bool,), True),
    "qat.moving_min_max_momentum": Option((int, float), least=0, most=1),
    "qat.moving_min_max_stop_update_after_iters": Option((int,), least=1),
    "qat.target_backend": Option((str,), choices=("cambricon", "tensorrt", "")),
    **ignored_options("function_config"),
}


class FunctionConfig:
    """Options of a job, e.g. ``config.train.primary_lr(0.1)``; `global_function` copies them.

    Examples:
        >>> config = flow.function_config()
        >>> config.enable_auto_mixed_precision(True)
        >>> config.function_desc.enable_auto_mixed_precision
        True
    """

    def __init__(self) -> None:
        #: values by full name, e.g. "train.primary_lr"
        self.options: dict[str, Any] = {}
        #: source line that set each option, by full name
        self.lines: dict[str, SourceLine] = {}
        #: number of microbatches with the same results as the whole batch, set by the trainer; None for one batch
        self.microbatches: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(Names("function_config", OPTIONS, lambda full: lambda value=OPTIONS[full].default: self.set(full, value)), name)

    def __repr__(self) -> str:
        return f"FunctionConfig({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name.partition(".")[0] for name in OPTIONS)})

    @property
    def function_desc(self) -> Any:
        """The values of options as attributes, such as ``config.function_desc.enable_inplace``; None for an option that was not set."""
        return Names("function_config", OPTIONS, lambda full: self.options.get(OPTIONS[full].now or full))

    @property
    def trains(self) -> bool:
        """True if an option of `train` was set, which makes a job of older programs a train job."""
        return any(name.startswith("train.") for name in self.options)

    def set(self, name: str, value: Any) -> None:
        """Set an option by its full name, e.g. "train.primary_lr".

        Raises: ConfigError for an unknown name or a value that the option does not accept.
        """
        if name not in OPTIONS:
            raise unknown("function_config", name, name, OPTIONS)
        option, where = OPTIONS[name], user_line()
        option.check(f"function_config.{name} at {where}", value)
        if option.ignored:
            notice_ignored("function_config", name)
        if option.now:
            notice(f"function_config.{name} is the old name of {option.now}")
        self.options[option.now or name] = value
        self.lines[option.now or name] = where

    @property
    def half(self) -> DType | None:
        """The element type of products and convolutions; None without mixed precision."""
        chosen: DType | None = self.options.get("mixed_precision")
        return chosen or (float16 if self.options.get("enable_auto_mixed_precision") else None)

    @property
    def sum_dtype(self) -> DType | None:
        """The element type in which GPUs sum float32 gradients; None for float32."""
        chosen: DType | None = self.options.get("reduce_dtype")
        return chosen

    @property
    def lazily(self) -> tuple[str, ...]:
        """The names of variables with sparse updates: a step updates only the rows that it read.  Raises: JobError for a malformed value."""
        match self.options.get("indexed_slices_optimizer_conf", {"include_op_names": {"op_name": ()}}):
            case {"include_op_names": {"op_name": list(names) | tuple(names)}} if all(isinstance(name, str) for name in names):
                return tuple(names)
        raise self._unsupported(
            "indexed_slices_optimizer_conf", "the value must have the form {'include_op_names': {'op_name': [names of variables]}}"
        )

    def copy(self) -> FunctionConfig:
        """Return a copy that later calls on this configuration do not change."""
        other = FunctionConfig()
        other.options, other.lines = dict(self.options), dict(self.lines)
        other.microbatches = self.microbatches
        return other

    def divide(self, count: int, where: SourceLine) -> None:
        """Divide the batch of a run into `count` microbatches without a change of results; `where` is the line that requests it."""
        self.microbatches, self.lines["train.num_gradient_accumulation_steps"] = count, where

    def check(self) -> None:
        """Raise JobError for an invalid value, or for an option whose results jobflow does not reproduce."""
        steps = self.options.get("train.num_gradient_accumulation_steps", 1)
        if steps < 1:
            raise self._unsupported("train.num_gradient_accumulation_steps", "the value must be at least 1")
        if self.options.get("pipeline_schedule", "1f1b") not in SCHEDULES:
            raise self._unsupported("pipeline_schedule", f"the schedule does not exist; use one of {', '.join(SCHEDULES)}")
        if "mixed_precision" in self.options and not self.options["mixed_precision"].is_half:
            raise self._unsupported("mixed_precision", "the value must be jobflow.float16 or jobflow.bfloat16")
        if self.sum_dtype is not None and not (self.sum_dtype.is_half or self.sum_dtype is float32):
            raise self._unsupported("reduce_dtype", "the value must be jobflow.float32, jobflow.float16 or jobflow.bfloat16")
        _ = self.lazily  # raises an error for a malformed list
        primary = self.options.get("train.primary_lr")
        if self.options.get("train.secondary_lr", primary) != primary:
            raise self._unsupported("train.secondary_lr", f"the value differs from train.primary_lr({primary!r}); set both to the same value")

    def _unsupported(self, name: str, what: str) -> JobError:
        return JobError(f"function_config.{name}({self.options[name]!r}) at {self.lines[name]}: {what}")


function_config = FunctionConfig
ExecutionConfig = FunctionConfig
