"""The class `nn.Graph`, a compiled program of tensors and modules.

    class Train(nn.Graph):
        def __init__(self, model, optimizer):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x, y):
            loss = (self.model(x) - y).square().mean()
            loss.backward()
            return loss

`build` is traced at the first call, with tensors that have no data. This call and later calls run the compiled program. Inputs of other shapes
cause another trace; its program shares parameters, optimizers and random numbers. All ranks must create and call the same graphs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Never

import jobflow.core.scope as scope
from jobflow.compiler.compile import logical
from jobflow.compiler.front.batch_cut import cut_batch, explained
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import CheckpointError, ConfigError, JobError, did_you_mean, did_you_mean_or, user_line
from jobflow.core.layout import Placement
from jobflow.core.notices import notice
from jobflow.engine.session import current_session
from jobflow.engine.sizes import many_shapes
from jobflow.functional.devices import device_of
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.strategy import Distribution
from jobflow.graph.traced import Traced
from jobflow.graph.training import Microbatches, Training
from jobflow.kernels.target import CPU
from jobflow.nn.amp import Scaler
from jobflow.nn.graph.building import Building
from jobflow.nn.graph.built import Arguments, Built, Guard, Meta, described_call
from jobflow.nn.graph.graph_optimizers import Added, Steps
from jobflow.nn.graph.graph_strategies import spread
from jobflow.nn.graph.running import Bound, Memory
from jobflow.nn.graph.settings import GraphConfig, GraphModule, ProxyModule
from jobflow.nn.modules import state_dicts as saving
from jobflow.nn.modules.module import Module
from jobflow.optim.optimizer import Optimizer
from jobflow.runtime.collection import collection_paused
from jobflow.tensors.gpu_ranks import gpu_of_tensors, shared_target
from jobflow.tensors.state import EagerState, state
from jobflow.tensors.structures import filled, leaves

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

#: key of the step counter in state_dict
STEP = "System-Train-TrainStep"
#: key of the schedules in state_dict
RATES = "System-Train-LearningRate"
#: pattern of other training variables, whose names contain the name of the saving graph
_OF_A_GRAPH = re.compile(r"(System-Train-[A-Za-z]+-)\w+_\d+(-\w+)?")
_MISSING = "call super().__init__() in __init__ before any attribute is assigned or read"


class Body(NamedTuple):
    """One trace of `build`: the program, its recorder, its optimizers and its result."""

    program: Traced
    building: Building
    steps: Steps
    #: the result of `build`, with traced tensors
    returned: Any
    outputs: list[Any]


def check_constants(name: str, whole: Body, part: Body) -> None:
    """Raise JobError if `build` creates a tensor with different elements for a microbatch than for the whole batch.

    The program stores such a tensor as a constant, so its results would differ.
    """
    created, expected = part.building.tensors, whole.building.tensors
    keys = [key for key in {**expected, **created} if not _same_values(expected.get(key), created.get(key))]
    places: list[Any] = [node.where for node in (*part.program.nodes, *whole.program.nodes) if node.name in keys] or [name] * len(keys)
    pairs = zip(part.building.constants, whole.building.constants, strict=False)
    places += [where for (where, a), (_, b) in pairs if (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes())]
    if places:
        raise JobError(
            f"{name} at {places[0]}: build creates different tensors here for a microbatch and for the batch, so the results would differ; "
            f"compute the tensor from tensors of the batch or with flow.full, or use one microbatch"
        )


def guards(building: Building) -> list[Guard]:
    """Return the tensors that Python numbers of one trace of `build` depend on."""
    lines, names = building.guarded_lines, building.names
    return [Guard(x, elements.tobytes(), lines[number], names.get(number, "")) for number, (x, elements) in building.guarded.items()]


def _same_values(a: Tensor | None, b: Tensor | None) -> bool:
    """Return True if both tensors have the same type, layout and elements on this rank."""
    if a is b:
        return True
    if a is None or b is None or (a.tensor_type, a.layout) != (b.tensor_type, b.layout):
        return False
    x, y = ((t if t.layout is None else t.to_local()).detach().numpy() for t in (a, b))
    return bool(x.tobytes() == y.tobytes())


class Graph:
    """A program of tensors and modules, traced and compiled at its first call.

    Subclasses define `build`. Modules that are assigned to attributes become `ProxyModule`s. Inputs of other shapes are traced and compiled again;
    all programs of a graph share parameters, optimizers and random numbers. All ranks must create and call the same graphs.

    Examples:
        >>> class Step(nn.Graph):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.model = nn.Linear(4, 1)
        ...     def build(self, x):
        ...         return self.model(x)
        ...
        >>> Step()(flow.ones(2, 4)).shape
        jobflow.Size([2, 1])
    """

    config: GraphConfig
    _modules: dict[str, Any]

    def __init__(self) -> None:
        here, kind = state(), type(self).__name__
        with scope.lock():
            number = here.graphs[kind] = here.graphs.get(kind, -1) + 1
        vars(self)["_modules"] = {}
        self.name, self.config = f"{kind}_{number}", GraphConfig()
        self._settings: dict[int, GraphModule] = {}
        self._added: list[Added] = []
        self._scaler: Scaler | None = None
        #: programs by input shapes, the program used last, and their shared memory
        self._bounds: dict[Any, Bound] = {}
        self._bound: Bound | None = None
        self._memory = Memory()
        self._loaded: dict[str, Tensor] = {}
        self._loads_all = True
        self._verbosity: int | None = None
        self._created_at = user_line()

    def build(self, *args: Any) -> Any:
        """Return the outputs of the program for its inputs; subclasses must define this method.

        Inputs are traced tensors without data.  Outputs are tensors or None, also in nested lists, tuples and dicts.
        """
        raise JobError(
            f"{self.name} at {user_line()}: the graph does not define its program; define build(self, ...) in the class {type(self).__name__}"
        )

    def __reduce_ex__(self, protocol: object) -> Never:
        """Raise JobError, because graphs can be neither copied nor pickled."""
        raise JobError(
            f"{self.name} at {user_line()}: a graph cannot be copied or pickled, because its program belongs to this process; copy the modules, "
            f"create another graph with the copies, and load the state_dict() of this graph"
        )

    # ---------------------------------------------------------------- modules and optimizers

    def __setattr__(self, name: str, value: Any) -> None:
        if "_modules" not in self.__dict__:
            raise JobAttributeError(f"{type(self).__name__} at {user_line()}: {_MISSING}")
        if isinstance(value, Module):
            value = ProxyModule(value, self._settings)
        if isinstance(value, ProxyModule):
            self._modules[name] = value.to(object)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("name", "config"):
            raise JobAttributeError(f"{type(self).__name__} at {user_line()}: {_MISSING}")
        raise JobAttributeError(f'{type(self).__name__} at {user_line()} has no attribute "{name}"{did_you_mean(name, self.__dict__)}')

    def add_optimizer(self, optim: Optimizer, *, lr_sch: Any = None, is_sparse: bool = False) -> None:
        """Add an optimizer. Every run updates the parameters of `optim`, and then sets its learning rates by the schedule `lr_sch`.

        `is_sparse` has no effect: embedding tables always update only the rows that were read.
        Raises: JobError after the first call, or for arguments that are neither an optimizer nor a schedule.
        """
        what = f"{self.name}.add_optimizer at {user_line()}"
        if self._bound is not None:
            raise JobError(f"{what}: the graph is compiled already; add optimizers in __init__")
        if not isinstance(optim, Optimizer):
            raise JobError(f"{what}: optim must be an optimizer of jobflow.optim; got {optim!r}")
        if lr_sch is not None and not hasattr(lr_sch, "step"):
            raise JobError(f"{what}: lr_sch must be a schedule of optim.lr_scheduler; got {lr_sch!r}")
        if getattr(lr_sch, "cycle_momentum", False):
            raise JobError(f"{what}: lr_sch changes the momentum at every step, but a graph has a constant momentum; pass cycle_momentum=False")
        if "step" in vars(optim):
            raise JobError(f"{what}: optim has hooks of step(), which a graph does not call; remove the hooks")
        self._added.append(Added(optim, lr_sch, user_line()))

    def set_grad_scaler(self, scaler: Scaler) -> None:
        """Multiply the losses by the scale of `scaler`, and divide the gradients by this scale, so that small float16 gradients do not become zero.

        Raises: JobError unless `scaler` is an `amp.GradScaler` or `amp.StaticGradScaler`.
        """
        if not isinstance(scaler, Scaler):
            raise JobError(f"{self.name}.set_grad_scaler at {user_line()}: scaler must be an amp.GradScaler or amp.StaticGradScaler; got {scaler!r}")
        _ = scaler.dynamic  # raises an error if a graph does not support the options
        self._scaler = scaler

    @property
    def is_compiled(self) -> bool:
        """True after the first call of the graph."""
        return self._bound is not None

    # ---------------------------------------------------------------- running

    def __call__(self, *args: Any, **options: Any) -> Any:
        arguments = Arguments(args, options)
        with scope.lock():
            bound = self._bound
            tensors = [x for _, x in arguments.leaves()] if bound is None else bound.tensors(arguments)
            key = current_session().settings.computing, tuple([x.tensor_type.shape for x in tensors]), scope.current().autocast
            if bound is None or key != bound.key:
                bound = self._bounds.pop(key, None) or self._compiled(arguments)
                self._keep(key, bound)
            return bound(tensors)

    def _keep(self, key: tuple[Any, ...], bound: Bound) -> None:
        """Cache the program `bound` under `key`, and drop the least recently used programs beyond the number `compiled_shapes` of the session."""
        self._bounds[key] = bound
        self._bound = bound
        most = current_session().settings.compiled_shapes
        while len(self._bounds) > most:
            del self._bounds[next(iter(self._bounds))]
            notice(many_shapes(f"graph {self.name}", most))

    @collection_paused()
    def _compiled(self, arguments: Arguments) -> Bound:
        here = state()
        if here.building is not None:
            raise JobError(f"{self.name} at {user_line()}: a graph cannot be called in the build of another graph; call its modules there")
        built = self._built(here, arguments)
        if self._loads_all:
            self._check_loaded(built)
        bound = self._bound = Bound(here, built, self._loaded, self._memory, self._gpu(here, built.tensors, arguments))
        if self._verbosity is not None:
            print(repr(self) if self._verbosity == 0 else bound.text())
        return bound

    def _gpu(self, here: EagerState, tensors: Mapping[str, Tensor], arguments: Arguments) -> EagerGpu | None:
        """Return the GPU that holds the tensors of the graph on this rank; None for the host."""
        if not here.gpus:
            return None
        return gpu_of_tensors(f"{self.name} at {user_line()}", (*arguments.leaves(), *tensors.items()))

    def _built(self, here: EagerState, arguments: Arguments) -> Built:
        metas = tuple(Meta(name, x.tensor_type, x.layout) for name, x in arguments.leaves())
        cut = self._microbatches(metas)
        whole = None if cut is None else self._traced(here, metas, arguments, None, 0)
        first, *others = [self._traced(here, metas, arguments, cut, size) for size in (cut.sizes if cut is not None else (0,))]
        if whole is not None:
            for body in (first, *others):
                check_constants(self.name, whole, body)
        building, steps = first.building, first.steps
        tail = next(((other.program, other.outputs) for other in others), None)
        batch = None if whole is None else (whole.program, whole.outputs)
        layouts = [*(meta.layout for meta in metas), *(x.layout for x in (*building.tensors.values(), *(x for _, x in leaves(first.returned, ""))))]
        local = all(layout is None for layout in layouts)
        gpu = self._gpu(here, building.tensors, arguments)
        if local or here.rank.size == 1:
            target = CPU if gpu is None else gpu.target
        else:
            target = shared_target(here, [layout for layout in layouts if layout is not None], gpu, described_call(self.name, metas))
        graph = logical(replace(first.program, tail=tail, whole=batch), first.outputs, target).graph
        schedules = self._schedules
        guarded = {id(guard.tensor): guard for body in (first, *others, *([] if whole is None else [whole])) for guard in guards(body.building)}
        tensors, rates, guards_of_tensors = building.tensors, steps.rates, [*guarded.values()]
        return Built(self.name, graph, metas, arguments, first.returned, tensors, building.draws, rates, schedules, local, guards_of_tensors, target)

    def _traced(self, here: EagerState, metas: tuple[Meta, ...], arguments: Arguments, cut: Microbatches | None, size: int) -> Body:
        """Trace `build` for inputs like `metas`; if `cut` divides the batch into microbatches, trace it for one microbatch of `size` rows."""
        config = self.config
        tracer = Tracer(self.name, together(here, metas), self._created_at, bool(self._added), kind="graph")
        known = self._memory.tensors
        names = {id(x): name for name, x in (*known.items(), *self._tensors())}
        building = Building(here, tracer, names, self._settings, config.zero, bool(self._added), known, config.parallel is not None)
        building.device = next((device_of(x) for _, x in arguments.leaves() if x.layout is None), None)
        with building.in_force(), nullcontext() if cut is None else explained(cut, size):
            stand_ins = filled(arguments, iter([_stand_in(tracer, building, meta, cut, size) for meta in metas]))
            returned = self.build(*stand_ins.args, **stand_ins.options)
            outputs = [building.known(x) for _, x in leaves(returned, f"what {self.name}.build returns")]
        steps = Steps(self._added, {id(x): name for name, x in building.tensors.items()}, self._scaler)
        program = replace(
            tracer.traced(),
            placement=union(here, tracer),
            training=self._training(building, steps),
            strategy=self._spread(here, building, metas),
            half=config.half,
            microbatches=cut,
            schedule=config.schedule or (config.parallel.schedule if config.parallel is not None else None),
        )
        return Body(program, building, steps, returned, [x.traced for x in outputs])

    def _spread(self, here: EagerState, building: Building, metas: tuple[Meta, ...]) -> Distribution | None:
        """Return the distribution of the program by the strategy of `config.strategy`; None without a strategy."""
        config = self.config
        if config.parallel is None:
            return None
        if config.zero is not None:
            raise ConfigError(
                f"{self.name} at {user_line()}: config.enable_zero and config.strategy both define the storage of parameters; use strategies.zero(), "
                f"alone or in strategies.combine()"
            )
        tensors = building.tensors.items()
        lies = [*((meta.name, meta.layout) for meta in metas), *((name, building.lying(x)) for name, x in tensors)]
        redistributed = {name: x.layout for name, x in tensors if x.layout is not None and x.layout != building.lying(x)}
        what = f"{self.name} at {user_line()}"
        return spread(config.parallel, what, config.lines["strategy"], here.rank.size, lies, redistributed)

    def _check_loaded(self, built: Built) -> None:
        """Raise CheckpointError for a loaded tensor that is not a variable of the graph."""
        for name in self._loaded:
            if name not in built.graph.variables:
                known = [variable for variable in built.graph.variables if variable not in built.tensors]
                raise CheckpointError(
                    f'{self.name} at {user_line()}: the loaded state has "{name}", but the graph does not'
                    f"{did_you_mean_or(name, known, 'add the optimizer that it belongs to, or load with strict=False')}"
                )

    def _microbatches(self, metas: tuple[Meta, ...]) -> Microbatches | None:
        """Return the division of the batch into microbatches, as the configuration or its strategy requests; None for a single microbatch."""
        config = self.config
        k = config.steps if config.steps > 1 or config.parallel is None else config.parallel.microbatches or 1
        if k == 1 or not self._added:
            return None
        where = config.lines["steps" if config.steps > 1 else "strategy"]
        return replace(cut_batch(f"graph {self.name}", k, where, {meta.name: meta.type.shape for meta in metas}, exact=True), within=True)

    def _training(self, building: Building, steps: Steps) -> Training | None:
        if not self._added:
            return None
        for name in steps.selects(list(building.assigned_parameters)):
            raise building.overwrite_error(name)
        if not building.losses:
            raise JobError(f"{self.name}: an optimizer was added at {self._added[0].where}, but build computes no gradients; call loss.backward()")
        assert building.where is not None, "a loss was marked somewhere"
        return Training(tuple(building.losses), (steps,), building.where)

    # ---------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """Return the state of modules, optimizers and step counter, for `load_state_dict`.

        The state of a module has the name of the graph's attribute as its key. The keys "<parameter>-<slot>" have optimizer state, and
        "System-Train-TrainStep" the number of steps. With an `lr_sch`, "System-Train-LearningRate" has the state_dicts of the schedules.
        """
        variables = self._loaded
        if self._bound is not None:
            own = ((bound, name) for bound in self._bounds.values() for name in bound.built.graph.variables if name not in bound.built.tensors)
            variables = {name: bound.variable(name) for bound, name in own}
        states: dict[str, Any] = {name: module.state_dict() for name, module in self._modules.items()}
        rates = [schedule.state_dict() for schedule in self._schedules]
        return states | {STEP if name == f"{STEP}-{self.name}" else name: x for name, x in variables.items()} | ({RATES: rates} if rates else {})

    @property
    def _schedules(self) -> list[Any]:
        """The learning rate schedules of the optimizers."""
        return [one.schedule for one in self._added if one.schedule is not None]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load `state_dict`, a result of the method `state_dict`. Call this method before the first call of the graph.

        With strict=False, modules and tensors that only the state or only the graph has are ignored.
        Otherwise, the first call of the graph raises CheckpointError for unknown tensors of the state.

        Raises: JobError after the first call; CheckpointError if names or shapes differ, and the graph is then unchanged.
        """
        what = f"{self.name}.load_state_dict at {user_line()}"
        if self._bound is not None:
            raise JobError(f"{what}: the graph was called already; load before its first call, or load into its modules")
        saved = {name: x for name, x in state_dict.items() if isinstance(x, Tensor)}
        lacking = [name for name in self._modules if name not in state_dict]
        beyond = [name for name in state_dict if name not in self._modules and name not in saved and name != RATES]
        if strict and lacking:
            raise CheckpointError(f'{what}: the state has no module "{lacking[0]}"{did_you_mean(lacking[0], state_dict)}')
        if beyond and (strict or len(lacking) == len(self._modules)):
            raise CheckpointError(f'{what}: the graph has no module "{beyond[0]}"{did_you_mean(beyond[0], self._modules)}')
        rates = self._rates(what, state_dict, strict)
        both = [(module, state_dict[name]) for name, module in self._modules.items() if name in state_dict]
        for module, entry in both:
            saving.compared(module, entry, strict)
        for module, entry in both:
            module.load_state_dict(entry, strict)
        for schedule, entry in rates:
            schedule.load_state_dict(entry)
        self._loaded = {self._own_name(name): x for name, x in saved.items()}
        self._loads_all = strict

    def _rates(self, what: str, state_dict: Mapping[str, Any], strict: bool) -> list[tuple[Any, Mapping[str, Any]]]:
        """Return (schedule, state to load) for each learning rate schedule; raise CheckpointError if `strict` and the numbers of schedules differ.

        Without saved schedules, all schedules resume at the saved number of steps.
        """
        schedules, saved = self._schedules, state_dict.get(RATES)
        if saved is None:
            steps = state_dict.get(STEP)
            count = None if steps is None else int(steps.numpy()[0])
            return [] if count is None else [(schedule, {"last_epoch": count, "last_step": count}) for schedule in schedules]
        if len(saved) != len(schedules) and strict:
            raise CheckpointError(
                f"{what}: the state has {len(saved)} learning-rate schedules, but the graph has {len(schedules)}; pass the same lr_sch to "
                f"add_optimizer, or load with strict=False to restart the schedules"
            )
        return list(zip(schedules, saved, strict=True)) if len(saved) == len(schedules) else []

    def _own_name(self, name: str) -> str:
        """Return the name of a saved variable in this graph: the name of the saving graph is replaced by the name of this graph."""
        named = _OF_A_GRAPH.fullmatch(name)
        return f"{STEP}-{self.name}" if name == STEP else f"{named[1]}{self.name}{named[2] or ''}" if named else name

    # ---------------------------------------------------------------- inspection

    def debug(
        self,
        v_level: int = -1,
        *,
        ranks: Any = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
    ) -> None:
        """Set the amount of text about the program that is printed when the graph is compiled.

        Level 0 prints its repr, a higher level every instruction with layouts and source lines, and -1 nothing. `ranks` is a rank or a list of ranks
        that print, -1 for all ranks, None for rank 0. The other options have no effect.
        """
        rank = state().rank.index
        chosen = [0] if ranks is None else [rank] if ranks == -1 else [ranks] if isinstance(ranks, int) else list(ranks)
        self._verbosity = v_level if v_level >= 0 and rank in chosen else None

    def __repr__(self) -> str:
        lines = [f"(GRAPH:{self.name}:{type(self).__name__}): ("]
        lines.append(f"  {self.config!r}")
        if self._bound is not None:
            lines += [f"  (INPUT:{meta.name}:{meta})" for meta in self._bound.built.inputs]
        for name, module in self._modules.items():
            lines.append(f"  (MODULE:{name}:{type(module).__name__}): {module!r}".replace("\n", "\n  "))
            lines += [f"    (PARAMETER:{name}.{n}:{x.tensor_type} {x.layout or 'local'})" for n, x in module.named_parameters()]
            lines += [f"    ({self._settings[id(m)]!r} for {n or name})" for n, m in module.named_modules() if id(m) in self._settings]
        lines += [f"  (OPTIMIZER:{type(one.optimizer).__name__} at {one.where})" for one in self._added]
        if self._bound is not None:
            lines += [f"  (OP: {line})" for line in self._bound.steps()]
            lines += [f"  (OUTPUT:{meta.name}:{meta})" for meta in self._bound.outputs]
        return "\n".join([*lines, ")"])

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of the modules of the graph, and of its attributes."""
        for attribute, module in self._modules.items():
            for named in (module.named_parameters(), module.named_buffers()):
                for name, x in named:
                    yield f"{attribute}.{name}", x
        for name, x in self.__dict__.items():
            if isinstance(x, Tensor):
                yield name, x


class JobAttributeError(JobError, AttributeError):
    """The error for a missing attribute of a graph, or for a use of a graph before `super().__init__()`."""


def _stand_in(tracer: Tracer, building: Building, meta: Meta, cut: Microbatches | None, size: int) -> Tensor:
    """Return the traced tensor for the input `meta`; if `cut` divides this input, the tensor has the rows of one microbatch."""
    type = meta.type
    if cut is not None and meta.name in cut.arguments:
        rows = size if len(cut.sizes) > 1 else type.shape[0] // cut.count
        type = type.with_shape((rows, *type.shape[1:]))
    return Tensor(type, meta.layout, None, traced=tracer.input(meta.name, type, layout=meta.layout or building.alone))


def together(here: EagerState, metas: tuple[Meta, ...]) -> Placement:
    """Return the default placement for a trace: the placement of the first global input, or else this rank alone."""
    return next((meta.layout.placement for meta in metas if meta.layout), Placement("cpu", (here.rank.index,)))


def union(here: EagerState, tracer: Tracer) -> Placement:
    """Return the placement of all ranks that the program uses."""
    used = list(dict.fromkeys(node.placement for node in tracer.nodes))
    if len(used) == 1:
        return used[0]
    return Placement("cpu", tuple(sorted({rank for placement in used for rank in placement.ranks})) or (here.rank.index,))
