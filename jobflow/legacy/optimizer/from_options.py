"""The optimizer of a job configuration in the older form: `train.primary_lr` and `train.model_update_conf`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, did_you_mean
from jobflow.engine.job_config import FunctionConfig
from jobflow.legacy.optimizer import schedules as of
from jobflow.legacy.optimizer.clipping import GlobalNorm
from jobflow.legacy.optimizer.job_optimizers import OF_OPTIONS, Kind, Single, kind
from jobflow.legacy.optimizer.option_ranges import is_number
from jobflow.legacy.optimizer.warmup import ConstantWarmup, LinearWarmup, Warmup

_DECAYS = {
    "exponential_conf": kind(of.ExponentialScheduler, "decay_batches=steps decay_rate staircase"),
    "inverse_time_conf": kind(of.InverseTimeScheduler, "decay_batches=steps decay_rate staircase"),
    "natural_exp_conf": kind(of.NaturalExpScheduler, "decay_batches=steps decay_rate staircase"),
    "piecewise_constant_conf": kind(partial(of.PiecewiseConstantScheduler, boundaries=()), "boundaries values"),
    "polynomial_conf": kind(of.PolynomialScheduler, "decay_batches=steps end_learning_rate power cycle"),
    "cosine_conf": kind(of.CosineScheduler, "decay_batches=steps alpha"),
    "linear_cosine_conf": kind(of.LinearCosineScheduler, "decay_batches=steps num_periods alpha beta"),
    "piecewise_scaling_conf": kind(partial(of.PiecewiseScalingScheduler, boundaries=()), "boundaries scales=scale"),
}
_WARMUPS = {
    "constant_conf": kind(ConstantWarmup, "warmup_batches=steps multiplier"),
    "linear_conf": kind(LinearWarmup, "warmup_batches=steps start_multiplier"),
}
_CLIPPINGS = {"clip_by_global_norm": kind(GlobalNorm, "clip_norm")}
_OTHERS = ("learning_rate_decay", "warmup_conf", "clip_conf", "weight_decay_conf")


@dataclass(frozen=True)
class WarmupToPrimary:
    """A warm-up with the base rate `primary` instead of the initial rate of the schedule."""

    warmup: Warmup
    primary: float

    @property
    def steps(self) -> float:
        return self.warmup.steps

    def rate(self, base: float, step: int) -> float:
        return self.warmup.rate(self.primary, step)


def optimizer_of(config: FunctionConfig | Mapping[str, Any]) -> Single:
    """Return the optimizer of a configuration or of its `options`; it updates every variable of the job.

    Raises: JobError if an option is missing; ConfigError for wrong options.
    """
    options = config.options if isinstance(config, FunctionConfig) else config
    rule, rate = options.get("train.model_update_conf"), options.get("train.primary_lr")
    if rule is None or rate is None:
        missing = "train.model_update_conf" if rule is None else "train.primary_lr"
        advice = "set it on the function_config, or call optimizer.SGD(...).minimize(loss) in the job"
        raise JobError(f"a train job requires an optimizer, but function_config.{missing} is not set; {advice}")
    line = f"{config.lines['train.model_update_conf']}: " if isinstance(config, FunctionConfig) else ""
    what = f"{line}function_config.train.model_update_conf"
    _check(what, rule, (*OF_OPTIONS, *_OTHERS))
    decay, warmup, clipping, weight_decay = ((f"{what}.{name}", rule.get(name)) for name in _OTHERS)
    _, make, fields = _chosen(what, {name: value for name, value in rule.items() if name not in _OTHERS}, OF_OPTIONS)
    shared = {"loss_scale_factor": options.get("train.loss_scale_factor"), "grad_clipping": _built(*clipping, _CLIPPINGS)}
    decays = {name: value for name, value in _weight_decay(*weight_decay).items() if name in inspect.signature(make).parameters}
    return make(_schedule(*decay, float(rate), _built(*warmup, _WARMUPS)), **fields, **shared, **decays)


def _schedule(what: str, arguments: Any, rate: float, warmup: Warmup | None) -> of.Schedule:
    if arguments is None:
        return of.PiecewiseConstantScheduler([], [rate], warmup)
    chosen, make, fields = _chosen(what, arguments, _DECAYS)
    if chosen == "piecewise_scaling_conf":
        scales = list(fields["scale"])
        if not scales or scales[0] != 1:
            raise ConfigError(f"{what}.{chosen}: scales must start with 1, the scale before the first boundary, not {scales}")
        fields["scale"] = scales[1:]
    if chosen == "piecewise_constant_conf":
        return make(**fields, warmup=warmup and WarmupToPrimary(warmup, rate))
    schedule = make(rate, **fields, warmup=warmup)
    return schedule


def _weight_decay(what: str, arguments: Any) -> dict[str, Any]:
    if arguments is None:
        return {}
    _check(what, arguments, ("weight_decay_rate", "includes", "excludes"), ("weight_decay_rate",))
    if not is_number(arguments["weight_decay_rate"]):
        raise ConfigError(f"{what}.weight_decay_rate: must be a number, not {arguments['weight_decay_rate']!r}")
    fields = {"weight_decay": arguments["weight_decay_rate"]}
    for name in ("includes", "excludes"):
        if arguments.get(name):
            _check(f"{what}.{name}", arguments[name], ("pattern",))
            fields[f"weight_decay_{name}"] = arguments[name].get("pattern", ())
    return fields


def _built(what: str, arguments: Any, kinds: Mapping[str, Kind]) -> Any:
    """Return the object that the dict `arguments` describes, with a constructor in `kinds`, or None if `arguments` is None."""
    if arguments is None:
        return None
    _, make, fields = _chosen(what, arguments, kinds)
    return make(**fields)


def _chosen(what: str, arguments: Any, kinds: Mapping[str, Kind]) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """Return name, constructor and arguments of the only entry of the dict `arguments`; the name must be a key of `kinds`."""
    _check(what, arguments, kinds)
    chosen = [name for name in kinds if arguments.get(name) is not None]
    if len(chosen) != 1:
        raise ConfigError(f"{what}: pass exactly one of {', '.join(kinds)}, not {' and '.join(chosen) or 'none'}")
    make, fields = kinds[chosen[0]]
    entry, parameters = arguments[chosen[0]], inspect.signature(make).parameters
    _check(f"{what}.{chosen[0]}", entry, fields, [key for key, name in fields.items() if parameters[name].default is inspect.Parameter.empty])
    return chosen[0], make, {fields[key]: value for key, value in entry.items()}


def _check(what: str, arguments: Any, legal: Collection[str], needed: Collection[str] = ()) -> None:
    """Raise ConfigError unless `arguments` is a dict that has only keys in `legal` and all keys in `needed`."""
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"{what}: must be a dict, not {arguments!r}")
    for name in arguments:
        if name not in legal:
            raise ConfigError(f'{what}: unknown key "{name}"{did_you_mean(str(name), legal)}')
    missing = [name for name in needed if name not in arguments]
    if missing:
        raise ConfigError(f"{what}: set {' and '.join(missing)}")
