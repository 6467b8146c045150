"""The scope of a program: the placement, view and options in force, and the interpreter that receives operations.

Programs enter scopes with `placement`, `consistent_view`, `mirrored_view`, `namespace` and `config`; jobflow itself with `using`.
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
    """Takes every op that is called: a tracer records it, an eager interpreter runs it."""

    def apply(self, op: Any, inputs: Sequence[Tensor], name: str | None) -> tuple[Any, ...]: ...


class Placer(Protocol):
    """Who knows which devices there are."""

    def place(self, tag: str, devices: Sequence[Any], hierarchy: tuple[int, ...] | None) -> Placement: ...
    def devices_per_machine(self) -> int: ...


@dataclass
class Root:
    """What lives as long as the process (or a test): the session and what is said about its environment.  The only mutable part."""

    session: Any = None
    environment: Any = None
    #: what the global tensors of this rank share
    eager: Any = None
    #: held by the one Python thread that calls a job or a graph, moves global tensors, or changes any of this
    lock: AbstractContextManager[bool] = field(default_factory=threading.RLock)


@dataclass(frozen=True)
class Scope:
    """Who interprets ops here, on which placement, in which view and under which names."""

    root: Root = field(default_factory=Root)
    interpreter: Interpreter | None = None
    placement: Placement | None = None
    view: View = "consistent"
    namespace: tuple[str, ...] = ()
    #: stage of a pipeline
    stage: int | None = None
    #: number of the region whose values are made again for the backward pass
    region: int | None = None
    #: of how many runs ago the variables are with which it computes; 1: of this run
    buffered: int = 1
    #: False where a job of `enable_qat` computes with all bits
    quantized: bool = True
    #: the scope that is in force again after this one
    outer: Scope | None = None

    def full_name(self, name: str) -> str:
        """`name` behind the namespaces, joined with "-" as the legacy face spells it."""
        if not isinstance(name, str):
            raise JobError(f"{user_line()}: the name of an op or a variable must be a string, not {name!r} of type {type(name).__name__}")
        return "-".join((*self.namespace, name))


_CURRENT: ContextVar[Scope | None] = ContextVar("jobflow_scope", default=None)
_ROOT = Scope()


def current() -> Scope:
    """The scope in force."""
    return _CURRENT.get() or _ROOT


def lock() -> AbstractContextManager[bool]:
    """What a thread holds while it runs something that the threads of this program share; it may hold it already."""
    return current().root.lock


def alone(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function` with the lock held while it runs."""

    @wraps(function)
    def holding(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with lock():
            return function(*arguments, **named)

    return holding


def caller() -> str:
    """Which Python thread this is, for ranks to compare: "" for a rank's own, the name of any other.

    Ranks meet in the order of their calls.  Where several threads call, only their names tell which calls belong together.
    """
    if threading.current_thread() is threading.main_thread() or current().root is not _ROOT.root:
        return ""
    return threading.current_thread().name


def using(**changes: Any) -> AbstractContextManager[Scope]:
    """The current scope with some fields changed, for the length of a `with` block."""
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
    """A scope with some fields changed.  One is entered for every op, and `dataclasses.replace` takes three times as long."""
    if not changes.keys() <= scope.__dict__.keys():
        raise TypeError(f"a scope has no {', '.join(changes.keys() - scope.__dict__.keys())}")
    other = object.__new__(Scope)
    other.__dict__.update(scope.__dict__, **changes)
    return other


def enter(prepared: Scope) -> Token[Scope | None]:
    """Make a scope that was prepared with `dataclasses.replace` the current one, until `leave`; `using` for what is called often."""
    return _CURRENT.set(prepared)


def leave(token: Token[Scope | None]) -> None:
    """The scope before `enter` is the current one again."""
    _CURRENT.reset(token)


# -------------------------------------------------------------------- what programs write


class _Entered:
    """A `with` block that changes the scope of what is called inside; it may be entered again and again, also by several threads at once."""

    def _changes(self) -> dict[str, Any]:
        return {}

    def __enter__(self) -> Self:
        changes = self._changes() if current().interpreter is not None else {}
        _CURRENT.set(_with(current(), {**changes, "outer": _CURRENT.get()}))
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.set(current().outer)


def _elements(given: Any) -> tuple[Any, ...]:
    """Those of a list; none of what is no list."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | dict) else ()


class placement(_Entered):
    """Run what is called inside on these devices.

    `device_tag` is "cpu", "gpu" or "cuda"; `machine_device_ids` is "machine:devices" ("0:0", "0:0-3"), a list of such texts or of
    numbers of ranks, or a list of rows ([[0, 1], [2, 3]]); `hierarchy`, like rows, arranges the devices in a mesh of several
    dimensions, each tensor having one S/B/P for each.  Outside jobs it is only a value, for
    `function_config.default_placement_scope`.
    Raises: PlacementError for a text it cannot read, and, when a job uses it, for a device that does not exist.
    """

    def __init__(self, device_tag: str, machine_device_ids: str | Sequence[Any], hierarchy: Sequence[int] | None = None) -> None:
        if not isinstance(device_tag, str) or device_tag not in ("cpu", "gpu", "cuda"):
            raise PlacementError(f'placement at {user_line()}: unknown device tag {device_tag!r}; use "cpu" or "gpu"')
        self.tag = device_tag
        self.devices = (machine_device_ids,) if isinstance(machine_device_ids, str) else _elements(machine_device_ids)
        self.hierarchy = None if hierarchy is None else _elements(hierarchy)
        if not self.devices:
            what = 'a text such as "0:0-3", or a list of such texts or of ranks'
            raise PlacementError(f"placement at {user_line()}: machine_device_ids is {what}, not {machine_device_ids!r}")
        if self.hierarchy is not None and not (self.hierarchy and all(isinstance(n, Integral) for n in self.hierarchy)):
            raise PlacementError(f"placement at {user_line()}: hierarchy is a shape of the devices such as (2, 2), not {hierarchy!r}")

    def __repr__(self) -> str:
        return f"jobflow.scope.placement({self.tag!r}, {list(self.devices)})"

    def resolve(self) -> Placement:
        """The ranks meant, which the current session knows."""
        session: Placer | None = current().root.session
        if session is None:
            raise JobError(f"{self!r} at {user_line()}: there is no session that knows the devices")
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
    """Tensors are logical: one tensor, cut and put together automatically."""

    view = "consistent"


class mirrored_view(_ViewScope):
    """Every device has tensors of its own; variables are copies that stay equal."""

    view = "mirrored"


def consistent_view_enabled() -> bool:
    """True where tensors are logical."""
    return current().view == "consistent"


def mirrored_view_enabled() -> bool:
    """True where every device has tensors of its own."""
    return current().view == "mirrored"


class namespace(_Entered):
    """Put "<name>-" before the names of variables and ops made inside."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise JobError(f"namespace at {user_line()}: the name must be a string, not {name!r}")
        self.name = name

    def _changes(self) -> dict[str, Any]:
        return {"namespace": (*current().namespace, self.name)}


class config(_Entered):
    """What is called inside is a stage of a pipeline, or a region whose values are not kept for the backward pass but made again then.

    `pipeline_stage_id_hint` is the number of the stage.  With `checkpointing=True`, every time the block is entered begins a region:
    only what it reads from outside is kept, so memory shrinks at the price of computing it twice; numbers stay the same, random
    ones included.  `checkpointing=False` ends a region inside of it.  In stage `ssp_stage_id` of `ssp_num_stages` trained variables are read
    as `experimental.ssp_variable_proxy` gives them with a buffer of ssp_num_stages - ssp_stage_id.  With `quantization_aware_training=False` a job of
    `function_config.enable_qat` computes as if it had not that option.
    Raises: ConfigError for an unknown option, or a value of the wrong kind.
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
            raise ConfigError(f"{what}: stages are numbered from 0; got {options['pipeline_stage_id_hint']}")
        self.buffered = options.get("ssp_num_stages", 1) - options.get("ssp_stage_id", 0)
        if self.buffered < 1 or options.get("ssp_stage_id", 0) < 0:
            raise ConfigError(f"{what}: ssp_stage_id is 0 to ssp_num_stages - 1; got {options}")
        self.options = options

    def _changes(self) -> dict[str, Any]:
        changes = {"buffered": self.buffered} if "ssp_num_stages" in self.options else {}
        changes |= {"stage": self.options["pipeline_stage_id_hint"]} if "pipeline_stage_id_hint" in self.options else {}
        changes |= {"quantized": self.options["quantization_aware_training"]} if "quantization_aware_training" in self.options else {}
        if "checkpointing" in self.options:
            changes["region"] = _new_region() if self.options["checkpointing"] else None
        return changes


def checkpointed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function` with every call of it a region of its own: `config(checkpointing=True)` for a layer or a block of them.

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
    """A number that no region of the job has."""
    job: Any = current().interpreter
    return int(job.new_region())


@dataclass(frozen=True)
class Devices:
    """Devices of a placement, as the legacy face looks at them."""

    placement: Placement
    per_machine: int

    @property
    def device_tag(self) -> str:
        """The kind of device: "cpu" or "gpu"."""
        return self.placement.tag

    @property
    def parallel_num(self) -> int:
        """How many there are."""
        return self.placement.size

    @property
    def machine_id2device_id_list(self) -> dict[int, list[int]]:
        """Which devices of which machine."""
        found: dict[int, list[int]] = {}
        for rank in self.placement.ranks:
            found.setdefault(rank // self.per_machine, []).append(rank % self.per_machine)
        return found

    @property
    def parallel_conf(self) -> ParallelConf:
        """All of this as text."""
        return ParallelConf.of(self.placement)


@dataclass(frozen=True)
class CurrentScope:
    """What a program may ask about where it is."""

    device_parallel_desc_symbol: Devices
    #: another one for every session
    session_id: int


def current_scope() -> CurrentScope:
    """The devices on which what is called here runs; JobError outside a job."""
    here = current()
    session: Placer | None = here.root.session
    if here.placement is None or session is None:
        raise JobError(f"current_scope at {user_line()} was called outside a job; call it in the body of a function decorated with global_function")
    return CurrentScope(Devices(here.placement, session.devices_per_machine()), id(session))
