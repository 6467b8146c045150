"""The base class of optimizers, with parameter groups, state, steps and state_dict."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import CheckpointError, ConfigError, DtypeError, JobError, PlacementError, did_you_mean, user_line
from jobflow.core.layout import B, Layout
from jobflow.core.types import DType, TensorType, int64
from jobflow.functional.creation import from_numpy
from jobflow.functional.gradient_clipping import clip_grad_norm_
from jobflow.functional.gradients import RemovableHandle
from jobflow.functional.tensor_class import Tensor
from jobflow.ops.optimizer_updates import OptimizerUpdate, unified
from jobflow.ops.source import Constant
from jobflow.ops.update import rate_dtype
from jobflow.optim.saved_states import SLOT_NAMES, normalized
from jobflow.runtime.interrupts import held
from jobflow.tensors import run
from jobflow.tensors.convert import convert_array
from jobflow.tensors.gpus import device_name, duplicate, gpu_of, on_device
from jobflow.tensors.in_place_writes import zero_gradient
from jobflow.tensors.parameters import described
from jobflow.tensors.state import EagerState, gradients, refuse_tracing, state

Group = dict[str, Any]
#: validity of an option: a predicate, and its description
Legal = tuple[Callable[[Any], bool], str]
POSITIVE: Legal = (lambda x: x >= 0, "a number of at least 0")
#: options of every group: the maximal gradient norm for `clip_grad` and graphs, and the type of norm
COMMON: dict[str, Any] = {"clip_grad_max_norm": None, "clip_grad_norm_type": None}


class _Required:
    """The default of an option that every parameter group must set."""

    def __repr__(self) -> str:
        return "<required parameter>"


#: the only object of this class, which optimizers of programs use as a default
required = _Required()


def _is(legal: Callable[[Any], bool], value: Any) -> bool:
    """Return True if legal(value) is true; a TypeError of `legal`, as for a string instead of a number, counts as False."""
    try:
        return bool(legal(value))
    except TypeError:
        return False


class Optimizer:
    """Base class of optimizers, which update parameters from their gradients.

    `params` are tensors, pairs (name, tensor), or dicts {"params": tensors, option: value}, one per group.  `defaults` are options for groups that
    do not set them.  A subclass defines `rule`, or a `step` that overwrites the parameters; `state[p]` is a dict for the state of parameter p.
    Raises: ConfigError for a misspelled option, a value out of range, or a tensor that is not a leaf or occurs twice.  `params` that are empty,
    a single tensor or a set are errors, too.
    """

    #: validity checks by option
    LEGAL: ClassVar[dict[str, Legal]] = {}
    #: False if `state_dict` contains no numbers of steps, as in PyTorch
    saves_steps: ClassVar[bool] = True
    #: entries of saved states that follow from the number of steps; they are ignored when a state is loaded
    DERIVED: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: Iterable[Tensor] | Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]) -> None:
        refuse_tracing(self._word, "an optimizer cannot be created", "create the optimizer before")
        if not isinstance(defaults, Mapping):
            raise ConfigError(f"{self._word} at {user_line()}: defaults must be a dict of options, not {defaults!r}; pass dict(lr=lr)")
        self.defaults = {**COMMON, **defaults}
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        if isinstance(params, Tensor):
            raise ConfigError(f"{self._word} at {user_line()}: params must be a list, not a single tensor {params.tensor_type}; pass [parameter]")
        if not isinstance(params, Iterable):
            raise ConfigError(
                f"{self._word} at {user_line()}: params must be a list of tensors, not {type(params).__name__}; pass module.parameters()"
            )
        _check_order(params, f"{self._word} at {user_line()}")
        entries = list(params)
        if not entries:
            raise ConfigError(
                f"{self._word} at {user_line()}: params is empty; pass module.parameters(), and replace plain lists of modules by "
                f"nn.ModuleList, because a plain list does not register modules"
            )
        for group in entries if isinstance(entries[0], Mapping) else [{"params": entries}]:
            self.add_param_group(group)  # type: ignore[arg-type]

    @property
    def _word(self) -> str:
        return f"optim.{type(self).__name__}"

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add a group {"params": tensors, option: value}.  Raises: ConfigError as in the constructor."""
        what = f"{self._word} at {user_line()}"
        _check_order(group.get("params"), what)
        listed = group.get("params", ())
        params = [listed] if isinstance(listed, Tensor) else list(listed) if isinstance(listed, Iterable) else [listed]
        names = _names(params, [("param_names" in other) for other in self.param_groups], what)
        if names:
            params = [p for _, p in params]
        for name in group:
            similar = "" if name in ("params", "initial_lr") or name in self.defaults else did_you_mean(name, self.defaults)
            if similar:
                raise ConfigError(f'{what}: unknown option "{name}"{similar}')
        known = {id(p) for other in self.param_groups for p in other["params"]}
        for p in params:
            if not isinstance(p, Tensor) or not p.is_leaf:
                actual = "a tensor that is not a leaf" if isinstance(p, Tensor) else type(p).__name__
                raise ConfigError(f"{what}: params must contain leaf tensors; got {actual}; pass module.parameters(), for example")
            if id(p) in known:
                raise ConfigError(f"{what}: params contains a {p.tensor_type} parameter twice; pass it once")
            known.add(id(p))
        complete = {**self.defaults, **group, "params": params, **names}
        for name, value in complete.items():
            if value is required:
                raise ConfigError(f"{what}: a parameter group has no {name}, which has no default; pass {name}=")
        self._check(complete, what)
        self.param_groups.append(complete)

    def _check(self, group: Group, what: str) -> None:
        for name, (legal, words) in {"lr": POSITIVE, "weight_decay": POSITIVE, **self.LEGAL}.items():
            if name in group and not _is(legal, group[name]):
                raise ConfigError(f"{what}: {name} must be {words}, not {group[name]!r}")

    # ---------------------------------------------------------------- steps

    def rule(self, group: Group) -> OptimizerUpdate:
        """Return the operation that updates the parameters of a group; subclasses must define this method."""
        raise JobError(f"{self._word} at {user_line()}: the optimizer has no method `rule`; define rule(group) in the subclass")

    def register_step_pre_hook(self, hook: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> RemovableHandle:
        """Call hook(optimizer, args, kwargs) before every `step`, and return a handle that removes the hook.

        A result other than None is a pair that replaces args and kwargs.
        """
        return self._hooks("register_step_pre_hook", hook, 0)

    def register_step_post_hook(self, hook: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> RemovableHandle:
        """Call hook(optimizer, args, kwargs) after every `step`, and return a handle that removes the hook."""
        return self._hooks("register_step_post_hook", hook, 1)

    def _hooks(self, what: str, hook: Any, index: int) -> RemovableHandle:
        """Register a hook.  The attribute `step` of an optimizer with hooks is a function that calls the hooks and the method."""
        if not callable(hook):
            raise ConfigError(f"{self._word}.{what} at {user_line()}: hook must be a function of the optimizer, args and kwargs, not {hook!r}")
        if "step" not in vars(self) or not isinstance(vars(self)["step"], _HookedStep):
            vars(self)["step"] = _HookedStep(self, {}, {})
        hooks = vars(self)["step"].args[1 + index]
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or fill the gradients with zeros in place unless `set_to_none`."""
        for p in self._parameters():
            zero_gradient(p, set_to_none)

    def clip_grad(self, error_if_nonfinite: bool = False) -> None:
        """Clip the gradients of every group with the option `clip_grad_max_norm` to this norm, in place.

        Call this method between `backward()` and `step()`; an `nn.Graph` clips without this call.
        Raises: ArgumentError for a norm that is NaN or infinite, if `error_if_nonfinite`.
        """
        for group in self.param_groups:
            most, kind = group["clip_grad_max_norm"], group["clip_grad_norm_type"]
            if most is not None:
                clip_grad_norm_(group["params"], most, 2.0 if kind is None else kind, error_if_nonfinite)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        A `closure` is called first to compute the loss, and its result is returned.
        """
        loss = None
        if closure is not None:
            with gradients(True):
                loss = closure()
        here, scalars = state(), Scalars()
        recorder = here.building if here.building is not None and here.building.differentiates else None
        with held() if recorder is None else recorder.stepping(self):
            for group in self.param_groups:
                op = unified(self.rule(group))
                slots = {SLOT_NAMES.get(slot.name, slot.name): slot.initial for slot in op.slots}
                for p in group["params"]:
                    gradient = p._gradient if recorder is None else recorder.gradient_of(p)
                    if gradient is None:
                        continue
                    if recorder is None:
                        self._step(here, p, gradient, op, slots, float(group["lr"]), scalars)
                    else:
                        with recorder.slots_of(self, p):
                            mine = self._slots(p, slots)
                        recorder.step(op, group, p, mine, [mine[name] for name in slots], gradient)
        return loss

    def _slots(self, p: Tensor, slots: Mapping[str, float]) -> dict[str, Any]:
        """Return the state of parameter p by name; create missing tensors with the initial values `slots`."""
        mine = self.state.setdefault(p, {})
        mine.setdefault("step", 0)
        for name, initial in slots.items():
            if name not in mine:
                mine[name] = run.source(Constant(p.tensor_type.shape, p.tensor_type.dtype, initial), p.layout, None, gpu_of(p.array))
        return mine

    def _step(
        self, here: EagerState, p: Tensor, gradient: Tensor, op: OptimizerUpdate, slots: Mapping[str, float], rate: float, scalars: Scalars
    ) -> None:
        if not isinstance(gradient, Tensor):
            raise DtypeError(
                f"{self._word} at {user_line()}: the gradient of a {p.tensor_type} parameter must be a tensor, not {described(gradient)}"
            )
        mine = self._slots(p, slots)
        if here.gpus:
            self._check_devices(p, {"grad": gradient} | {name: mine[name] for name in slots})
        inputs = [p, *(mine[name] for name in slots), gradient, scalars.of(p, rate, rate_dtype(p.tensor_type.dtype))]
        if op.reads_step:
            inputs.append(scalars.of(p, mine["step"], int64))
        run.update(here, op, inputs, f"{self._word}.step")
        mine["step"] += 1

    def _check_devices(self, p: Tensor, others: Mapping[str, Tensor]) -> None:
        """Raise PlacementError if the gradient or the state of parameter p is on another device, because the parameter has moved."""
        for name, x in others.items():
            if gpu_of(x.array) is not gpu_of(p.array):
                raise PlacementError(
                    f"{self._word}.step at {user_line()}: the {p.tensor_type} parameter is on {device_name(p.array)}, and its {name} is on "
                    f"{device_name(x.array)}; move modules before the first step, or call load_state_dict(state_dict()) after the move"
                )

    def _parameters(self) -> Iterable[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    # ---------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """Return {"state": {parameter number: {name: value}}, "param_groups": [options of each group]}.

        Parameters are numbered in the order of the groups.  The entry "params" of a group has the numbers of its parameters.  The names of values
        are PyTorch's, such as "exp_avg".
        """
        numbers = {p: i for i, p in enumerate(self._parameters())}
        groups = [{**group, "params": [numbers[p] for p in group["params"]]} for group in self.param_groups]
        states = {numbers[p]: {name: x for name, x in state.items() if name != "step" or self.saves_steps} for p, state in self.state.items()}
        if self.DERIVED:
            for group in self.param_groups:
                for p in group["params"]:
                    if states.get(numbers[p]):
                        values = self.derived(group, self.state[p]["step"])
                        states[numbers[p]].update((name, from_numpy(np.array(values[name]))) for name in self.DERIVED)
        return {"state": {number: state for number, state in states.items() if state}, "param_groups": groups}

    def derived(self, group: Group, step: int) -> dict[str, float]:
        """Return the entries `DERIVED` of the state after `step` steps, which PyTorch reads."""
        return {}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the state from `saved`, a result of `state_dict` here or in PyTorch; tensors are redistributed to the layouts of the parameters.

        Raises: CheckpointError if the number of groups or of their parameters differs, or the shape of a tensor.  A local tensor cannot be loaded
        for a global parameter, nor a global tensor for a local parameter.  An option out of range raises ConfigError.
        """
        refuse_tracing(f"{self._word}.load_state_dict", "state cannot be loaded", "load the state before")
        what = f"{self._word}.load_state_dict at {user_line()}"
        states, groups = normalized(saved, [group["params"] for group in self.param_groups], self.saves_steps, what)
        parameters = list(self._parameters())
        loaded = {
            parameters[i]: {name: self._state_of(x, parameters[i], what) for name, x in entries.items() if name not in self.DERIVED}
            for i, entries in states.items()
        }
        for group, other in zip(self.param_groups, groups, strict=True):
            self._check({**group, **other}, what)
        for group, other in zip(self.param_groups, groups, strict=True):
            group.update(other)
        self.state = defaultdict(dict, loaded)

    def _state_of(self, saved: Any, p: Tensor, what: str) -> Any:
        """Return a copy of the tensor `saved` in the layout of parameter p, or `saved` itself if it is not a tensor.

        Raises: CheckpointError if the shapes differ, or if one tensor is local and the other global.
        """
        if not isinstance(saved, Tensor):
            return saved
        if saved.tensor_type.shape != p.tensor_type.shape or (saved.layout is None) != (p.layout is None):
            kinds = ["local" if x.layout is None else str(x.layout) for x in (saved, p)]
            raise CheckpointError(
                f"{what}: the saved tensor {saved.tensor_type} ({kinds[0]}) does not match the parameter {p.tensor_type} ({kinds[1]}); "
                f"load the state of an optimizer with the same parameters"
            )
        if saved.layout is None or p.layout is None:
            array = on_device(gpu_of(p.array), saved.array)
            return Tensor(saved.tensor_type, None, duplicate(array) if array is saved.array else array)
        return Tensor(
            saved.tensor_type, p.layout, duplicate(convert_array(state(), saved.array, saved.tensor_type, saved.layout, p.layout, "load_state_dict"))
        )

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += [
                f"  group {i}: {len(group['params'])} parameters",
                *(f"    {name}: {group[name]}" for name in sorted(group) if name != "params"),
            ]
        return "\n".join([*lines, ")"])


def _step_with_hooks(optimizer: Optimizer, before: dict[int, Any], after: dict[int, Any], *args: Any, **kwargs: Any) -> Any:
    """Call the hooks `before`, the method `step` of the optimizer's class, and the hooks `after`; return the result of `step`."""
    for hook in list(before.values()):
        changed = hook(optimizer, args, kwargs)
        if changed is None:
            continue
        if not (isinstance(changed, tuple) and len(changed) == 2 and isinstance(changed[0], tuple) and isinstance(changed[1], dict)):
            raise ConfigError(
                f"optim.{type(optimizer).__name__}.step at {user_line()}: a hook must return None or a pair (args, kwargs) of a tuple and a dict, "
                f"not {changed!r}"
            )
        args, kwargs = changed
    result = type(optimizer).step(optimizer, *args, **kwargs)
    for hook in list(after.values()):
        hook(optimizer, args, kwargs)
    return result


class _HookedStep(partial[Any]):
    """The attribute `step` of an optimizer with hooks; a copy of the optimizer has a copy with the same hooks."""

    def __new__(cls, *args: Any) -> _HookedStep:
        return super().__new__(cls, _step_with_hooks, *args)


def _names(params: list[Any], named: list[bool], what: str) -> dict[str, list[str]]:
    """Return {"param_names": names} for pairs (name, tensor), and {} for tensors; `named` is True for each earlier group with names.

    Raises: ConfigError if some parameters or groups have names and others do not.
    """
    pairs = [isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in params]
    if len({*pairs, *named}) > 1:
        raise ConfigError(f"{what}: some parameters have names and others do not; pass module.named_parameters() or module.parameters() for all")
    return {"param_names": [name for name, _ in params]} if any(pairs) else {}


def _check_order(params: Any, what: str) -> None:
    """Raise ConfigError for a set, whose order differs between runs and ranks; `state_dict` numbers parameters by their order."""
    if isinstance(params, set | frozenset):
        raise ConfigError(f"{what}: params is a {type(params).__name__}, whose order differs between runs; pass a list")


class Scalars:
    """A cache of numbers, such as the learning rate, as tensors of one element; parameters with the same layout use the same tensor."""

    def __init__(self) -> None:
        self._known: dict[tuple[float, DType, Layout | None, Any], Tensor] = {}
        self._gpus = bool(state().gpus)

    def of(self, p: Tensor, value: float, dtype: DType) -> Tensor:
        """Return `value` as a tensor [1] of type `dtype`: broadcast on the placement of parameter p, or local if p is local."""
        gpu = gpu_of(p._array) if self._gpus else None
        number = self._known.get((value, dtype, p.layout, gpu))
        if number is None:
            array = np.array([value], dtype.numpy)
            provenance = zlib.crc32(array.tobytes())
            layout = None if p.layout is None else Layout(p.layout.placement, (B,) * len(p.layout.sbp))
            number = self._known[value, dtype, p.layout, gpu] = Tensor(TensorType((1,), dtype), layout, on_device(gpu, array))
            number._provenance = provenance
        return number
