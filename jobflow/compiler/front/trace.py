"""Job function -> graph: every op that is called becomes a node.

The tracer records a job's body while it runs, and is the current interpreter while its gradients are computed.  The tracer is one of the few
mutable objects in jobflow, and has a single owner.  `traced()` returns an immutable copy of the record, and a pass that extends a
program has a separate tracer (`Tracer.onward`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, Literal, cast

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOT_A_TENSOR, NOWHERE, DuplicateNameError, JobError, JobflowError, SourceLine, user_line
from jobflow.core.layout import B, Layout, Placement, S
from jobflow.core.types import Tensor, TensorType, int64
from jobflow.graph.ir import Graph, Node, Phase, Provenance, Value, Variable
from jobflow.graph.rewrite import Take, walk
from jobflow.graph.traced import Traced
from jobflow.graph.training import ArgumentBounds, Optimizer, Training, Watch
from jobflow.ops.layout_ops import ToGlobal, ToLocal, ViewConversion
from jobflow.ops.op import Op, ViewOp, types_tuple
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.source import Constant, External, Input, ReadVariable

#: The key of the hidden argument that counts the runs of a job.
RUN_COUNTER = "#run"


def recorded(tensor: Tensor) -> Value:
    """Return the tensor, which must result from a traced op, with the static type Value."""
    return cast(Value, tensor)


@dataclass
class Tracer:
    """The recorder of one job; `known` are the session's variables, whose storage this job shares."""

    name: str
    placement: Placement
    #: the line of the job's declaration
    where: SourceLine = NOWHERE
    trainable: bool = False
    #: the kind of program, for messages
    kind: Literal["job", "graph"] = "job"
    known: Mapping[str, Variable] = field(default_factory=dict)
    #: mirrored view only: the length of the first axis of each rank's arguments, if the ranks' shapes differ
    rows: tuple[int, ...] = ()
    #: True if assertions about arguments are checked before a run instead of in it
    looks: bool = False

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    reads: dict[str, Value] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    losses: list[Value] = field(default_factory=list)
    #: number of regions to rematerialize for the backward pass
    regions: int = 0
    training: Training | None = None
    watches: list[Watch] = field(default_factory=list)
    #: bounds on the elements of arguments
    bounds: list[ArgumentBounds] = field(default_factory=list)

    _own_nodes: set[Node] = field(default_factory=set)
    _names: dict[str, SourceLine] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _phase: Phase = "forward"
    _where: SourceLine | None = None
    _prefix: str = ""
    _microbatch: int | None = None

    # ---------------------------------------------------------------- recording

    def apply(self, op: Op, inputs: Sequence[Tensor], name: str | None) -> tuple[Value, ...]:
        """Record one op; return its outputs."""
        where = self._where or user_line()
        here = scope.current()
        placement = here.placement or self.placement
        if self._phase == "update" and inputs:  # an update runs on the placement of its variable
            placement = self._own(inputs[0], op.word(), where).node.placement
        label = self._label(op, name, where)
        values = tuple(self._own(value, label, where) for value in inputs)
        local = here.view == "mirrored"
        placement = self._in_mirrored_view(placement) if local else placement
        if self.looks and type(op) is RuntimeAssertion and (argument := _argument(values[0])) is not None:
            self.bounds.append(ArgumentBounds(argument, op, where))
            return values
        if isinstance(op, ViewConversion):
            op = self._parts(op, placement, where)
        elif not isinstance(op, External):
            values = tuple(self._cross(value, local, where) for value in values)
        return self._record(op, values, label, placement, where, local=self._is_local(op, local))

    def _record(self, op: Op, values: tuple[Value, ...], label: str, placement: Placement, where: SourceLine, *, local: bool) -> tuple[Value, ...]:
        try:
            types = types_tuple(op.infer(*(value.tensor_type for value in values)))
        except JobflowError as error:
            raise type(error)(_located(str(error), op, label, where)) from None
        makes = [(type, label if len(types) == 1 else f"{label}.{i}", local) for i, type in enumerate(types)]
        return self._add(Node(op, values, makes, label, placement, self._provenance(where)))

    def add(self, op: Op, inputs: tuple[Value, ...], name: str, placement: Placement, provenance: Provenance) -> tuple[Value, ...]:
        """Record one op under exactly this name, with an explicit provenance; return its outputs."""
        types = types_tuple(op.infer(*(value.tensor_type for value in inputs)))
        return self._add(Node(op, inputs, [(type, name, False) for type in types], name, placement, provenance))

    def _add(self, node: Node) -> tuple[Value, ...]:
        self.nodes.append(node)
        self._own_nodes.add(node)
        return node.outputs

    def _provenance(self, where: SourceLine) -> Provenance:
        here = scope.current()
        return Provenance(where, self._phase, here.stage, self._microbatch, here.region)

    @staticmethod
    def _is_local(op: Op, mirrored: bool) -> bool:
        if isinstance(op, ToLocal):
            return True
        return mirrored and not isinstance(op, ToGlobal | ReadVariable)

    def _own(self, value: Any, label: str, where: SourceLine) -> Value:
        """Return the value; raise JobError if it does not belong to this job."""
        if not isinstance(value, Value):
            kind = "array" if isinstance(value, np.ndarray) else type(value).__name__
            typed = hasattr(value, "dtype") and hasattr(value, "shape")
            description = f"{str(value.dtype).removeprefix('jobflow.')}{list(value.shape)} {kind}" if typed else repr(value)
            raise JobError(f"{label} at {where}: {description} is not a tensor of this job; {NOT_A_TENSOR}")
        if value.node not in self._own_nodes:
            raise JobError(f"{label} at {where}: {value!r} belongs to another job; compute it here, or share it through a variable or an argument")
        return value

    def _cross(self, value: Value, local: bool, where: SourceLine) -> Value:
        """Return the value, converted to the mirrored view if `local`, otherwise to the consistent view.

        In the mirrored view an argument with at least one row per rank becomes the rank's rows; every other value stays whole.
        """
        if value.local == local:
            return value
        source = value.node.op
        op: ViewConversion = ToGlobal((S(0),))
        if local:
            rows = isinstance(source, Input) and source.split and bool(value.shape) and value.shape[0] >= value.node.placement.size
            op = ToLocal(source.sbp if isinstance(source, ToGlobal) else (S(0) if rows else B,))
        return self._crossed(value, op, where)

    def _crossed(self, value: Value, op: ViewConversion, where: SourceLine) -> Value:
        placement = value.node.placement
        placement = self._in_mirrored_view(placement) if isinstance(op, ToLocal) else placement
        op = self._parts(op, placement, where)
        return self._record(op, (value,), self.unique_name(op.word()), placement, where, local=isinstance(op, ToLocal))[0]

    def _in_mirrored_view(self, placement: Placement) -> Placement:
        """Return the job's placement if it has the ranks and mesh of `placement` (device scopes do not move local tensors), else `placement`."""
        mine = self.placement
        return mine if (placement.ranks, placement.mesh) == (mine.ranks, mine.mesh) else placement

    def _parts(self, op: ViewConversion, placement: Placement, where: SourceLine) -> ViewConversion:
        """Return the conversion with the number of ranks of `placement`; a conversion without split axes is returned unchanged.

        Raises: JobError if the ranks' tensors are not pieces of one logical tensor.
        """
        if op.axes and self.rows and isinstance(op, ToGlobal) and op.ranks == 1:
            raise JobError(
                f"{self.kind} {self.name} at {where}: the ranks' arguments differ in length ({list(self.rows)}), "
                f"so their tensors are not balanced pieces of one logical tensor; stay in the mirrored view, or pass arrays of one length"
            )
        return replace(op, ranks=placement.size) if op.axes else op

    def _label(self, op: Op, name: str | None, where: SourceLine) -> str:
        if name is None:
            return self.unique_name(op.word(), where)
        full = scope.current().full_name(name)
        if full in self._names:
            first = self._names[full]
            raise DuplicateNameError(f'{self.kind} {self.name}: two ops are named "{full}", at {first} and at {where}; give one of them another name')
        self._names[full] = where
        return full

    def unique_name(self, prefix: str, where: SourceLine | None = None) -> str:
        """Return an unused node name, `<prefix>_<n>` after the namespaces; `where` is the op's line, by default the user's."""
        while True:
            full = self._prefix + scope.current().full_name(prefix)
            n = self._counts.get(full, 0)
            self._counts[full] = n + 1
            label = f"{full}_{n}"
            if label not in self._names:
                self._names[label] = where or self._where or user_line()
                return label

    @contextmanager
    def gradients_of(self, node: Node) -> Iterator[None]:
        """Record the ops in a `with` block as the backward pass of `node`, with the placement, line and name of `node`."""
        before = (self._phase, self._where, self._prefix)
        self._phase, self._where, self._prefix = "backward", node.where, f"{node.name}."
        view = "mirrored" if any(value.local for value in node.outputs) else "consistent"
        try:
            with scope.using(interpreter=self, placement=node.placement, view=view, stage=node.provenance.stage, region=None, namespace=()):
                yield
        finally:
            self._phase, self._where, self._prefix = before

    @contextmanager
    def updating(self, where: SourceLine) -> Iterator[None]:
        """Record the ops in a `with` block as part of the update phase, which writes variables."""
        before = (self._phase, self._where)
        self._phase, self._where = "update", where
        try:
            with scope.using(interpreter=self, placement=self.placement, view="consistent", namespace=()):
                yield
        finally:
            self._phase, self._where = before

    @contextmanager
    def phased(self, phase: Phase, where: SourceLine | None) -> Iterator[None]:
        """Set the phase and the user's line of the nodes recorded in a `with` block; None for the line that calls the operation."""
        before = (self._phase, self._where)
        self._phase, self._where = phase, where
        try:
            yield
        finally:
            self._phase, self._where = before

    # ---------------------------------------------------------------- rewriting

    @classmethod
    def onward(cls, program: Traced) -> Tracer:
        """Return a tracer that continues the record of a program; the program stays unchanged."""
        return cls(
            program.name,
            program.placement,
            program.where,
            kind=program.kind,
            known=program.known,
            rows=program.rows,
            nodes=list(program.nodes),
            inputs=dict(program.inputs),
            variables=dict(program.variables),
            reads=dict(program.reads),
            updates=dict(program.updates),
            losses=list(program.losses),
            training=program.training,
            watches=list(program.watches),
            _own_nodes=set(program.nodes),
            _names=dict(program.names),
            _counts=dict(program.counts),
        )

    def rewritten(self, program: Traced, outputs: Sequence[Value], rewrite: Take) -> tuple[Traced, list[Value]]:
        """Record a program again, with `rewrite` choosing the replacement of each node; return the program and its outputs.

        The tracer continues from that program.  Ops that `rewrite` calls are recorded with the node's line, placement, view and stage.
        """

        def take(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
            with self.standing_for(node):
                return rewrite(node, inputs)

        self.nodes = []
        now: dict[Value, Value] = {}
        walk(program.nodes, take, now)
        training = program.training
        result = replace(
            program,
            nodes=tuple(self.nodes),
            inputs={name: now[value] for name, value in program.inputs.items()},
            reads={name: now[value] for name, value in program.reads.items()},
            updates={name: now[value] for name, value in program.updates.items()},
            training=None if training is None else replace(training, losses=tuple(now[value] for value in training.losses)),
            losses=tuple(now[value] for value in program.losses),
            watches=tuple(replace(watch, value=now[watch.value]) for watch in program.watches),
            names=dict(self._names),
            counts=dict(self._counts),
        )
        return result, [now[value] for value in outputs]

    def again(
        self,
        node: Node,
        inputs: Sequence[Value],
        *,
        op: Op | None = None,
        placement: Placement | None = None,
        provenance: Provenance | None = None,
        suffix: str = "",
    ) -> tuple[Value, ...]:
        """Record a node again on other inputs, with `suffix` after its names; return the outputs.

        `op`, `placement` and `provenance` replace the attributes of the node.  Outputs that the node lacks are numbered.
        """
        types = types_tuple((op or node.op).infer(*(value.tensor_type for value in inputs)))
        names = [value.name for value in node.outputs] + [f"{node.name}.{i}" for i in range(len(node.outputs), len(types))]
        makes = [(type, name + suffix, node.outputs[0].local) for name, type in zip(names, types, strict=True)]
        return self._add(Node(op or node.op, tuple(inputs), makes, node.name + suffix, placement or node.placement, provenance or node.provenance))

    @contextmanager
    def standing_for(self, node: Node, microbatch: int | None = None) -> Iterator[None]:
        """Record the ops in a `with` block with the line, phase, placement, view, stage and region of `node`.

        `microbatch` replaces the microbatch of the node.
        """
        before = (self._phase, self._where, self._microbatch)
        self._phase, self._where = node.phase, node.where
        self._microbatch = node.provenance.microbatch if microbatch is None else microbatch
        view = "mirrored" if any(value.local for value in node.outputs) else "consistent"
        changes = {"placement": node.placement, "view": view, "stage": node.provenance.stage, "region": node.provenance.region, "namespace": ()}
        try:
            with scope.using(interpreter=self, **changes):
                yield
        finally:
            self._phase, self._where, self._microbatch = before

    # ---------------------------------------------------------------- sources

    def input(self, key: str, type: TensorType, *, local: bool = False, split: bool = True, layout: Layout | None = None) -> Value:
        """Declare the argument `key` of the job; return its value, which is in the mirrored view if `local` is True.

        Without `split`, every rank has the whole argument.  With `layout`, the argument has this layout instead.
        """
        op = Input(type.shape, type.dtype, key, split, sbp=None if layout is None else layout.sbp)
        (value,) = self._record(op, (), key, self.placement if layout is None else layout.placement, self.where, local=local)
        self.inputs[key] = value
        return value

    def in_current_view(self, value: Value) -> Value:
        """Return the value, converted to the current view (consistent or mirrored)."""
        return self._cross(value, scope.current().view == "mirrored", self._where or self.where)

    def new_region(self) -> int:
        """Return an unused number for a region of the program."""
        self.regions += 1
        return self.regions

    def run_counter(self) -> Value:
        """Return the number of earlier runs of this job, int64[1]; per-run randomness depends on it."""
        if RUN_COUNTER not in self.inputs:
            return self.input(RUN_COUNTER, TensorType((1,), int64), split=False)
        return self.inputs[RUN_COUNTER]

    def variable(self, declared: Variable) -> Value:
        """Return the current value of a variable; declare it at the first use."""
        known = self.known.get(declared.name) or self.variables.get(declared.name)
        where = self._where or user_line()
        if known is not None and known.type != declared.type:
            error = JobError(
                f'{self.kind} {self.name} at {where}: variable "{declared.name}" is declared as {known.type} elsewhere and as {declared.type} here; '
                f"give it another name, or the same type"
            )
            error.variable = declared.name if declared.name in self.known else None
            raise error
        if declared.name not in self.reads:
            variable = known or declared
            self.variables[declared.name] = declared if known is None else _shared(known, declared)
            op = ReadVariable(variable.type.shape, variable.type.dtype, variable.name)
            name = declared.name if declared.name not in self._names else self.unique_name(declared.name)
            (self.reads[declared.name],) = self._record(op, (), name, variable.placement, where, local=False)
        return self.reads[declared.name]

    def slot(self, name: str, type: TensorType, initial: float, like: Variable | Placement | None) -> Value:
        """Declare a variable of an optimizer, stored like the variable `like`, or whole on every rank of a placement (default: the job's)."""
        if isinstance(like, Variable):
            placement, sbp, group = like.placement, like.sbp, name.removeprefix(f"{like.name}-")
        else:
            placement, group = like or self.placement, "scalar"
            sbp = (B,) * len(placement.mesh)
        return self.variable(Variable(name, type, Constant(type.shape, type.dtype, initial), placement, sbp, trainable=False, group=group))

    def assign(self, name: str, value: Value) -> None:
        """Assign the value to the variable at the end of the run; in the mirrored view each rank's copy takes the rank's value."""
        self.updates[name] = self._crossed(value, ToGlobal((B,)), self._where or user_line()) if value.local else value

    # ---------------------------------------------------------------- training

    def add_loss(self, loss: Value) -> None:
        """Mark a loss for the optimizer of the job's configuration; raise JobError in a predict job."""
        if not self.trainable:
            raise JobError(
                f'job {self.name}: add_loss is called at {user_line()}, but the type of the job is "predict"; '
                f'decorate the job with @global_function(type="train")'
            )
        self.losses.append(loss)

    def minimize(self, optimizer: Optimizer, losses: Sequence[Value], where: SourceLine | None = None) -> None:
        """Make this a train job in which `optimizer` minimizes the sum of the losses' means; raise JobError at a second call."""
        where = where or user_line()
        if self.training is not None:
            raise JobError(f"job {self.name}: minimize is called at {where} and at {self.training.where}; call it once, with all losses in a list")
        self.trainable = True
        self.training = Training(tuple(losses), (optimizer,), where)

    def watch(self, value: Value, take: Callable[[Any], None], gradient: bool = False) -> None:
        """Pass the value, or with `gradient` its gradient, to `take` after every run; a missing gradient is not reported."""
        where = user_line()
        self.watches.append(Watch(self._own(value, "watch", where), take, gradient, where))

    def traced(self, outputs: Sequence[Value] = ()) -> Traced:
        """Return the record as an immutable program; raise JobError if an output belongs to another job."""
        for value in outputs:
            self._own(value, f"{self.kind} {self.name}: its result", self.where)
        return Traced(
            self.name,
            self.placement,
            tuple(self.nodes),
            dict(self.inputs),
            dict(self.variables),
            dict(self.known),
            dict(self.reads),
            dict(self.updates),
            self.training,
            tuple(self.losses),
            tuple(self.watches),
            tuple(dict.fromkeys(self.bounds)),
            self.rows,
            dict(self._names),
            dict(self._counts),
            self.where,
            self.kind,
        )

    def graph(self, outputs: Sequence[Value] = ()) -> Graph:
        """Return the recorded graph with these outputs; the training configuration is not part of it."""
        return self.traced(outputs).graph(outputs)


def _argument(value: Value) -> str | None:
    """Return the name of the argument that a value is a view of, if the view has all elements; otherwise None."""
    while isinstance(value.node.op, ViewOp):
        whole = value.node.inputs[0]
        if value.tensor_type.size != whole.tensor_type.size and not isinstance(value.node.op, ViewConversion):
            return None
        value = whole
    return value.node.op.argument if isinstance(value.node.op, Input) else None


def _shared(known: Variable, declared: Variable) -> Variable:
    """Return another job's variable for this job: the same storage, with this job's training options."""
    return Variable(known.name, known.type, known.initializer, known.placement, known.sbp, declared.trainable, declared.l1, declared.l2, known.group)


def _located(message: str, op: Op, label: str, where: SourceLine) -> str:
    """Insert the user's line and the layer's name after the operation name in an error message of `infer`.

    Add the operation name if it is missing.
    """
    word, colon, rest = message.partition(":")
    at = f'at {where} (layer "{label}")'
    return f"{word} {at}:{rest}" if colon and " " not in word else f"{op.word()} {at}: {message}"
