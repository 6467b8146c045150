"""The optimizer that a job's configuration describes in the older spelling: `train.primary_lr` and `train.model_update_conf`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobflow.core.errors import ConfigError, JobError, did_you_mean
from jobflow.engine.job_config import FunctionConfig
from jobflow.legacy.optimizer import schedules
from jobflow.legacy.optimizer.clipping import Clipping, GlobalNorm
from jobflow.legacy.optimizer.optimizers import LAMB, LARS, SGDW, AdamW, RMSProp, Single
from jobflow.legacy.optimizer.warmup import ConstantWarmup, LinearWarmup, Warmup, is_number

#: A field that has no default.
NEEDED = object()
_RULES: dict[str, dict[str, Any]] = {
    "naive_conf": {},
    "momentum_conf": {"beta": 0.9},
    "rmsprop_conf": {"decay_rate": 0.99, "epsilon": 1e-8, "centered": False},
    "lars_conf": {"momentum_beta": 0.9, "epsilon": 1e-9, "lars_coefficient": 0.0001},
    "adam_conf": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "do_bias_correction": False},
    "lazy_adam_conf": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "lamb_conf": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6},
}
_DECAYS: dict[str, dict[str, Any]] = {
    "exponential_conf": {"decay_batches": NEEDED, "decay_rate": NEEDED, "staircase": False},
    "inverse_time_conf": {"decay_batches": NEEDED, "decay_rate": NEEDED, "staircase": False},
    "natural_exp_conf": {"decay_batches": NEEDED, "decay_rate": NEEDED, "staircase": False},
    "piecewise_constant_conf": {"boundaries": (), "values": NEEDED},
    "polynomial_conf": {"decay_batches": NEEDED, "end_learning_rate": 0.0001, "power": 1.0, "cycle": False},
    "cosine_conf": {"decay_batches": NEEDED, "alpha": 0.0},
    "linear_cosine_conf": {"decay_batches": NEEDED, "num_periods": 0.5, "alpha": 0.0, "beta": 0.001},
    "piecewise_scaling_conf": {"boundaries": (), "scales": NEEDED},
}
_WARMUPS: dict[str, dict[str, Any]] = {
    "constant_conf": {"warmup_batches": NEEDED, "multiplier": NEEDED},
    "linear_conf": {"warmup_batches": NEEDED, "start_multiplier": NEEDED},
}
_OTHERS = ("learning_rate_decay", "warmup_conf", "clip_conf", "weight_decay_conf")
_STEP_DECAYS: dict[str, Callable[..., schedules.Schedule]] = {
    "exponential_conf": schedules.ExponentialScheduler,
    "inverse_time_conf": schedules.InverseTimeScheduler,
    "natural_exp_conf": schedules.NaturalExpScheduler,
    "polynomial_conf": schedules.PolynomialScheduler,
    "cosine_conf": schedules.CosineScheduler,
    "linear_cosine_conf": schedules.LinearCosineScheduler,
}


@dataclass(frozen=True)
class WarmupToPrimary:
    """A warm-up towards the primary rate, whatever the schedule begins with."""

    warmup: Warmup
    primary: float

    @property
    def steps(self) -> float:
        return self.warmup.steps

    def rate(self, base: float, step: int) -> float:
        return self.warmup.rate(self.primary, step)


def optimizer_of(config: FunctionConfig | Mapping[str, Any]) -> Single:
    """The optimizer of a configuration, or of its `options`; it updates every variable of the job."""
    options = config.options if isinstance(config, FunctionConfig) else config
    rule, rate = options.get("train.model_update_conf"), options.get("train.primary_lr")
    if rule is None or rate is None:
        missing = "train.model_update_conf" if rule is None else "train.primary_lr"
        advice = "set it on the function_config, or call optimizer.SGD(...).minimize(loss) in the job"
        raise JobError(f"a train job needs an optimizer, and function_config.{missing} is not set; {advice}")
    line = f"{config.lines['train.model_update_conf']}: " if isinstance(config, FunctionConfig) else ""
    what = f"{line}function_config.train.model_update_conf"
    legal = {**dict.fromkeys(_RULES), **dict.fromkeys(_OTHERS)}
    given = _fields(what, rule, legal)
    kinds = [name for name in _RULES if given[name] is not None]
    if len(kinds) != 1:
        raise ConfigError(f"{what}: give exactly one of {', '.join(_RULES)}; got {' and '.join(kinds) or 'none'}")
    warmup = _warmup(f"{what}.warmup_conf", given["warmup_conf"])
    schedule = _schedule(f"{what}.learning_rate_decay", given["learning_rate_decay"], float(rate), warmup)
    fields = _fields(f"{what}.{kinds[0]}", given[kinds[0]], _RULES[kinds[0]])
    shared = {
        "loss_scale_factor": options.get("train.loss_scale_factor"),
        "grad_clipping": _clipping(f"{what}.clip_conf", given["clip_conf"]),
    }
    decay = _weight_decay(f"{what}.weight_decay_conf", given["weight_decay_conf"])
    return _optimizer(kinds[0], schedule, fields, shared, decay)


def _optimizer(kind: str, schedule: schedules.Schedule, fields: dict[str, Any], shared: dict[str, Any], decay: dict[str, Any]) -> Single:
    if kind in ("naive_conf", "momentum_conf"):
        return SGDW(schedule, momentum=fields.get("beta", 0.0), **shared, **decay)
    if kind == "rmsprop_conf":
        return RMSProp(schedule, **fields, **shared)
    if kind == "lars_conf":
        return LARS(schedule, **fields, **shared, **decay)
    if kind == "lamb_conf":
        return LAMB(schedule, **fields, **shared, **decay)
    return AdamW(schedule, **{"do_bias_correction": True, **fields}, **shared, **decay)


def _schedule(what: str, given: Any, rate: float, warmup: Warmup | None) -> schedules.Schedule:
    if given is None:
        return schedules.PiecewiseConstantScheduler([], [rate], warmup)
    kind, fields = _one_of(what, given, _DECAYS)
    if kind == "piecewise_constant_conf":
        towards = WarmupToPrimary(warmup, rate) if warmup is not None else None
        return schedules.PiecewiseConstantScheduler(fields["boundaries"], fields["values"], towards)
    if kind == "piecewise_scaling_conf":
        scales = list(fields["scales"])
        if not scales or scales[0] != 1:
            raise ConfigError(f"{what}.{kind}: scales must begin with 1, the scale before the first boundary; got {scales}")
        return schedules.PiecewiseScalingScheduler(rate, fields["boundaries"], scales[1:], warmup)
    steps = fields.pop("decay_batches")
    return _STEP_DECAYS[kind](rate, steps, **fields, warmup=warmup)


def _warmup(what: str, given: Any) -> Warmup | None:
    if given is None:
        return None
    kind, fields = _one_of(what, given, _WARMUPS)
    if kind == "constant_conf":
        return ConstantWarmup(fields["warmup_batches"], fields["multiplier"])
    return LinearWarmup(fields["warmup_batches"], fields["start_multiplier"])


def _clipping(what: str, given: Any) -> Clipping | None:
    if given is None:
        return None
    _, fields = _one_of(what, given, {"clip_by_global_norm": {"clip_norm": NEEDED}})
    return GlobalNorm(fields["clip_norm"])


def _weight_decay(what: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    fields = _fields(what, given, {"weight_decay_rate": NEEDED, "includes": None, "excludes": None})
    if not is_number(fields["weight_decay_rate"]):
        raise ConfigError(f"{what}.weight_decay_rate: {fields['weight_decay_rate']!r} is no number")
    patterns = {name: _fields(f"{what}.{name}", fields[name], {"pattern": ()})["pattern"] for name in ("includes", "excludes") if fields[name]}
    return {"weight_decay": fields["weight_decay_rate"], **{f"weight_decay_{name}": given for name, given in patterns.items()}}


def _one_of(what: str, given: Any, legal: Mapping[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The only entry of a dict whose keys say of which kind it is."""
    chosen = [(kind, value) for kind, value in _fields(what, given, dict.fromkeys(legal)).items() if value is not None]
    if len(chosen) != 1:
        raise ConfigError(f"{what}: give exactly one of {', '.join(legal)}; got {' and '.join(kind for kind, _ in chosen) or 'none'}")
    kind, value = chosen[0]
    return kind, _fields(f"{what}.{kind}", value, legal[kind])


def _fields(what: str, given: Any, legal: Mapping[str, Any]) -> dict[str, Any]:
    """A dict with every legal field, given or default; ConfigError for anything else."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what}: must be a dict; got {given!r}")
    for name in given:
        if name not in legal:
            raise ConfigError(f'{what}: unknown key "{name}"{did_you_mean(str(name), legal)}')
    fields = {**legal, **given}
    missing = [name for name, value in fields.items() if value is NEEDED]
    if missing:
        raise ConfigError(f"{what}: {', '.join(missing)} must be given")
    return fields
