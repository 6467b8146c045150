"""Optimizers whose options are annotated fields, and the validity checks of options."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, InitVar
from typing import Any, ClassVar, TypeVar, dataclass_transform

from jobflow.core.errors import ConfigError, user_line
from jobflow.core.signatures import take_fields
from jobflow.optim.optimizer import POSITIVE, Legal, Optimizer

_UNIT: Legal = (lambda x: 0 <= x < 1, "a number in [0, 1)")
_PAIR: Legal = (lambda x: len(x) == 2 and all(0 <= b < 1 for b in x), "a pair of numbers in [0, 1)")
_ETAS: Legal = (lambda x: len(x) == 2 and 0 < x[0] < 1 < x[1], "a pair of numbers in (0, 1) and above 1")
_BOUNDS: Legal = (lambda x: len(x) == 2 and 0 <= x[0] <= x[1], "a pair of numbers of at least 0, the smaller number first")
_NUMBER: Legal = (lambda x: -math.inf < x < math.inf, "a number")
_FLAG: Legal = (lambda x: x in (True, False), "True or False")
#: validity checks of options other than the learning rate and weight decay
_LEGAL = {
    "rho": _UNIT,
    "betas": _PAIR,
    "etas": _ETAS,
    "step_sizes": _BOUNDS,
    **dict.fromkeys(("lambd", "t0", "alpha"), _NUMBER),
    **dict.fromkeys(("eps", "initial_accumulator_value", "lr_decay", "momentum", "momentum_decay"), POSITIVE),
    **dict.fromkeys(("maximize", "amsgrad", "nesterov", "centered", "do_bias_correction", "decoupled_weight_decay"), _FLAG),
}
#: options of PyTorch that select an implementation; updates are compiled, so these options have no effect
SWITCHES = ("foreach", "fused", "capturable", "differentiable")

Class = TypeVar("Class", bound="type[OptionsOptimizer]")


@dataclass_transform(eq_default=False)
def options(cls: Class) -> Class:
    """Make the annotated fields of an optimizer class arguments of its constructor, and default options of its groups."""
    cls.option_names = take_fields(cls)
    cls.LEGAL = {name: _LEGAL[name] for name in cls.option_names if name in _LEGAL}
    return cls


@options
class OptionsOptimizer(Optimizer):
    """Base class of optimizers whose options are annotated fields."""

    option_names: ClassVar[tuple[str, ...]]
    params: InitVar[Iterable[Any]]
    _: KW_ONLY
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool = False
    differentiable: bool = False

    def __post_init__(self, params: Iterable[Any]) -> None:
        arguments = {name: vars(self).pop(name) for name in self.option_names}
        _check_switches({name: arguments[name] for name in SWITCHES}, f"{self._word} at {user_line()}")
        super().__init__(params, arguments)


def _check_switches(switches: dict[str, Any], what: str) -> None:
    """Raise ConfigError for a switch that is not a bool, for `foreach` together with `fused`, and for `differentiable`."""
    for name, value in switches.items():
        if value not in (None, True, False):
            raise ConfigError(f"{what}: {name} must be True, False or None, not {value!r}")
    if switches["foreach"] and switches["fused"]:
        raise ConfigError(f"{what}: foreach and fused must not both be True; omit one of them")
    if switches["differentiable"]:
        raise ConfigError(f"{what}: differentiable=True is not supported, because steps overwrite the parameters; compute the steps by functions")
