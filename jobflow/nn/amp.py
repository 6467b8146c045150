"""The namespace `flow.amp`: mixed precision by `autocast`, and loss scales for half precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from jobflow.core.errors import ArgumentError, CheckpointError, ConfigError, DtypeError, JobError, user_line
from jobflow.core.lazy_imports import add_aliases
from jobflow.core.types import float16, float32
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.training import DynamicScale
from jobflow.nn.autocasting import autocast as autocast
from jobflow.nn.autocasting import is_autocast_available as is_autocast_available
from jobflow.optim.optimizer import Optimizer
from jobflow.tensors.state import gradients


class _Stage(Enum):
    """The progress of an optimizer since the last `update` of a scaler."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class GradScaler:
    """A dynamic loss scale, for training loops and for `Graph.set_grad_scaler`.

        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    The scale starts at `init_scale`.  After `growth_interval` consecutive steps with finite gradients, it is multiplied by `growth_factor`, and
    after a step with infinite or NaN gradients by `backoff_factor`.  `step` is skipped for such gradients.  With `enabled=False` the scale is 1.
    `device` has no effect and may be omitted, as in cuda.amp.GradScaler(init_scale).
    """

    def __init__(
        self,
        device: str | float = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if isinstance(device, int | float):  # cuda.amp.GradScaler(init_scale)
            init_scale = device
        what = f"GradScaler at {user_line()}"
        if not isinstance(device, str | int | float):
            raise ConfigError(f'{what}: device must be "cpu" or "cuda", not {device!r}')
        self._enabled = bool(enabled)
        self._scale = _number(what, "init_scale", init_scale, lambda x: 0 < x < math.inf, "positive and finite")
        self._growth_tracker = 0
        self.set_growth_factor(growth_factor)
        self.set_backoff_factor(backoff_factor)
        self.set_growth_interval(growth_interval)
        #: stage, and True if gradients are not finite, by optimizer
        self._optimizers: dict[int, tuple[Optimizer, _Stage, bool]] = {}

    # ---------------------------------------------------------------- for graphs

    @property
    def dynamic(self) -> DynamicScale | None:
        """The options of the scale for the compiler; None if not enabled.  Raises: ConfigError unless `backoff_factor` is 1 / `growth_factor`."""
        if not self._enabled:
            return None
        if not math.isclose(self._backoff_factor * self._growth_factor, 1.0):
            expected = f"backoff_factor must be 1 / growth_factor = {1 / self._growth_factor}"
            raise ConfigError(f"set_grad_scaler at {user_line()}: {expected} in a graph; got {self._backoff_factor}")
        return DynamicScale(self._scale, self._growth_interval, self._growth_factor)

    @property
    def constant(self) -> float:
        """The constant factor of the scale in a graph."""
        return 1.0

    # ---------------------------------------------------------------- in loops

    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or the tensors in lists, tuples and dicts, multiplied by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if isinstance(outputs, Mapping):
            return type(outputs)({name: self.scale(each) for name, each in outputs.items()})  # type: ignore[call-arg]
        if isinstance(outputs, list | tuple):
            return type(outputs)(map(self.scale, outputs))
        raise ArgumentError(f"GradScaler.scale at {user_line()}: outputs must be a tensor, or lists of tensors; got {type(outputs).__name__}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scale, in place; call this method before gradients are clipped.

        Raises: JobError for a second call before `update`, DtypeError for gradients of float16.
        """
        if not self._enabled:
            return
        stage = self._stage("unscale_", optimizer)
        if stage is not _Stage.READY:
            reason = "was already called for this optimizer" if stage is _Stage.UNSCALED else "is called after step() of this optimizer"
            raise JobError(f"GradScaler.unscale_ at {user_line()}: unscale_ {reason}; call update() first")
        finite = True
        with gradients(False):
            for p in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
                if p.grad.dtype is float16:
                    raise DtypeError(f"GradScaler.unscale_ at {user_line()}: a gradient is {p.grad.tensor_type}; keep parameters in float32")
                finite = bool(p.grad.isfinite().all()) and finite
                p.grad.mul_(1.0 / self._scale)
        self._optimizers[id(optimizer)] = optimizer, _Stage.UNSCALED, not finite

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients unless `unscale_` did, and call `optimizer.step` if all gradients are finite; return its result.

        Raises: ArgumentError for a closure, JobError for a second call before `update`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or any(map(callable, args)):
            raise ArgumentError(f"GradScaler.step at {user_line()}: closures are not supported with a scale; compute the gradients before step()")
        stage = self._stage("step", optimizer)
        if stage is _Stage.STEPPED:
            raise JobError(f"GradScaler.step at {user_line()}: step was already called for this optimizer; call update() first")
        if stage is _Stage.READY:
            self.unscale_(optimizer)
        _, _, skips = self._optimizers[id(optimizer)]
        self._optimizers[id(optimizer)] = optimizer, _Stage.STEPPED, skips
        return None if skips else optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Adapt the scale to the gradients since the last call, or set it to `new_scale`, a number or a tensor of one element.

        Raises: JobError if neither `step` nor `unscale_` was called.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            what, value = f"GradScaler.update at {user_line()}", new_scale.item() if isinstance(new_scale, Tensor) else new_scale
            self._scale = _number(what, "new_scale", value, lambda x: 0 < x < math.inf, "positive and finite")
        elif not self._optimizers:
            raise JobError(f"GradScaler.update at {user_line()}: no gradients were checked; call step(optimizer) first")
        elif any(skips for _, _, skips in self._optimizers.values()):
            self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                larger = self._scale * self._growth_factor
                self._scale, self._growth_tracker = larger if larger <= float32.largest else self._scale, 0
        self._optimizers = {}

    def _stage(self, method: str, optimizer: Any) -> _Stage:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(f"GradScaler.{method} at {user_line()}: optimizer must be an optimizer; got {type(optimizer).__name__}")
        known = self._optimizers.get(id(optimizer))
        return _Stage.READY if known is None else known[1]

    # ---------------------------------------------------------------- options

    def is_enabled(self) -> bool:
        """Return True unless the scaler was created with `enabled=False`."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the current scale; 1.0 if not enabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return the factor of the scale after `growth_interval` steps."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor of the scale after `growth_interval` steps, a number above 1."""
        self._growth_factor = _number(f"GradScaler at {user_line()}", "growth_factor", new_factor, lambda x: 1 < x < math.inf, "above 1")

    def get_backoff_factor(self) -> float:
        """Return the factor of the scale after a step with gradients that are not finite."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor of the scale after a step with gradients that are not finite, a number between 0 and 1."""
        self._backoff_factor = _number(f"GradScaler at {user_line()}", "backoff_factor", new_factor, lambda x: 0 < x < 1, "between 0 and 1")

    def get_growth_interval(self) -> int:
        """Return the number of consecutive finite steps after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of consecutive finite steps after which the scale grows, at least 1."""
        if isinstance(new_interval, bool) or not isinstance(new_interval, int) or new_interval < 1:
            raise ConfigError(f"GradScaler at {user_line()}: growth_interval must be an integer of at least 1, not {new_interval!r}")
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, the options and the count of finite steps; {} if not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict`, here or in PyTorch.  Raises: CheckpointError if an entry is missing."""
        if not self._enabled:
            return
        what = f"GradScaler.load_state_dict at {user_line()}"
        missing = [name for name in self.state_dict() if not isinstance(state_dict, Mapping) or name not in state_dict]
        if missing:
            raise CheckpointError(f"{what}: the state lacks {', '.join(missing)}; pass the result of state_dict() of an enabled scaler")
        self._scale = _number(what, "scale", state_dict["scale"], lambda x: 0 < x < math.inf, "positive and finite")
        self.set_growth_factor(state_dict["growth_factor"])
        self.set_backoff_factor(state_dict["backoff_factor"])
        self.set_growth_interval(state_dict["growth_interval"])
        self._growth_tracker = int(_number(what, "_growth_tracker", state_dict["_growth_tracker"], lambda x: x >= 0, "at least 0"))


def _number(what: str, name: str, value: Any, legal: Any, words: str) -> float:
    """Return the number `value` as a float; raise ConfigError unless legal(value)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not legal(value):
        raise ConfigError(f"{what}: {name} must be {words}, not {value!r}")
    return float(value)


class StaticGradScaler:
    """A constant loss scale, for `Graph.set_grad_scaler`.  Raises: ConfigError unless `scale_factor` is positive and finite."""

    dynamic: DynamicScale | None = None

    def __init__(self, scale_factor: float) -> None:
        self.constant = _number(f"StaticGradScaler at {user_line()}", "scale_factor", scale_factor, lambda x: 0 < x < math.inf, "positive and finite")


Scaler = GradScaler | StaticGradScaler

add_aliases(__name__, "jobflow.amp")
