"""The settings of a graph (`config`) and of its modules (`GraphModule`), which are attributes of the graph through `ProxyModule`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobflow.compiler.front.schedule import SCHEDULES
from jobflow.core.errors import ConfigError, JobError, SourceLine, did_you_mean, did_you_mean_or, user_line
from jobflow.core.notices import notice
from jobflow.core.types import DType, bfloat16, float16
from jobflow.engine.options import ignored_options
from jobflow.engine.placements import placement as public_placement
from jobflow.graph.strategy import Strategy
from jobflow.nn.modules.module import Module
from jobflow.strategies.data_parallel import zero as Zero

#: switches of graphs elsewhere that have nothing to switch here
IGNORED = frozenset(ignored_options("nn.Graph"))


class GraphConfig:
    """How a graph is compiled: what `graph.config` is."""

    def __init__(self) -> None:
        self.half: DType | None = None
        self.steps = 1
        self.zero: Zero | None = None
        self.schedule: str | None = None
        self.parallel: Strategy | None = None
        #: where the strategy was asked for, and the parts of the batch
        self.asked: dict[str, SourceLine] = {}

    def strategy(self, strategy: Strategy) -> None:
        """Be parallel as a strategy of `flow.strategies` says: the inputs and parameters lie on its ranks, and build says nothing of it."""
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"config.strategy at {user_line()}: a strategy such as strategies.data_parallel() is needed; got {strategy!r}")
        self.parallel, self.asked["strategy"] = strategy, user_line()

    def enable_amp(self, mode: bool = True, *, dtype: DType = float16) -> None:
        """Compute products and convolutions in half precision."""
        if dtype not in (float16, bfloat16):
            raise ConfigError(f"config.enable_amp at {user_line()}: dtype is float16 or bfloat16; got {dtype!r}")
        self.half = dtype if mode else None

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Let the batch pass through the graph in so many parts, and average their gradients."""
        if type(value) is not int or value < 1:
            raise ConfigError(f"config.set_gradient_accumulation_steps at {user_line()}: a number of parts, at least 1, is needed; got {value!r}")
        self.steps, self.asked["steps"] = value, user_line()

    def enable_zero(self, mode: bool = True, *, stage: int = 2, shard_min_size: int = 1024, shard_restore_level: int = 1) -> None:
        """Have every rank keep a part of the parameters only, in stage 1, 2 or 3; those under `shard_min_size` elements stay whole.

        `shard_restore_level` has nothing to choose: a part is gathered where it is read.
        """
        if stage not in (1, 2, 3):
            raise ConfigError(f"config.enable_zero at {user_line()}: stage is 1, 2 or 3; got {stage!r}")
        self.zero = Zero(stage, least=shard_min_size) if mode else None

    def set_zero_redundancy_optimizer_mode(self, mode: str = "distributed_split") -> None:
        """The older name of `enable_zero`, stage 1 or 2."""
        self.enable_zero(stage=1 if mode == "distributed_split" else 2)

    def set_pipeline_schedule(self, name: str) -> None:
        """The order in which stages work on the parts of the batch."""
        if name not in SCHEDULES:
            near = did_you_mean_or(name, SCHEDULES, f"use {', '.join(SCHEDULES)}")
            raise ConfigError(f"config.set_pipeline_schedule at {user_line()}: there is no {name!r}{near}")
        self.schedule = name

    def __getattr__(self, name: str) -> Any:
        if name in IGNORED:
            notice(f"nn.Graph: config.{name} has no effect and is ignored")
            return lambda *args, **options: None
        legal = [n for n in dir(type(self)) if not n.startswith("_")]
        raise ConfigError(f'nn.Graph: config at {user_line()} has no "{name}"{did_you_mean(name, [*legal, *IGNORED])}')

    def __repr__(self) -> str:
        steps = self.steps if self.steps > 1 else None
        said = _said(amp=self.half, gradient_accumulation_steps=steps, zero=self.zero, schedule=self.schedule, strategy=self.parallel)
        return f"(CONFIG:{said or 'default'})"


def _said(**settings: Any) -> str:
    """What was set."""
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


class GraphModule:
    """What a graph is told about one of its modules."""

    _FIELDS = ("stage_id", "placement", "activation_checkpointing", "module")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.stage_id: int | None = None
        self.placement: public_placement | None = None
        self.activation_checkpointing = False

    def set_stage(self, stage_id: int | None = None, placement: public_placement | None = None) -> None:
        """The module is in this stage of a pipeline; its inputs are moved to `placement` if that is given."""
        if placement is not None and not isinstance(placement, public_placement):
            raise ConfigError(f"set_stage at {user_line()}: placement= takes a jobflow.placement; got {placement!r}")
        if stage_id is not None and (type(stage_id) is not int or stage_id < 0):
            raise ConfigError(f"set_stage at {user_line()}: stages are numbered 0, 1, ...; got {stage_id!r}")
        self.stage_id, self.placement = stage_id, placement

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._FIELDS:
            raise ConfigError(f'GraphModule at {user_line()} has no "{name}"{did_you_mean(name, self._FIELDS)}')
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        again = self.activation_checkpointing or None
        return f"GraphModule({_said(stage_id=self.stage_id, placement=self.placement, activation_checkpointing=again)})"


class ProxyModule:
    """A module as its graph sees it.

    `to(nn.Module)` is the module itself; `to(nn.graph.GraphModule)` what the graph is told about it.  Submodules are proxies too;
    all else is as in the module.
    """

    _OWN = ("_module", "_settings")

    def __init__(self, module: Any, settings: dict[int, GraphModule]) -> None:
        self._module = module
        self._settings = settings

    def to(self, kind: type) -> Any:
        """The module, or what the graph is told about it."""
        if kind is GraphModule:
            return self._settings.setdefault(id(self._module), GraphModule(self._module))
        if isinstance(kind, type) and isinstance(self._module, kind):
            return self._module
        raise JobError(f"to at {user_line()}: {type(self._module).__name__} in a graph gives its nn.Module or its nn.graph.GraphModule; got {kind!r}")

    @property
    def config(self) -> GraphModule:
        """The older name of `to(nn.graph.GraphModule)`."""
        return self.to(GraphModule)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._module(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return self._seen(getattr(self._module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._module, name, value)

    def __getitem__(self, index: Any) -> Any:
        return self._seen(self._module[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._seen, self._module)

    def __len__(self) -> int:
        return len(self._module)

    def _seen(self, x: Any) -> Any:
        return ProxyModule(x, self._settings) if isinstance(x, Module) else x

    def __repr__(self) -> str:
        said = self._settings.get(id(self._module))
        return f"{self._module!r}{'' if said is None else f' {said!r}'}"
