"""The scope of a program: the current placement, view, options and interpreter of ops.

Programs enter scopes with `placement`, `consistent_view`, `mirrored_view`, `namespace` and `config`; jobflow enters scopes with `using`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import field
from functools import wraps
from numbers import Integral
from typing import Any, ClassVar, Literal, ParamSpec, Protocol, Self, TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, PlacementError, did_you_mean, user_line
from jobflow.core.layout import ParallelConf, Placement
from jobflow.core.types import Tensor

View = Literal["consistent", "mirrored"]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Interpreter(Protocol):
    """A receiver of op calls: a tracer records them, and an eager interpreter runs them."""

    def apply(self, op: Any, inputs: Sequence[Tensor], name: str | None) -> tuple[Any, ...]: ...


class Placer(Protocol):
    """A converter of devices to placements, implemented by the session."""

    def place(self, tag: str, devices: Sequence[Any], hierarchy: tuple[int, ...] | None) -> Placement: ...
    def devices_per_machine(self) -> int: ...


@dataclass
class Root:
    """Mutable state with the lifetime of the process (or of a test): the session and its environment.

    All other fields of a scope are immutable.
    """

    session: Any = None
    environment: Any = None
    #: shared state of the global tensors of this rank
    eager: Any = None
    #: lock for calls of jobs and graphs, redistribution of global tensors, and changes of these fields
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(frozen=True)
class Scope:
    """The context of op calls: the interpreter, and the placement, view, name prefix, pipeline stage and options of the ops."""

    root: Root = field(default_factory=Root)
    interpreter: Interpreter | None = None
    placement: Placement | None = None
    view: View = "consistent"
    namespace: tuple[str, ...] = ()
    #: stage of a pipeline
    stage: int | None = None
    #: number of the checkpointing region, whose values are recomputed for the backward pass
    region: int | None = None
    #: age of the variables that ops read, in runs; 1 for the variables of this run
    buffered: int = 1
    #: element type of products under `autocast`; None without it
    autocast: Any = None
    #: False to turn `enable_qat` off
    quantized: bool = True
    #: the scope to restore after this one
    outer: Scope | None = None

    def full_name(self, name: str) -> str:
        """Return `name` after the namespaces, joined with "-" as in the legacy API; raise JobError if `name` is not a string."""
        if not isinstance(name, str):
            raise JobError(f"name at {user_line()}: the name of an op or a variable must be a string, not {name!r} of type {type(name).__name__}")
        return "-".join((*self.namespace, name))


_CURRENT: ContextVar[Scope | None] = ContextVar("jobflow_scope", default=None)
_ROOT = Scope()


def current() -> Scope:
    """Return the current scope."""
    return _CURRENT.get() or _ROOT


def lock() -> threading.RLock:
    """Return the reentrant lock for state shared by the threads of this program."""
    return current().root.lock


def alone(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return `function` wrapped so that each call holds `lock()`."""

    @wraps(function)
    def holding(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with lock():
            return function(*arguments, **named)

    return holding


def caller() -> str:
    """Return the name of this Python thread, for ranks to compare; "" for the main thread, and for a rank that is a thread.

    Ranks match their calls in order.  If several threads call jobs, the names identify matching calls.
    """
    if threading.current_thread() is threading.main_thread() or current().root is not _ROOT.root:
        return ""
    return threading.current_thread().name


def using(**changes: Any) -> AbstractContextManager[Scope]:
    """Change fields of the current scope within a `with` block."""
    return _Changed(changes)


class _Changed:
    __slots__ = ("_changes", "_token")

    def __init__(self, changes: dict[str, Any]) -> None:
        self._changes = changes

    def __enter__(self) -> Scope:
        scope = _with(current(), self._changes)
        self._token = _CURRENT.set(scope)
        return scope

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


def _with(scope: Scope, changes: dict[str, Any]) -> Scope:
    """Return a copy of the scope with changed fields; faster than `dataclasses.replace`, because every op enters a scope."""
    if not changes.keys() <= scope.__dict__.keys():
        raise TypeError(f"a scope has no {', '.join(changes.keys() - scope.__dict__.keys())}")
    other = object.__new__(Scope)
    other.__dict__.update(scope.__dict__, **changes)
    return other


def enter(prepared: Scope) -> Token[Scope | None]:
    """Make a prepared scope the current one until `leave`; faster than `using`."""
    return _CURRENT.set(prepared)


def leave(token: Token[Scope | None]) -> None:
    """Restore the scope that was current before `enter`."""
    _CURRENT.reset(token)


# -------------------------------------------------------------------- what programs write


class _Entered:
    """Base class of reentrant context managers that change the scope while an interpreter is active; several threads may share an object."""

    def _changes(self) -> dict[str, Any]:
        return {}

    def __enter__(self) -> Self:
        changes = self._changes() if current().interpreter is not None else {}
        _CURRENT.set(_with(current(), {**changes, "outer": _CURRENT.get()}))
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.set(current().outer)


def _elements(argument: Any) -> tuple[Any, ...]:
    """Return the elements of an iterable; () for a string, bytes, a dict or a scalar."""
    return tuple(argument) if isinstance(argument, Iterable) and not isinstance(argument, str | bytes | dict) else ()


class placement(_Entered):
    """Context manager that runs the ops of the block on these devices.

    `device_tag` is "cpu", "gpu" or "cuda".  `machine_device_ids` is "machine:devices" ("0:0", "0:0-3"), a list of such strings or of ranks, or
    nested lists ([[0, 1], [2, 3]]).  `hierarchy`, like nested lists, arranges the devices as a mesh of several dimensions; tensors have one S/B/P
    per dimension.  Outside jobs the object is only a value, for `function_config.default_placement_scope`.
    Raises: PlacementError for invalid arguments.  A job that uses the placement raises PlacementError for a device that does not exist.
    """

    def __init__(self, device_tag: str, machine_device_ids: str | Sequence[Any], hierarchy: Sequence[int] | None = None) -> None:
        if not isinstance(device_tag, str) or device_tag not in ("cpu", "gpu", "cuda"):
            raise PlacementError(f'placement at {user_line()}: device_tag {device_tag!r} is unknown; use "cpu" or "gpu"')
        self.tag = device_tag
        self.devices = (machine_device_ids,) if isinstance(machine_device_ids, str) else _elements(machine_device_ids)
        self.hierarchy = None if hierarchy is None else _elements(hierarchy)
        if not self.devices:
            what = 'a string such as "0:0-3", or a list of such strings or of ranks'
            raise PlacementError(f"placement at {user_line()}: machine_device_ids must be {what}, not {machine_device_ids!r}")
        if self.hierarchy is not None and not (self.hierarchy and all(isinstance(n, Integral) for n in self.hierarchy)):
            raise PlacementError(f"placement at {user_line()}: hierarchy must be a shape of the devices such as (2, 2); got {hierarchy!r}")

    def __repr__(self) -> str:
        return f"jobflow.scope.placement({self.tag!r}, {list(self.devices)})"

    def resolve(self) -> Placement:
        """Return the placement of these devices in the current session; raise JobError without a session."""
        session: Placer | None = current().root.session
        if session is None:
            raise JobError(f"{self!r} at {user_line()}: no session provides the devices; call it within a session")
        return session.place(self.tag, self.devices, self.hierarchy)

    def _changes(self) -> dict[str, Any]:
        return {"placement": self.resolve()}


class _ViewScope(_Entered):
    view: ClassVar[View]

    def __repr__(self) -> str:
        return f"jobflow.scope.{type(self).__name__}()"

    def _changes(self) -> dict[str, Any]:
        return {"view": self.view}


class consistent_view(_ViewScope):
    """Context manager for ops on logical tensors, which are split and assembled automatically."""

    view = "consistent"


class mirrored_view(_ViewScope):
    """Context manager for ops on separate tensors per device; variables are replicated and remain equal on all devices."""

    view = "mirrored"


def consistent_view_enabled() -> bool:
    """Return True in the consistent view, where tensors are logical."""
    return current().view == "consistent"


def mirrored_view_enabled() -> bool:
    """Return True in the mirrored view, where every device has separate tensors."""
    return current().view == "mirrored"


class namespace(_Entered):
    """Context manager that prefixes "<name>-" to the names of variables and ops in the block; nested blocks add several prefixes.

    Raises: JobError if `name` is not a string, or is empty.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise JobError(f"namespace at {user_line()}: the name must be a nonempty string, not {name!r}")
        self.name = name

    def _changes(self) -> dict[str, Any]:
        return {"namespace": (*current().namespace, self.name)}


class config(_Entered):
    """Context manager for options of the block: pipeline stage, activation checkpointing, stale variables, and quantization-aware training.

    `pipeline_stage_id_hint` is the number of the stage.  With `checkpointing=True`, every entry of the block begins a region.  Only the inputs of
    a region are saved for the backward pass, which recomputes the other values.  Checkpointing saves memory, but repeats the forward pass.  Results
    are equal, including random numbers.  `checkpointing=False` ends an enclosing region for the block.  In stage `ssp_stage_id` of `ssp_num_stages`,
    trained variables are read as by `experimental.ssp_variable_proxy` with a `buffer_size` of ssp_num_stages - ssp_stage_id.
    `quantization_aware_training=False` turns `function_config.enable_qat` off for the block.
    Raises: ConfigError for an unknown option, or for a value of the wrong type or out of range.
    """

    OPTIONS: ClassVar[dict[str, type]] = {
        "pipeline_stage_id_hint": int,
        "checkpointing": bool,
        "ssp_num_stages": int,
        "ssp_stage_id": int,
        "quantization_aware_training": bool,
    }

    def __init__(self, **options: Any) -> None:
        what = f"experimental.scope.config at {user_line()}"
        for name, value in options.items():
            if name not in self.OPTIONS:
                raise ConfigError(f'{what}: unknown option "{name}"{did_you_mean(name, self.OPTIONS)}')
            if type(value) is not self.OPTIONS[name]:
                raise ConfigError(f"{what}: {name} takes a value of type {self.OPTIONS[name].__name__}; got {value!r}")
        if options.get("pipeline_stage_id_hint", 0) < 0:
            raise ConfigError(f"{what}: pipeline_stage_id_hint must be at least 0; got {options['pipeline_stage_id_hint']}")
        self.buffered = options.get("ssp_num_stages", 1) - options.get("ssp_stage_id", 0)
        if self.buffered < 1 or options.get("ssp_stage_id", 0) < 0:
            raise ConfigError(f"{what}: ssp_stage_id must be 0 to ssp_num_stages - 1; got {options}")
        self.options = options

    def _changes(self) -> dict[str, Any]:
        changes = {"buffered": self.buffered} if "ssp_num_stages" in self.options else {}
        changes |= {"stage": self.options["pipeline_stage_id_hint"]} if "pipeline_stage_id_hint" in self.options else {}
        changes |= {"quantized": self.options["quantization_aware_training"]} if "quantization_aware_training" in self.options else {}
        if "checkpointing" in self.options:
            changes["region"] = _new_region() if self.options["checkpointing"] else None
        return changes


def checkpointed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return `function` with each call in a separate region of activation checkpointing, as in `config(checkpointing=True)`.

    @flow.checkpointed
    def block(x): ...

    for i in range(12):
        with flow.scope.namespace(f"block{i}"):
            x = block(x)                      # or: x = flow.checkpointed(block)(x)
    """

    @wraps(function)
    def in_region(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with config(checkpointing=True):
            return function(*arguments, **named)

    return in_region


def _new_region() -> int:
    """Return an unused region number of the job."""
    job: Any = current().interpreter
    return int(job.new_region())


@dataclass(frozen=True)
class Devices:
    """The devices of a placement, in the form of the legacy API."""

    placement: Placement
    per_machine: int

    @property
    def device_tag(self) -> str:
        """The kind of device: "cpu" or "gpu"."""
        return self.placement.tag

    @property
    def parallel_num(self) -> int:
        """The number of devices."""
        return self.placement.size

    @property
    def machine_id2device_id_list(self) -> dict[int, list[int]]:
        """The device indices of each machine, by index of the machine."""
        devices: dict[int, list[int]] = {}
        for rank in self.placement.ranks:
            devices.setdefault(rank // self.per_machine, []).append(rank % self.per_machine)
        return devices

    @property
    def parallel_conf(self) -> ParallelConf:
        """The placement as a string."""
        return ParallelConf.of(self.placement)


@dataclass(frozen=True)
class CurrentScope:
    """The devices and the session of the current scope, as returned by `current_scope`."""

    device_parallel_desc_symbol: Devices
    #: unique per session
    session_id: int


def current_scope() -> CurrentScope:
    """Return the devices and the session of the ops called here; raise JobError outside a job."""
    here = current()
    session: Placer | None = here.root.session
    if here.placement is None or session is None:
        raise JobError(f"current_scope at {user_line()}: called outside a job; call it in the body of a function decorated with global_function")
    return CurrentScope(Devices(here.placement, session.devices_per_machine()), id(session))
