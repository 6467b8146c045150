"""Job function -> graph: every op that is called becomes a node.

The tracer records a job's body while it runs, and is the interpreter in force while its gradients are made.  It is one of the few
mutable things in jobflow, and belongs to who records: `traced()` freezes what it has seen, and a pass that adds to that has a tracer of
its own (`Tracer.onward`).
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
from jobflow.graph.ir import Graph, Node, Origin, Phase, Value, Variable
from jobflow.graph.rewrite import Take, walk
from jobflow.graph.traced import Traced
from jobflow.graph.training import Optimizer, Training, ValidRange, Watch
from jobflow.ops.checked import Checked
from jobflow.ops.layout_ops import Crossing, ToGlobal, ToLocal
from jobflow.ops.op import Op, ViewOp, types_tuple
from jobflow.ops.source import Constant, External, Input, ReadVariable

#: The key of the hidden argument that counts the runs of a job.
RUN_COUNTER = "#run"


def recorded(made: Tensor) -> Value:
    """What ops give while a tracer is in force: values."""
    return cast(Value, made)


@dataclass
class Tracer:
    """Records one job.  `known` are the session's variables, whose storage this job shares."""

    name: str
    placement: Placement
    #: where the job is declared
    where: SourceLine = NOWHERE
    trainable: bool = False
    #: who is recorded, for messages
    kind: Literal["job", "graph"] = "job"
    known: Mapping[str, Variable] = field(default_factory=dict)
    #: mirrored view only: the length of the first axis of each rank's arguments, if the ranks' shapes differ
    rows: tuple[int, ...] = ()
    #: whether arguments are looked at before a run, so that what passes a check need not be checked in it
    looks: bool = False

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    reads: dict[str, Value] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    losses: list[Value] = field(default_factory=list)
    #: how many regions of the program are to be made again for the backward pass
    regions: int = 0
    training: Training | None = None
    watches: list[Watch] = field(default_factory=list)
    #: what arguments may hold
    limits: list[ValidRange] = field(default_factory=list)

    _made: set[Node] = field(default_factory=set)
    _names: dict[str, SourceLine] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _phase: Phase = "forward"
    _where: SourceLine | None = None
    _prefix: str = ""
    _microbatch: int | None = None

    # ---------------------------------------------------------------- recording

    def apply(self, op: Op, inputs: Sequence[Tensor], name: str | None) -> tuple[Value, ...]:
        """Record one op; its outputs."""
        where = self._where or user_line()
        here = scope.current()
        placement = here.placement or self.placement
        if self._phase == "update" and inputs:  # what updates a variable runs where the variable is
            placement = self._own(inputs[0], op.word(), where).node.placement
        label = self._label(op, name, where)
        values = tuple(self._own(value, label, where) for value in inputs)
        local = here.view == "mirrored"
        placement = self._in_mirrored_view(placement) if local else placement
        if self.looks and type(op) is Checked and (argument := _argument(values[0])) is not None:
            self.limits.append(ValidRange(argument, op, where))
            return values
        if isinstance(op, Crossing):
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
        return self._add(Node(op, values, makes, label, placement, self._origin(where)))

    def add(self, op: Op, inputs: tuple[Value, ...], name: str, placement: Placement, origin: Origin) -> tuple[Value, ...]:
        """Record an op under this very name, for a reason of its own."""
        types = types_tuple(op.infer(*(value.tensor_type for value in inputs)))
        return self._add(Node(op, inputs, [(type, name, False) for type in types], name, placement, origin))

    def _add(self, node: Node) -> tuple[Value, ...]:
        self.nodes.append(node)
        self._made.add(node)
        return node.outputs

    def _origin(self, where: SourceLine) -> Origin:
        here = scope.current()
        return Origin(where, self._phase, here.stage, self._microbatch, here.region)

    @staticmethod
    def _is_local(op: Op, mirrored: bool) -> bool:
        if isinstance(op, ToLocal):
            return True
        return mirrored and not isinstance(op, ToGlobal | ReadVariable)

    def _own(self, value: Any, label: str, where: SourceLine) -> Value:
        """The value, if this job has made it."""
        if not isinstance(value, Value):
            kind = "array" if isinstance(value, np.ndarray) else type(value).__name__
            typed = hasattr(value, "dtype") and hasattr(value, "shape")
            given = f"{str(value.dtype).removeprefix('jobflow.')}{list(value.shape)} {kind}" if typed else repr(value)
            raise JobError(f"{label} at {where}: {given} is not a tensor of this job; {NOT_A_TENSOR}")
        if value.node not in self._made:
            raise JobError(
                f"{label} at {where}: {value!r} was made while another job was traced; compute it here, or share it through a variable or an argument"
            )
        return value

    def _cross(self, value: Value, local: bool, where: SourceLine) -> Value:
        """The value as the view in force sees it: in the mirrored view, of an argument with a row or more for each rank its rows, of others all."""
        if value.local == local:
            return value
        source = value.node.op
        op: Crossing = ToGlobal((S(0),))
        if local:
            rows = isinstance(source, Input) and source.split and bool(value.shape) and value.shape[0] >= value.node.placement.size
            op = ToLocal(source.sbp if isinstance(source, ToGlobal) else (S(0) if rows else B,))
        return self._crossed(value, op, where)

    def _crossed(self, value: Value, op: Crossing, where: SourceLine) -> Value:
        placement = value.node.placement
        placement = self._in_mirrored_view(placement) if isinstance(op, ToLocal) else placement
        op = self._parts(op, placement, where)
        return self._record(op, (value,), self.unique_name(op.word()), placement, where, local=isinstance(op, ToLocal))[0]

    def _in_mirrored_view(self, placement: Placement) -> Placement:
        """Where each rank's own tensors are: on the job's kind of device, since another scope on the same ranks sends them nowhere."""
        mine = self.placement
        return mine if (placement.ranks, placement.mesh) == (mine.ranks, mine.mesh) else placement

    def _parts(self, op: Crossing, placement: Placement, where: SourceLine) -> Crossing:
        """The op that knows how many ranks have a part; the gradient of what was cut from a logical tensor knows it already."""
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
        """`<prefix>_<n>`, behind the namespaces, that no other node has; for an op that was called at `where`, the user's line unless given."""
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
        """What is recorded inside belongs to the backward pass of `node`: its place, line and name."""
        before = (self._phase, self._where, self._prefix)
        self._phase, self._where, self._prefix = "backward", node.where, f"{node.name}."
        view = "mirrored" if any(value.local for value in node.outputs) else "consistent"
        try:
            with scope.using(interpreter=self, placement=node.placement, view=view, stage=node.origin.stage, region=None, namespace=()):
                yield
        finally:
            self._phase, self._where, self._prefix = before

    @contextmanager
    def updating(self, where: SourceLine) -> Iterator[None]:
        """What is recorded inside belongs to the step that writes variables."""
        before = (self._phase, self._where)
        self._phase, self._where = "update", where
        try:
            with scope.using(interpreter=self, placement=self.placement, view="consistent", namespace=()):
                yield
        finally:
            self._phase, self._where = before

    @contextmanager
    def phased(self, phase: Phase, where: SourceLine) -> Iterator[None]:
        """Give the nodes recorded inside a phase and a line of the user."""
        before = (self._phase, self._where)
        self._phase, self._where = phase, where
        try:
            yield
        finally:
            self._phase, self._where = before

    # ---------------------------------------------------------------- rewriting

    @classmethod
    def onward(cls, program: Traced) -> Tracer:
        """One that goes on where a program ends, for a pass to record in; the program stays as it is."""
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
            _made=set(program.nodes),
            _names=dict(program.names),
            _counts=dict(program.counts),
        )

    def rewritten(self, program: Traced, outputs: Sequence[Value], rewrite: Take) -> tuple[Traced, list[Value]]:
        """A program recorded anew, with `rewrite` choosing what stands for a node; and its outputs as they are then.

        The tracer goes on from that program.  Ops that `rewrite` calls are recorded in the node's place, with its line, placement, view and
        stage.
        """

        def take(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
            with self.standing_for(node):
                return rewrite(node, inputs)

        self.nodes = []
        now: dict[Value, Value] = {}
        walk(program.nodes, take, now)
        training = program.training
        made = replace(
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
        return made, [now[value] for value in outputs]

    def again(
        self,
        node: Node,
        inputs: Sequence[Value],
        *,
        op: Op | None = None,
        placement: Placement | None = None,
        origin: Origin | None = None,
        suffix: str = "",
    ) -> tuple[Value, ...]:
        """Record a node once more on other inputs, under its names with `suffix` behind; with another op, place or origin, if given."""
        types = types_tuple((op or node.op).infer(*(value.tensor_type for value in inputs)))
        makes = [(type, value.name + suffix, value.local) for value, type in zip(node.outputs, types, strict=True)]
        return self._add(Node(op or node.op, tuple(inputs), makes, node.name + suffix, placement or node.placement, origin or node.origin))

    @contextmanager
    def standing_for(self, node: Node, microbatch: int | None = None) -> Iterator[None]:
        """What is recorded inside belongs where `node` is; to another microbatch, if given."""
        before = (self._phase, self._where, self._microbatch)
        self._phase, self._where = node.phase, node.where
        self._microbatch = node.origin.microbatch if microbatch is None else microbatch
        view = "mirrored" if any(value.local for value in node.outputs) else "consistent"
        changes = {"placement": node.placement, "view": view, "stage": node.origin.stage, "region": node.origin.region, "namespace": ()}
        try:
            with scope.using(interpreter=self, **changes):
                yield
        finally:
            self._phase, self._where, self._microbatch = before

    # ---------------------------------------------------------------- sources

    def input(self, key: str, type: TensorType, *, local: bool = False, split: bool = True, lies: Layout | None = None) -> Value:
        """An argument of the job; `lies`: how it comes, if that is not the job's to say."""
        op = Input(type.shape, type.dtype, key, split, sbp=None if lies is None else lies.sbp)
        (value,) = self._record(op, (), key, self.placement if lies is None else lies.placement, self.where, local=local)
        self.inputs[key] = value
        return value

    def as_seen(self, value: Value) -> Value:
        """The value as the view in force sees it."""
        return self._cross(value, scope.current().view == "mirrored", self._where or self.where)

    def new_region(self) -> int:
        """A number that no region of the program has."""
        self.regions += 1
        return self.regions

    def run_counter(self) -> Value:
        """int64[1]: how often this job ran before; what per-run randomness depends on."""
        if RUN_COUNTER not in self.inputs:
            return self.input(RUN_COUNTER, TensorType((1,), int64), split=False)
        return self.inputs[RUN_COUNTER]

    def variable(self, wanted: Variable) -> Value:
        """The current value of a variable, declared at first sight."""
        known = self.known.get(wanted.name) or self.variables.get(wanted.name)
        where = self._where or user_line()
        if known is not None and known.type.shape != wanted.type.shape:
            earlier = self.kind == "job" and wanted.name in self.known
            afresh = "; to forget the variables of earlier jobs, call clear_default_session() before the jobs are declared" if earlier else ""
            raise JobError(
                f'{self.kind} {self.name} at {where}: variable "{wanted.name}" is {known.type} in another place but {wanted.type} here; '
                f"one name is one tensor: give it another name, or the same shape{afresh}"
            )
        if wanted.name not in self.reads:
            variable = known or wanted
            self.variables[wanted.name] = wanted if known is None else _shared(known, wanted)
            op = ReadVariable(variable.type.shape, variable.type.dtype, variable.name)
            name = wanted.name if wanted.name not in self._names else self.unique_name(wanted.name)
            (self.reads[wanted.name],) = self._record(op, (), name, variable.placement, where, local=False)
        return self.reads[wanted.name]

    def slot(self, name: str, type: TensorType, initial: float, like: Variable | Placement | None) -> Value:
        """A variable of an optimizer: stored like the variable it serves, or whole on every rank of a placement, or of the job."""
        if isinstance(like, Variable):
            placement, sbp, group = like.placement, like.sbp, name.removeprefix(f"{like.name}-")
        else:
            placement, group = like or self.placement, "scalar"
            sbp = (B,) * len(placement.mesh)
        return self.variable(Variable(name, type, Constant(type.shape, type.dtype, initial), placement, sbp, trainable=False, group=group))

    def assign(self, name: str, value: Value) -> None:
        """The variable takes this value at the end of the run; in the mirrored view, each rank's copy that of its rank."""
        self.updates[name] = self._crossed(value, ToGlobal((B,)), self._where or user_line()) if value.local else value

    # ---------------------------------------------------------------- training

    def add_loss(self, loss: Value) -> None:
        """Mark a loss for the optimizer of the job's configuration."""
        if not self.trainable:
            raise JobError(f'job {self.name}: add_loss at {user_line()} in a job of type "predict"; decorate it with @global_function(type="train")')
        self.losses.append(loss)

    def minimize(self, optimizer: Optimizer, losses: Sequence[Value], where: SourceLine | None = None) -> None:
        """Have `optimizer` minimise the sum of the losses' means: this is a train job then.  `where` is who asked, if not the user's line."""
        where = where or user_line()
        if self.training is not None:
            raise JobError(f"job {self.name}: minimize at {where} and at {self.training.where}; a job has one, of one loss or a list of them")
        self.trainable = True
        self.training = Training(tuple(losses), (optimizer,), where)

    def watch(self, value: Value, take: Callable[[Any], None], gradient: bool = False) -> None:
        """Show `take` the value after every run; or its gradient, if it has one."""
        where = user_line()
        self.watches.append(Watch(self._own(value, "watch", where), take, gradient, where))

    def traced(self, outputs: Sequence[Value] = ()) -> Traced:
        """What has been recorded, of which these are to be the outputs."""
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
            tuple(dict.fromkeys(self.limits)),
            self.rows,
            dict(self._names),
            dict(self._counts),
            self.where,
            self.kind,
        )

    def graph(self, outputs: Sequence[Value] = ()) -> Graph:
        """What has been recorded, without what is to be done with it."""
        return self.traced(outputs).graph(outputs)


def _argument(value: Value) -> str | None:
    """The argument of the job that a value is, all of it, looked at differently or as it is; None if it is none, or a part of one."""
    while isinstance(value.node.op, ViewOp):
        whole = value.node.inputs[0]
        if value.tensor_type.size != whole.tensor_type.size and not isinstance(value.node.op, Crossing):
            return None
        value = whole
    return value.node.op.argument if isinstance(value.node.op, Input) else None


def _shared(known: Variable, wanted: Variable) -> Variable:
    """This job's view of a variable another job declared: same storage, its own wish to train it."""
    return Variable(known.name, known.type, known.initializer, known.placement, known.sbp, wanted.trainable, wanted.l1, wanted.l2, known.group)


def _located(message: str, op: Op, label: str, where: SourceLine) -> str:
    """The message of an op's `infer`, with the user's line and the layer's name behind the op's word."""
    word, colon, rest = message.partition(":")
    at = f'at {where} (layer "{label}")'
    return f"{word} {at}:{rest}" if colon and " " not in word else f"{op.word()} {at}: {message}"
