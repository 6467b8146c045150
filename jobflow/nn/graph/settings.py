"""Settings of a graph (`config`) and of its modules (`GraphModule`), which the `ProxyModule`s of the graph return."""

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

#: options of graphs of other systems that have no effect here
IGNORED = frozenset(ignored_options("nn.Graph"))


class GraphConfig:
    """The compilation options of a graph, available as `graph.config`."""

    def __init__(self) -> None:
        self.half: DType | None = None
        self.steps = 1
        self.zero: Zero | None = None
        self.schedule: str | None = None
        self.parallel: Strategy | None = None
        #: source lines at which strategy and microbatches were configured
        self.lines: dict[str, SourceLine] = {}

    def strategy(self, strategy: Strategy) -> None:
        """Distribute the program by a strategy of `flow.strategies` over the ranks of the inputs and parameters, without changes in `build`.

        Raises: ConfigError unless `strategy` is a strategy.
        """
        if not isinstance(strategy, Strategy):
            raise ConfigError(
                f"config.strategy at {user_line()}: the argument must be a strategy such as strategies.data_parallel(); got {strategy!r}"
            )
        self.parallel, self.lines["strategy"] = strategy, user_line()

    def enable_amp(self, mode: bool = True, *, dtype: DType = float16) -> None:
        """Compute matrix products and convolutions in half precision `dtype`, float16 or bfloat16; `mode=False` restores full precision.

        Raises: ConfigError for another `dtype`.
        """
        if dtype not in (float16, bfloat16):
            raise ConfigError(f"config.enable_amp at {user_line()}: dtype must be float16 or bfloat16; got {dtype!r}")
        self.half = dtype if mode else None

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Divide the batch into `value` microbatches, and average their gradients.  Raises: ConfigError unless `value` is an int >= 1."""
        if type(value) is not int or value < 1:
            raise ConfigError(f"config.set_gradient_accumulation_steps at {user_line()}: value must be an int >= 1; got {value!r}")
        self.steps, self.lines["steps"] = value, user_line()

    def enable_zero(self, mode: bool = True, *, stage: int = 2, shard_min_size: int = 1024, shard_restore_level: int = 1) -> None:
        """Shard optimizer state (stage 1), gradients (2) and parameters (3) over the ranks; mode=False disables sharding.

        Parameters with fewer than `shard_min_size` elements are not sharded. `shard_restore_level` has no effect: shards are gathered at each
        read.  Raises: ConfigError for another stage.
        """
        if stage not in (1, 2, 3):
            raise ConfigError(f"config.enable_zero at {user_line()}: stage must be 1, 2 or 3; got {stage!r}")
        self.zero = Zero(stage, least=shard_min_size) if mode else None

    def set_zero_redundancy_optimizer_mode(self, mode: str = "distributed_split") -> None:
        """Call `enable_zero` with stage 1 for the mode "distributed_split", else with stage 2; a method of older releases."""
        self.enable_zero(stage=1 if mode == "distributed_split" else 2)

    def set_pipeline_schedule(self, name: str) -> None:
        """Select the order in which pipeline stages process the microbatches.  Raises: ConfigError for an unknown schedule."""
        if name not in SCHEDULES:
            near = did_you_mean_or(name, SCHEDULES, f"use {', '.join(SCHEDULES)}")
            raise ConfigError(f"config.set_pipeline_schedule at {user_line()}: unknown schedule {name!r}{near}")
        self.schedule = name

    def __getattr__(self, name: str) -> Any:
        if name in IGNORED:
            notice(f"nn.Graph: config.{name} has no effect and is ignored")
            return lambda *args, **options: None
        legal = [n for n in dir(type(self)) if not n.startswith("_")]
        raise ConfigError(f'nn.Graph: config at {user_line()}: unknown option "{name}"{did_you_mean(name, [*legal, *IGNORED])}')

    def __repr__(self) -> str:
        steps = self.steps if self.steps > 1 else None
        described = _described(amp=self.half, gradient_accumulation_steps=steps, zero=self.zero, schedule=self.schedule, strategy=self.parallel)
        return f"(CONFIG:{described or 'default'})"


def _described(**settings: Any) -> str:
    """Return the settings that are not None as text, such as "stage_id=1, placement=..."."""
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


class GraphModule:
    """The settings of one module of a graph, such as its pipeline stage."""

    _FIELDS = ("stage_id", "placement", "activation_checkpointing", "module")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.stage_id: int | None = None
        self.placement: public_placement | None = None
        self.activation_checkpointing = False

    def set_stage(self, stage_id: int | None = None, placement: public_placement | None = None) -> None:
        """Assign the module to pipeline stage `stage_id`, numbered from 0; `placement`, if passed, receives the inputs of the module.

        Raises: ConfigError for another `stage_id` or `placement`.
        """
        if placement is not None and not isinstance(placement, public_placement):
            raise ConfigError(f"set_stage at {user_line()}: placement must be a jobflow.placement; got {placement!r}")
        if stage_id is not None and (type(stage_id) is not int or stage_id < 0):
            raise ConfigError(f"set_stage at {user_line()}: stage_id must be an int >= 0; got {stage_id!r}")
        self.stage_id, self.placement = stage_id, placement

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._FIELDS:
            raise ConfigError(f'GraphModule at {user_line()}: unknown setting "{name}"{did_you_mean(name, self._FIELDS)}')
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        again = self.activation_checkpointing or None
        return f"GraphModule({_described(stage_id=self.stage_id, placement=self.placement, activation_checkpointing=again)})"


class ProxyModule:
    """A proxy of a module in a graph.

    `to(nn.Module)` returns the module itself, `to(nn.graph.GraphModule)` its settings. Submodules are proxies too; other attributes are forwarded
    to the module.
    """

    _OWN = ("_module", "_settings")

    def __init__(self, module: Any, settings: dict[int, GraphModule]) -> None:
        self._module = module
        self._settings = settings

    def to(self, kind: type) -> Any:
        """Return the module for `nn.Module`, or its settings for `GraphModule`.  Raises: JobError for another class."""
        if kind is GraphModule:
            return self._settings.setdefault(id(self._module), GraphModule(self._module))
        if isinstance(kind, type) and isinstance(self._module, kind):
            return self._module
        raise JobError(
            f"to at {user_line()}: the class must be nn.Module or nn.graph.GraphModule for this {type(self._module).__name__}; got {kind!r}"
        )

    @property
    def config(self) -> GraphModule:
        """The settings of the module, the same as to(GraphModule); a name of older releases."""
        return self.to(GraphModule)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._module(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return self._proxy(getattr(self._module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._module, name, value)

    def __getitem__(self, index: Any) -> Any:
        return self._proxy(self._module[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._proxy, self._module)

    def __len__(self) -> int:
        return len(self._module)

    def _proxy(self, x: Any) -> Any:
        return ProxyModule(x, self._settings) if isinstance(x, Module) else x

    def __repr__(self) -> str:
        described = self._settings.get(id(self._module))
        return f"{self._module!r}{'' if described is None else f' {described!r}'}"
