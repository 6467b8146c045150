"""The configuration of a job: options that are called, ``config.default_data_type(flow.float32)``, some of them in sections.

What an option means, and what it takes, is a row of `OPTIONS`.  Switches of the legacy system that tune what does not exist here are
accepted, and say once that they are ignored; names that no release had are errors with a suggestion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jobflow.scope as scope
from jobflow.compiler.schedule import SCHEDULES
from jobflow.errors import ConfigError, JobError, SourceLine, did_you_mean, user_line
from jobflow.graph.strategy import Strategy
from jobflow.notices import notice
from jobflow.types import DType, float16

#: An option that must be called with a value.
NEEDED: Any = object()


@dataclass(frozen=True)
class Option:
    """Kinds of value it takes (none: anything), the value of a call without one, and whether jobflow does anything with it."""

    kinds: tuple[type, ...] = ()
    default: Any = NEEDED
    ignored: bool = False
    #: stored under this name instead, with a notice that the spelling is old
    now: str = ""


_NUMBER = (int, float)
#: kinds of values, as messages call them
_KINDS: dict[type, str] = {
    int: "an int",
    float: "a float",
    bool: "a bool",
    str: "a text",
    dict: "a dict",
    DType: "an element type such as jobflow.float32",
    scope.consistent_view: "scope.consistent_view()",
    scope.mirrored_view: "scope.mirrored_view()",
    scope.placement: "scope.placement(tag, devices)",
    Strategy: "a strategy such as strategies.data_parallel()",
}
_STORED = {
    "default_data_type": Option((DType,)),
    "default_initializer_conf": Option((dict,)),
    "default_logical_view": Option((scope.consistent_view, scope.mirrored_view)),
    "default_distribute_strategy": Option((scope.consistent_view, scope.mirrored_view), now="default_logical_view"),
    "default_placement_scope": Option((scope.placement,)),
    "strategy": Option((Strategy,)),
    "train.primary_lr": Option(_NUMBER),
    "train.secondary_lr": Option(_NUMBER),
    "train.model_update_conf": Option((dict,)),
    "train.loss_scale_factor": Option(_NUMBER),
    "train.num_gradient_accumulation_steps": Option((int,)),
    "pipeline_schedule": Option((str,)),
    "enable_auto_mixed_precision": Option((bool,), True),
    "mixed_precision": Option((DType,)),
    "enable_quantization_aware_training": Option((bool,), True),
    "enable_qat": Option((bool,), True, now="enable_quantization_aware_training"),
}
_SWITCHES = """
    prune_parallel_cast_ops prune_cast_to_static_shape_ops prune_amp_white_identity_ops do_parallel_cast_before_widening_type_cast
    enable_fuse_add_to_output enable_fuse_cast_scale enable_fuse_model_update_ops enable_gradients_stats_aggregation
    enable_cudnn_fused_normalization_add_relu enable_cudnn cudnn_conv_heuristic_search_algo cudnn_conv_use_deterministic_algo_only
    cudnn_conv_enable_true_half enable_true_half_config_when_conv cudnn_conv_enable_pseudo_half enable_cudnn_conv_pseudo_half
    enable_reused_mem enable_inplace use_xla_jit use_tensorrt allow_cpu_return_op enable_non_distributed_optimizer
    enable_inplace_in_reduce_struct enable_nccl use_nccl_inter_node_communication use_boxing_v2 enable_all_reduce_group all_reduce_fp16
    disable_all_reduce_sequence enable_keep_header_only enable_float_compute_for_half_gemm use_memory_allocation_algorithm_v2
    tensorrt.use_fp16 tensorrt.use_int8 qat.per_channel_weight_quantization qat.symmetric
    static_mem_alloc_policy_white_list.policy_mem_size_first static_mem_alloc_policy_white_list.policy_mutual_exclusion_first
    static_mem_alloc_policy_white_list.policy_time_line static_mem_alloc_algo_white_list.show
"""
_SETTINGS = """
    optimizer_placement_optimization_mode optimizer_placement_optimization_threshold train.optimizer_placement_optimization_mode
    train.optimizer_placement_optimization_threshold cudnn_buf_limit_mbyte cudnn_conv_force_fwd_algo cudnn_conv_force_bwd_data_algo
    cudnn_conv_force_bwd_filter_algo concurrency_width exp_run_conf indexed_slices_optimizer_conf all_reduce_group_num all_reduce_lazy_ratio
    all_reduce_group_min_mbyte all_reduce_group_size_warmup non_distributed_optimizer_group_size_mbyte tensorrt.int8_calibration
    qat.moving_min_max_momentum qat.moving_min_max_stop_update_after_iters qat.target_backend static_mem_alloc_policy_white_list.has
    static_mem_alloc_policy_white_list.add static_mem_alloc_policy_white_list.remove
"""
OPTIONS: dict[str, Option] = {
    **_STORED,
    **{name: Option((bool,), True, ignored=True) for name in _SWITCHES.split()},
    **{name: Option(default=None, ignored=True) for name in _SETTINGS.split()},
}
_SECTIONS = frozenset(name.partition(".")[0] for name in OPTIONS if "." in name)


class _Names:
    """Attribute access over the option table, at its top or inside a section."""

    def __init__(self, config: FunctionConfig, section: str = "") -> None:
        self._config = config
        self._section = section

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = self._section + name
        if full in OPTIONS:
            return self._found(full)
        if not self._section and name in _SECTIONS:
            return type(self)(self._config, f"{name}.")
        raise self._unknown(name)

    def _found(self, full: str) -> Any:
        raise NotImplementedError

    def _unknown(self, name: str) -> ConfigError:
        legal = [full.removeprefix(self._section) for full in OPTIONS if full.startswith(self._section)]
        owner = f"function_config.{self._section}" if self._section else "function_config."
        near = did_you_mean(name, [*legal, *(() if self._section else _SECTIONS)])
        return ConfigError(f"{owner}{name} at {user_line()}: there is no such option{near}")


class _Setters(_Names):
    def _found(self, full: str) -> Callable[..., None]:
        config = self._config

        def set_option(value: Any = OPTIONS[full].default) -> None:
            config.set(full, value)

        return set_option


class _Readers(_Names):
    def _found(self, full: str) -> Any:
        return self._config.options.get(OPTIONS[full].now or full)


class FunctionConfig:
    """Options of a job, e.g. ``config.train.primary_lr(0.1)``; given to `global_function`, which takes a copy."""

    def __init__(self) -> None:
        #: values by full name, e.g. "train.primary_lr"
        self.options: dict[str, Any] = {}
        #: the user's line that set each of them
        self.lines: dict[str, SourceLine] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(_Setters(self), name)

    def __repr__(self) -> str:
        return f"FunctionConfig({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in OPTIONS if "." not in name), *_SECTIONS})

    @property
    def function_desc(self) -> Any:
        """Reads options back: ``config.function_desc.enable_inplace``; None where an option was not set."""
        return _Readers(self)

    @property
    def trains(self) -> bool:
        """True if an option of `train` was set: in the older spelling that makes the job a train job."""
        return any(name.startswith("train.") for name in self.options)

    def set(self, name: str, value: Any) -> None:
        """Set an option by its full name, e.g. "train.primary_lr"."""
        if name not in OPTIONS:
            raise _Names(self)._unknown(name)
        option, where = OPTIONS[name], user_line()
        if value is NEEDED:
            raise ConfigError(f"function_config.{name} at {where}: call it with a value")
        if option.kinds and not _is_kind(value, option.kinds):
            kinds = " or ".join(_KINDS[kind] for kind in option.kinds)
            raise ConfigError(f"function_config.{name} at {where}: the value must be {kinds}; got {value!r}")
        if option.ignored:
            notice(f"function_config.{name} means nothing here and is ignored")
        if option.now:
            notice(f"function_config.{name} is the old spelling of {option.now}")
        self.options[option.now or name] = value
        self.lines[option.now or name] = where

    @property
    def half(self) -> DType | None:
        """The element type in which products and convolutions are computed; None leaves them as they are."""
        chosen: DType | None = self.options.get("mixed_precision")
        return chosen or (float16 if self.options.get("enable_auto_mixed_precision") else None)

    def copy(self) -> FunctionConfig:
        """A configuration that further calls on this one do not change."""
        other = FunctionConfig()
        other.options, other.lines = dict(self.options), dict(self.lines)
        return other

    def check(self) -> None:
        """JobError if an option asks for other numbers than jobflow would compute: it is better not to run than to run otherwise."""
        steps = self.options.get("train.num_gradient_accumulation_steps", 1)
        if steps < 1:
            raise self._unsupported("train.num_gradient_accumulation_steps", "must be at least 1")
        if self.options.get("pipeline_schedule", "1f1b") not in SCHEDULES:
            raise self._unsupported("pipeline_schedule", f"is no schedule of pipelines; use one of {', '.join(SCHEDULES)}")
        if "mixed_precision" in self.options and not self.options["mixed_precision"].is_half:
            raise self._unsupported("mixed_precision", "takes jobflow.float16 or jobflow.bfloat16")
        if self.options.get("enable_quantization_aware_training"):
            raise self._unsupported("enable_quantization_aware_training", "is not supported; leave it out")
        primary = self.options.get("train.primary_lr")
        if self.options.get("train.secondary_lr", primary) != primary:
            raise self._unsupported("train.secondary_lr", "differs from train.primary_lr, which is not supported; give both the same value")

    def _unsupported(self, name: str, what: str) -> JobError:
        return JobError(f"function_config.{name}({self.options[name]!r}) at {self.lines[name]} {what}")


def _is_kind(value: Any, kinds: tuple[type, ...]) -> bool:
    """isinstance, except that a bool is no number, and a class not one of its instances."""
    return isinstance(value, kinds) and not isinstance(value, type) and (not isinstance(value, bool) or bool in kinds)


function_config = FunctionConfig
ExecutionConfig = FunctionConfig
