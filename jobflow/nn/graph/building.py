"""Tracing of `nn.Graph.build`, with tensors without data that represent values of the program.

A traced tensor has the layout of an eager result; the compiler selects the final layout after tracing. A tensor with data, such as a
parameter or a buffer, becomes a variable of the program in the memory of the tensor. After a run, the tensor has the values that `build`
wrote to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, SourceLine, user_line
from jobflow.core.layout import B, Broadcast, Layout, Partial, Placement, S, Sbp, Split
from jobflow.core.types import Array, TensorType, int64
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Node, Value, Variable
from jobflow.graph.rewrite import needed_nodes
from jobflow.nn.graph.settings import GraphModule
from jobflow.ops.layout_ops import Identity, ToLayout
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.source import Constant, Input, Literal, ReadVariable
from jobflow.strategies.data_parallel import zero as Zero
from jobflow.tensors.convert import agree, empty, shortened
from jobflow.tensors.gpus import as_numpy, placed
from jobflow.tensors.program_recorder import ProgramRecorder
from jobflow.tensors.redistribution import agree_on_equal
from jobflow.tensors.run import prepared
from jobflow.tensors.state import EagerState, Generator, mixed


@dataclass(frozen=True)
class Draw:
    """A counter of random operations, which the host passes to every run as an input."""

    key: str
    array: Array
    generator: Generator


#: most elements of a tensor from outside that Python numbers of a program may depend on
LARGEST_GUARDED = 2**16


@dataclass
class Building(ProgramRecorder[Tensor]):
    """The recorder of one trace of `nn.Graph.build`."""

    #: name of the running function in messages, and a short form
    running: ClassVar[str] = "nn.Graph.build"
    short: ClassVar[str] = "build"
    #: the error for a local tensor that cannot become global
    untraceable: ClassVar[type[JobError]] = JobError

    here: EagerState
    tracer: Tracer
    #: names of the tensors of the graph's modules, by id
    names: Mapping[int, str]
    #: settings of modules by id
    settings: Mapping[int, GraphModule]
    zero: Zero | None = None
    #: True if the graph has an optimizer
    trains: bool = False
    #: tensors that are variables of the graph's programs for other shapes, by name
    known_tensors: Mapping[str, Tensor] = field(default_factory=dict)
    #: True if a strategy distributes the program; tensors that a graph has redistributed are then traced in their earlier layout
    spreads: bool = False
    #: tensors that became variables, by name
    tensors: dict[str, Tensor] = field(default_factory=dict)
    #: data of tensors that build creates, with the user's lines
    constants: list[tuple[SourceLine, Array]] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    losses: list[Value] = field(default_factory=list)
    #: source line of the call of backward
    where: SourceLine | None = None
    #: messages of the errors of `refuse_tracing`, which user code may catch
    forbidden: list[str] = field(default_factory=list)
    #: tensors from outside that Python numbers of the program depend on, with a copy of their elements, by id
    guarded: dict[int, tuple[Tensor, Array]] = field(default_factory=dict)
    #: the user's lines that read these tensors, by id
    guarded_lines: dict[int, SourceLine] = field(default_factory=dict)
    #: parameters that build overwrites, by name, with the user's lines
    assigned_parameters: dict[str, SourceLine] = field(default_factory=dict)
    #: id of a tensor -> its current traced tensor
    _standing: dict[int, Tensor] = field(default_factory=dict)
    #: id of a tensor with data -> name of its variable
    _variables: dict[int, str] = field(default_factory=dict)
    _modules: list[int] = field(default_factory=list)
    #: global tensors in the memory of local tensors, by id of the local tensor and layout
    _counterparts: dict[tuple[int, Layout], Tensor] = field(default_factory=dict)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Record all operations inside the `with` block, with gradients enabled; afterwards, random generators have their previous counters."""
        before, self.here.building = self.here.building, self
        grad_enabled, self.here.grad_enabled = self.here.grad_enabled, True
        draws = [(generator, generator.draws) for generator in (self.here.global_generator, self.here.local_generator)]
        try:
            with scope.using(interpreter=self.tracer, placement=self.tracer.placement, view="consistent", namespace=()):
                yield
        finally:
            self.here.building, self.here.grad_enabled = before, grad_enabled
            for generator, count in draws:  # each run advances the counters
                generator.draws = count

    @property
    def alone(self) -> Layout:
        """The layout of local tensors, which are on this rank only."""
        return Layout(Placement("cpu", (self.here.rank.index,)), (B,))

    # ---------------------------------------------------------------- ops

    def _ran(self, op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        known = [self.known(x) for x in inputs]
        preparation = prepared(self.here, op, known)
        if not preparation.decomposed:
            return super()._ran(op, known)
        with scope.using(interpreter=Decomposing(self, preparation.placement), autocast=None):
            outputs: Any = op.decompose(*known)
        return tuple(outputs)

    def _applied(self, op: Op, known: Sequence[Tensor]) -> tuple[Sequence[Value], Sequence[Layout | None]]:
        preparation = prepared(self.here, op, known)
        return self._record(op, [x.traced for x in known], preparation.placement or self.alone.placement), preparation.layouts

    def source(self, op: Op, layout: Layout | None, generator: Generator | None) -> Tensor:
        """Return the output of an op without inputs, or of a random op; every run evaluates the op again."""
        inputs = () if generator is None else (self.draw(layout, self._replayed(generator)),)
        (type,) = types_tuple(op.infer(*(x.tensor_type for x in inputs)))
        (value,) = self._record(op, [x.traced for x in inputs], (layout or self.alone).placement)
        result = Tensor(type, layout, None, traced=value)
        return result if layout is None or layout.is_whole else self.change(result, layout, None)

    def constant_data(self, array: Array, layout: Layout | None) -> Tensor:
        first = len(self.tracer.nodes)
        x: Tensor = super().constant_data(array, layout)
        self.constants.append((self.tracer.nodes[first].where, array))
        return x

    def draw_for(self, x: Tensor) -> tuple[str, int, Tensor]:
        """Return key, seed and counter of the next random operation, on the placement of x."""
        return "draw", self._generator(x.layout).seed, self.draw(x.layout, self._generator(x.layout))

    def draw(self, layout: Layout | None, generator: Generator) -> Tensor:
        """Return the counter of the next random operation of `generator` as a traced tensor int64[1], an input of every run."""
        lies = self.alone if layout is None else Layout(layout.placement, (B,) * len(layout.sbp))
        key, type = f"#draw{len(self.draws)}", TensorType((1,), int64)
        value = self.tracer.input(key, type, layout=lies)
        self.draws.append(Draw(key, np.zeros(1, np.int64), generator))
        return Tensor(type, None if layout is None else lies, None, traced=value)

    def _replayed(self, generator: Generator) -> Generator:
        """Return the generator whose counter every run advances when the program samples from `generator`."""
        return generator

    def _generator(self, layout: Layout | None) -> Generator:
        return self.here.local_generator if layout is None else self.here.global_generator

    def change(self, x: Tensor, target: Layout, back: Sequence[Sbp] | None) -> Tensor:
        """Record a redistribution of the global tensor x; its gradient is first redistributed to the sbp `back`, if set.

        Raises: JobError if x is local.
        """
        x = self.known(x)
        if x.layout is None:
            raise JobError(
                f"to_global at {user_line()}: a local tensor {x.tensor_type} cannot become global in nn.Graph.build; convert it "
                "before the call of the graph"
            )
        op = ToLayout(target.sbp, None if back is None else tuple(back))
        return self._outputs(self._record(op, [x.traced], target.placement), (target,), [x])[0]

    def replicate(self, x: Tensor, target: Layout, what: str) -> Tensor:
        """Record the computation of the local tensor x again, on the placement of `target`; its tensors with data become global.

        Raises: JobError if x depends on an argument, on random numbers of this rank, or on a tensor that requires gradients.
        """
        known = self.known(x)
        advice = "create it with device=x.device, or convert it before the call"
        problem = "requires gradients" if known._needs_gradient else ""
        now: dict[Value, Value] = {}
        needed = needed_nodes([known.traced])
        nodes = [node for node in self.tracer.nodes if node in needed]
        digest = 0
        for node in nodes:
            if isinstance(node.op, Input):
                problem = (
                    problem or f"depends on {'random numbers of this rank' if node.op.key.startswith('#draw') else f'the argument {node.op.key}'}"
                )
            elif isinstance(node.op, ReadVariable) and node.op.key in self.tracer.updates:
                problem = problem or f"depends on {node.op.key}, which the program overwrites"
            if problem:
                raise self.untraceable(
                    f"{what} at {user_line()}: the local tensor {x.tensor_type} {problem}, so its elements may differ between ranks; {advice}"
                )
            outputs: tuple[Any, ...]
            if isinstance(node.op, ReadVariable):
                outputs = (self.known(self._equal(self.tensors[node.op.key], target, what)).traced,)
            else:
                digest = mixed(digest, crc32(repr(node.op).encode()))
                outputs = self.tracer.again(node, [now[value] for value in node.inputs], placement=target.placement)
            now.update(zip(node.outputs, outputs, strict=True))
        if self.here.rank.size > 1:
            line = user_line()
            with scope.lock():
                agree(
                    self.here,
                    self.here.rank.host_comm,
                    digest,
                    lambda: f"{what} of {', '.join(_listed(node.op) for node in nodes)} to {target} at {line}",
                )
        return Tensor(x.tensor_type, target, None, traced=now[known.traced])

    def _equal(self, x: Tensor, target: Layout, what: str) -> Tensor:
        """Return the global tensor in the memory of x, a local tensor with data that is equal on all ranks."""
        counterpart = self._counterparts.get((id(x), target))
        if counterpart is None:
            provenance = agree_on_equal(self.here, x, target, what)
            inside = self.here.rank.index in target.placement.ranks
            array = placed(self.here, x.array, target) if inside else empty(x.tensor_type)
            counterpart = self._counterparts[id(x), target] = Tensor(x.tensor_type, target, array)
            counterpart._provenance = provenance
        return counterpart

    def to_local(self, x: Tensor) -> Tensor:
        """Raise JobError, because the pieces of a traced tensor have no values."""
        raise JobError(
            f"to_local at {user_line()}: pieces of a tensor have no values in {self.running}; return the tensor "
            f"{x.tensor_type} from {self.short}, and call to_local() on it"
        )

    # ---------------------------------------------------------------- tensors with data

    def _read(self, x: Tensor) -> Tensor:
        """Return the traced value of a tensor with data, which becomes a variable of the program."""
        name = self.names.get(id(x)) or self._unused("parameter" if x._needs_gradient and x.is_leaf else "tensor")
        lies = self.lying(x) or self.alone
        trained = self.trains and x._needs_gradient and x.is_leaf
        if trained and x.hooks:
            raise JobError(
                f"nn.Graph.build at {user_line()}: {name} {x.tensor_type} has hooks for its gradient, which a graph does not call; remove() them, or "
                f"train without a graph"
            )
        first = Constant(x.tensor_type.shape, x.tensor_type.dtype, 0)
        variable = Variable(name, x.tensor_type, first, lies.placement, lies.sbp, trained, group="parameter" if trained else "buffer")
        if self.zero is None:
            value = self.tracer.variable(variable)
        else:
            stored = replace(variable, sbp=_split(variable, self.zero))
            value = self.tracer.variable(stored)
            if stored.sbp != lies.sbp:
                value = self._gathered(value, lies, stored.sbp, self.zero)
        result = Tensor(x.tensor_type, self.lying(x), None, traced=value)
        result._needs_gradient = x._needs_gradient and x.is_leaf
        self.tensors[name] = x
        self._variables[id(x)] = name
        self._standing[id(x)] = result
        return result

    def guarded_value(self, node: Node) -> Array | None:
        """Return the elements of the tensor from outside that `node` reads, which every run compares.

        The result is None for parameters, and for large, split or overwritten tensors.
        """
        name = next((name for name, value in self.tracer.reads.items() if value.node is node), None)
        x = self.tensors.get(name or "")
        if x is None or x._needs_gradient or x.tensor_type.size > LARGEST_GUARDED or (x.layout is not None and not x.layout.is_whole):
            return None
        return None if self._is_changed(x) else self._guard(x)

    def _is_changed(self, x: Tensor) -> bool:
        """Return True if the program has overwritten x, or a tensor in the memory of x."""
        return any(other.memory is x.memory and self._standing[id(other)].traced is not self.tracer.reads[key] for key, other in self.tensors.items())

    def _guard(self, x: Tensor) -> Array:
        """Return the elements of this rank's piece of x, which every run compares with this copy."""
        elements = as_numpy(x.array).copy()
        self.guarded[id(x)] = x, elements
        self.guarded_lines.setdefault(id(x), user_line())
        return elements

    def read_elements(self, x: Tensor, what: str) -> None:
        """Compare the elements of x in every run, because user code reads them; raise JobError if the program has overwritten x."""
        if self.differentiates:
            return
        if self._is_changed(x):
            raise JobError(
                f"{what} at {user_line()}: the program overwrites the tensor {x.tensor_type}, so its elements are not known while {self.running} "
                f"runs; return the tensor from {self.short}"
            )
        self._guard(x)

    def check_guarded(self, x: Tensor) -> None:
        """Raise an error for a write to x if a Python number of the program depends on the elements of x."""
        if any(other.memory is x.memory for other, _ in self.guarded.values()):
            raise self.untraceable(
                f"in-place write at {user_line()}: a Python number of {self.short} depends on the tensor {x.tensor_type}, which cannot be "
                "overwritten there; overwrite it outside"
            )

    def lying(self, x: Tensor) -> Layout | None:
        """Return the layout of x, or None if x is local.

        If a strategy distributes the program, return the layout of x before an earlier graph redistributed x.
        """
        before = x._storage.before if self.spreads and x._storage is not None else None
        return before or x.layout

    def _unused(self, word: str) -> str:
        return f"{word}{sum(name.startswith(word) for name in {*self.tensors, *self.known_tensors})}"

    def _gathered(self, value: Value, lies: Layout, stored: tuple[Sbp, ...], zero: Zero) -> Value:
        """Return a sharded variable, read in the layout `lies` of its tensor; `stored` is its sharded layout.

        At ZeRO stage 3, the backward pass gathers the variable again instead of saving it.
        """
        region = None
        if zero.stage > 2:
            region = self.tracer.new_region()
        with scope.using(region=region):
            op = ToLayout(tuple(None if isinstance(s, Partial) else s for s in lies.sbp), stored if zero.stage > 1 else None)
            (gathered,) = self._record(op, [value], lies.placement)
        return gathered

    def _write(self, x: Tensor, standing: Tensor, value: Tensor) -> None:
        self.check_guarded(x)
        if any(number == id(x) for number, _ in self._counterparts):
            raise self.untraceable(f"in-place write at {user_line()}: the program also reads the local tensor {x.tensor_type} as a global tensor")
        if x.layout is not None and value.layout != x.layout:
            value = self.change(value, x.layout, None)
        standing.traced, standing.layout, standing._needs_gradient = value.traced, value.layout, value._needs_gradient
        name = self._variables[id(x)]
        if self.tracer.variables[name].group == "parameter":
            self.assigned_parameters.setdefault(name, user_line())
        self.tracer.assign(name, value.traced)

    def overwrite_error(self, name: str) -> JobError:
        """Return the error for a parameter that build overwrites and an optimizer of the graph updates."""
        return JobError(
            f"in-place write at {self.assigned_parameters[name]}: an optimizer of the graph updates the parameter {name}, so build cannot "
            "overwrite it; overwrite it between two calls of the graph, or compile the training step with flow.compile"
        )

    # ---------------------------------------------------------------- training and modules

    def backward(self, loss: Tensor, gradient: Tensor | None = None) -> None:
        """Record `loss` as a value that the optimizers minimize; raise JobError without optimizers, or for an invalid loss."""
        what = f"backward at {user_line()}, in nn.Graph.build"
        if not self.trains:
            raise JobError(f"{what}: the graph has no optimizer; call self.add_optimizer(...) in __init__")
        if gradient is not None or loss.tensor_type.size != 1:
            suffix = "" if gradient is None else " with a gradient"
            raise JobError(f"{what}: the loss must have one element and no gradient argument; got {loss.tensor_type}{suffix}")
        if (not loss._needs_gradient or loss.traced is None) and self.assigned_parameters:
            raise self.overwrite_error(next(iter(self.assigned_parameters)))
        if not loss._needs_gradient or loss.traced is None:
            raise JobError(f"{what}: the loss {loss.tensor_type} depends on no parameter that requires gradients")
        self.losses.append(loss.traced)
        self.where = self.where or user_line()

    def called(self, module: Any, forward: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Run `forward` of a module with the settings of the graph for this module, and return its result."""
        module_settings = self.settings.get(id(module))
        if module_settings is None or id(module) in self._modules:
            return forward(*args, **options)
        changes: dict[str, Any] = {}
        if module_settings.stage_id is not None:
            changes["stage"] = module_settings.stage_id
        if module_settings.activation_checkpointing and scope.current().region is None:
            changes["region"] = self.tracer.new_region()
        self._modules.append(id(module))
        try:
            with scope.using(**changes):
                if module_settings.placement is not None:
                    args = tuple(self._moved(x, module_settings.placement.core) for x in args)
                    options = {name: self._moved(x, module_settings.placement.core) for name, x in options.items()}
                return forward(*args, **options)
        finally:
            self._modules.pop()

    def _moved(self, x: Any, placement: Placement) -> Any:
        """Return x with its global tensors on the placement of a pipeline stage.

        Their sbp is unchanged, except B for P.  If the number of mesh dimensions differs, the sbp is B on all of them.
        """
        if isinstance(x, list | tuple):
            return type(x)(self._moved(one, placement) for one in x)
        if not isinstance(x, Tensor) or x.layout is None or x.layout.placement == placement:
            return x
        known = self.known(x)
        alike = len(placement.mesh) == len(x.layout.sbp)
        lies = tuple(B if isinstance(s, Partial) else s for s in x.layout.sbp) if alike else (B,) * len(placement.mesh)
        values = self._record(Identity(), [known.traced], placement)
        return self._outputs(values, (Layout(placement, lies),), [known])[0]


def _listed(op: Op) -> str:
    return shortened(op.array) if isinstance(op, Literal) else str(op)


def _split(variable: Variable, zero: Zero) -> tuple[Sbp, ...]:
    """Return the sbp with which `zero` stores a variable.

    One replicated mesh dimension becomes a split if the variable is large enough.
    """
    split_axes = {sbp.axis for sbp in variable.sbp if isinstance(sbp, Split)}
    for dimension, (sbp, n) in enumerate(zip(variable.sbp, variable.placement.mesh, strict=True)):
        axis = zero.axis(variable, n, split_axes) if isinstance(sbp, Broadcast) else None
        if axis is not None:
            return (*variable.sbp[:dimension], S(axis), *variable.sbp[dimension + 1 :])
    return variable.sbp


@dataclass(frozen=True)
class Decomposing:
    """The interpreter that runs the decomposition of an op, for input layouts that the op itself does not accept."""

    building: Building
    placement: Placement | None
    takes_tensors: ClassVar[bool] = True

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[Tensor, ...]:
        if not inputs:
            where = self.placement
            return (self.building.source(op, None if where is None else Layout(where, (B,) * len(where.mesh)), None),)
        return self.building.run(op, inputs)
