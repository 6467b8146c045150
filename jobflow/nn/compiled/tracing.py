"""Tracing of a call of a compiled function into a plan for later calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.compile import logical
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SourceLine, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import Array
from jobflow.functional.devices import device
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Value
from jobflow.nn.compiled.guards import Guards
from jobflow.nn.compiled.host_numbers import HostNumber
from jobflow.nn.compiled.outside import Cut, LaterBackward, Outside, attach, is_open, seed, trace_outside
from jobflow.nn.compiled.replay import CompiledMemory, Replay
from jobflow.nn.compiled.snapshot import MISSING, Snapshot, Untraceable, Watched
from jobflow.nn.compiled.step_recorder import StepRecorder
from jobflow.nn.graph.graph import together, union
from jobflow.nn.graph.running import Arguments, Built, Meta
from jobflow.optim.optimizer import Optimizer
from jobflow.runtime.collection import collection_paused
from jobflow.tensors.state import EagerState
from jobflow.tensors.structures import replaced
from jobflow.tensors.tape import TapeNode, follow, note
from jobflow.tensors.tensor import own

_PLAIN = (bool, int, float, complex, str, bytes, type(None), device)
#: attributes of a tensor that must be unchanged for a plan
_facts = attrgetter("tensor_type", "layout", "_needs_gradient", "hooks")
_gradient = attrgetter("_gradient")
_modes = attrgetter("grad_enabled", "default_dtype")
#: names of facts of a tensor that code can read without an operation
_OF_FACTS = frozenset({"requires_grad", "is_leaf", "shape", "size", "dim", "ndim", "numel", "dtype", "layout", "sbp", "placement", "is_global"})


def _memory_order(x: Tensor) -> tuple[int, ...] | None:
    """Return the strides of an argument in bytes; None for a contiguous local tensor, and for a global tensor that is not a view."""
    if x.layout is not None:
        return x.strides
    array = x.array
    return None if array.flags.c_contiguous else array.strides


class Call:
    """The arguments of one call: the tensors in order, and a key of structure, tensor types and other values, by which plans are cached."""

    __slots__ = ("args", "containers", "key", "names", "objects", "options", "tensors")

    def __init__(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.args, self.options = args, options
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        #: objects that are compared by identity, with their names
        self.objects: list[tuple[Any, str]] = []
        self.containers: list[tuple[Any, str]] = []
        keys = [*(self._key(x, f"argument {i}") for i, x in enumerate(args)), *((name, self._key(x, name)) for name, x in options.items())]
        self.key = (scope.current().autocast, *keys)

    def _key(self, x: Any, name: str) -> Any:
        if isinstance(x, Tensor):
            self.tensors.append(x)
            self.names.append(name)
            needs = x._needs_gradient if x.base is None else follow(x)
            return x.tensor_type, x.layout, needs, x.node is None, self._first(x), _memory_order(x)
        if isinstance(x, _PLAIN):
            return type(x), repr(x)
        if type(x) in (list, dict):
            self.containers.append((x, name))
        if type(x) is dict:
            return "dict", tuple([(key, self._key(each, f"{name}[{key!r}]")) for key, each in x.items()])
        if type(x) in (list, tuple) or (isinstance(x, tuple) and hasattr(x, "_fields")):
            return type(x), tuple([self._key(each, f"{name}[{i}]") for i, each in enumerate(x)])
        self.objects.append((x, name))
        return type(x), id(x)

    def _first(self, x: Tensor) -> int:
        """Return the position, among the tensors of the call so far, of the first tensor that shares memory with x; it may be x."""
        return next(i for i, other in enumerate(self.tensors) if other is x or (x._storage is not None and other._storage is x._storage))


@dataclass
class Trace:
    """The result of a trace: the outputs, effects and gradients that every replay must reproduce."""

    recorder: StepRecorder
    guards: Guards
    result: Any
    #: traced tensors that the plan returns: of the result, of attributes that the function sets, of arguments that it writes to
    outputs: list[Tensor]
    #: (container, key, number of the output, or the constant)
    effects: list[tuple[Watched, Any, int | None, Any]]
    #: (argument, number of the output) of arguments that the function writes to
    written: list[tuple[int, int]]
    #: (tensor, or number of the argument; number of the output that becomes its grad, or None)
    gradients: list[tuple[Tensor | int, int | None]]
    #: the backward pass from the outputs, for a caller that differentiates them
    outside: Outside | None = None


class Tracing:
    """One trace of a function, for the arguments of one call."""

    def __init__(self, here: EagerState, name: str, where: SourceLine, function: Callable[..., Any], call: Call, memory: CompiledMemory) -> None:
        self.here, self.function, self.call, self.memory = here, function, call, memory
        self.metas = tuple(Meta(f"input{i}", x.tensor_type, x.layout) for i, x in enumerate(call.tensors))
        self.guards = Guards()
        self.tracer = Tracer(name, together(here, self.metas), where, False, kind="graph")
        names = {id(x): name for name, x in memory.tensors.items()}
        self.gradient_outputs: list[Tensor] = []
        self.modes = _modes(here)
        self.recorder = StepRecorder(here, self.tracer, names, {}, known_tensors=memory.tensors, observer=self.guards)

    def run(self) -> Trace:
        """Run the function once while its operations are recorded, and return the trace.

        If the function fails or cannot be replayed, undo its effects and raise the error.
        """
        call, guards, recorder = self.call, self.guards, self.recorder
        guards.add(self.function, self.tracer.name)
        for value, name in call.objects:
            if isinstance(value, np.ndarray):
                raise Untraceable(
                    f"{self.tracer.name} at {user_line()}: {name} is a NumPy array, whose elements a replay does not read; pass flow.tensor(x)"
                )
            guards.descend(value, name, None, name)
        for value, name in call.containers:
            guards.add_argument(value, name)
        guards.refuse_unrestorable()
        try:
            with recorder.in_force():
                for i, x in enumerate(call.tensors):
                    if recorder.standing(x) is None:
                        recorder.stand_in(x, f"input{i}")
                        recorder.names.setdefault(id(x), f"input{i}")
                with guards.observing():
                    result = self.function(*call.args, **call.options)
                return self._finished(result)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Restore the Python objects that the function changed, including gradients, step counts, schedules and the gradient mode."""
        self.here.grad_enabled, self.here.default_dtype = self.modes
        for x, before in self.recorder.gradients.values():
            x._gradient = before
        for mine in self.recorder.counted:
            mine["step"] -= 1
        for restore in reversed(self.recorder.undo):
            restore()
        self.guards.restore()

    def forget(self) -> None:
        """Release data that only `undo` needs, such as old gradients."""
        self.recorder.gradients.clear()
        self.recorder.owners.clear()
        self.recorder.undo.clear()

    # ---------------------------------------------------------------- what the function did

    def _finished(self, result: Any) -> Trace:
        recorder, guards = self.recorder, self.guards
        if _modes(self.here) != self.modes:
            raise Untraceable(f"{self.tracer.name} changes the gradient mode or the default element type; change it before the call instead")
        if reason := guards.refused() or "".join(recorder.forbidden[:1]):
            raise Untraceable(f"{self.tracer.name}: {reason}")
        outputs: dict[int, Tensor] = {}
        replaced(result, Tensor, lambda x: self._returned(x, outputs))
        self._check_result(result)
        effects = [effect for change in guards.effects() if (effect := self._effect(*change, outputs)) is not None]
        written = self._written(outputs)
        gradients = [self._gradient(x, before, outputs) for x, before in recorder.gradients.values()]
        outside = trace_outside(recorder, list(outputs.values()))
        changes = [each for each in gradients if each is not None]
        return Trace(recorder, guards, result, list(outputs.values()), effects, written, changes, outside)

    def _returned(self, x: Tensor, outputs: dict[int, Tensor]) -> Tensor:
        if x.traced is not None:
            outputs[id(x)] = x
        elif self._position(x) is None and self.guards.path_of(x) is None:
            raise Untraceable(f"{self.tracer.name} returns a tensor {x.tensor_type} from code that is not recorded; use functions of jobflow")
        return x

    def _check_result(self, x: Any) -> None:
        """Raise Untraceable if the result x of the function contains an object that a replay cannot return."""
        if isinstance(x, list | tuple):
            for each in x:
                self._check_result(each)
        elif isinstance(x, dict):
            for each in x.values():
                self._check_result(each)
        elif not isinstance(x, (Tensor, *_PLAIN)) and id(x) not in self.guards.visited:
            raise Untraceable(f"{self.tracer.name} returns a {type(x).__name__}; return tensors and plain values, in lists, tuples and dicts")

    def _position(self, x: Tensor) -> int | None:
        return next((i for i, other in enumerate(self.call.tensors) if other is x), None)

    def _effect(self, watched: Watched, key: Any, value: Any, outputs: dict[int, Tensor]) -> tuple[Watched, Any, int | None, Any] | None:
        """Return the change of an item as (container, key, number of the output or None, constant), in the form of `Trace.effects`.

        Return None for a learning rate that a schedule sets.  Raises: Untraceable for a change that replays cannot repeat.
        """
        if self.is_rate(watched, key) and self.recorder.schedule_steps:
            return None
        path = watched.name(key).replace("\0", "")
        if watched.kind in ("list", "set") or value is MISSING or watched in self.guards.arguments:
            raise Untraceable(f"{self.tracer.name} changes {watched.path or path}, which a replay does not repeat")
        if isinstance(value, Tensor) and value.traced is not None:
            outputs.setdefault(id(value), value)
            return watched, key, list(outputs).index(id(value)), None
        if not isinstance(value, _PLAIN) and id(value) not in self.guards.visited:
            raise Untraceable(f"{self.tracer.name} sets {path} to a {type(value).__name__}, which a replay does not repeat")
        return watched, key, None, value

    def is_rate(self, watched: Watched, key: Any) -> bool:
        """Return True for the learning rate of a parameter group, which plans read before every run; False if the function reads `param_groups`."""
        if key not in ("lr", "initial_lr") or "param_groups" in self.guards.names:
            return False
        return any(watched.target is group for optimizer, _ in self._optimizers() for group in optimizer.param_groups)

    def _optimizers(self) -> Iterator[tuple[Optimizer, Any]]:
        yield from self.recorder.stepped
        yield from ((schedule.optimizer, None) for schedule in self.guards.schedules)

    def _written(self, outputs: dict[int, Tensor]) -> list[tuple[int, int]]:
        """Return (position of the argument, number of the output) for each argument that the function overwrites.

        Raises: Untraceable if an overwritten tensor shares memory with another tensor, or receives a value that requires gradients.
        """
        recorder, written = self.recorder, []
        met = {**{id(x): x for x in self.call.tensors}, **{id(x): x for x in recorder.tensors.values()}}
        showing: dict[int, list[Tensor]] = {}
        for x in met.values():
            if x._storage is not None:
                showing.setdefault(id(x._storage), []).append(x)
        for x in recorder.written.values():
            shared = [other for other in showing.get(id(x._storage), ()) if other is not x]
            if shared:
                raise Untraceable(
                    f"{self.tracer.name} writes to a tensor {x.tensor_type} whose memory another tensor {shared[0].tensor_type} "
                    "shares; write to a clone()"
                )
            now = recorder.known(x)
            if now.node is not None:
                raise Untraceable(
                    f"{self.tracer.name} writes a value that requires gradients to the tensor {x.tensor_type}, outside of "
                    "no_grad(); write it inside no_grad()"
                )
            if (i := self._position(x)) is not None:
                outputs.setdefault(id(now), now)
                written.append((i, list(outputs).index(id(now))))
        return written

    def _gradient(self, x: Tensor, before: Tensor | None, outputs: dict[int, Tensor]) -> tuple[Tensor | int, int | None] | None:
        """Restore `before`, the `grad` of x before the call, until the plan has run.

        Return x, or its position among the arguments, and the number of the output with its new `grad`.  Return None if `grad` is unchanged.
        """
        now, x._gradient = x._gradient, before
        if x.traced is not None or now is before:
            return None
        position = self._position(x)
        who = x if position is None else position
        if position is None and self.guards.path_of(x) is None and id(x) not in {id(t) for t in self.recorder.tensors.values()}:
            raise Untraceable(f"{self.tracer.name} computes the gradient of an unknown tensor {x.tensor_type}; pass the tensor as an argument")
        if now is None:
            return who, None
        if now.traced is None:
            raise Untraceable(f"{self.tracer.name} sets the grad of a tensor {x.tensor_type} to a tensor that the function did not compute")
        if id(now) in outputs:
            now = self.recorder.again(now)
        if now.layout != x.layout and x.layout is not None:
            now = self.recorder.change(now, x.layout, None)
        outputs[id(now)] = now
        self.gradient_outputs.append(now)
        return who, list(outputs).index(id(now))


class Entry:
    """A plan of a compiled function and the conditions under which a call can replay it."""

    def __init__(self, tracing: Tracing, trace: Trace) -> None:
        recorder = trace.recorder
        self.trace, self.call_key = trace, tracing.call.key
        self.objects = tracing.call.objects
        self.replay = compiled(tracing, trace)
        self.snapshot: Snapshot = trace.guards.finish(tracing.is_rate)
        self.host_numbers: Sequence[HostNumber] = recorder.numbers
        inside = {id(x) for x in tracing.call.tensors}
        self.tensors = [x for x in recorder.tensors.values() if id(x) not in inside]
        read = [x for x in trace.guards.tensors_read(_OF_FACTS) if id(x) not in inside]
        self.compared = list({id(x): x for x in (*self.tensors, *read)}.values())
        self.facts = list(map(_facts, self.compared))
        self.argument_of = {id(x): i for i, x in enumerate(tracing.call.tensors)}
        self.bound = {id(x) for x in self.tensors}
        self.seeds = [(draw.generator, draw.generator.seed) for draw in recorder.draws]
        read = [recorder.gradients[i][0] for i in recorder.gradients_read]
        self.readers: list[Tensor] = [x for x in read if x.traced is None and id(x) not in inside]
        self.reader_arguments = [(self.argument_of[id(x)], recorder.gradients[id(x)][1] is None) for x in read if id(x) in inside]
        self.had_gradient = [recorder.gradients[id(x)][1] is None for x in self.readers]
        self.states = [(optimizer, optimizer.state, pairs) for optimizer, pairs in recorder.stepped]
        self.added = {name: self.argument_of.get(id(x), x) for name, x in recorder.held.items()}
        self.returned = {id(x): i for i, x in enumerate(trace.outputs)}
        self.differentiated = [i for i, x in enumerate(trace.outputs) if (now := recorder.known(x))._needs_gradient and not is_open(now)]
        self.backward = None if trace.outside is None else BackwardPlan(tracing, trace.outside, self)

    # ---------------------------------------------------------------- validity

    def changed(self, call: Call) -> str:
        """Return the reason why a call cannot replay the plan, or "" if it can."""
        if any(id(x) in self.bound for x in call.tensors):
            return "an argument is a tensor that the function also reads elsewhere"
        if [x._gradient is None for x in self.readers] != self.had_gradient:
            return "the grad of a parameter was None and is a tensor, or the reverse"
        if any((call.tensors[i]._gradient is None) != none for i, none in self.reader_arguments):
            return "the grad of an argument was None and is a tensor, or the reverse"
        for number in self.host_numbers:
            if number.alike and len({mine["step"] for mine in number.alike}) > 1:
                return "parameters that had the same number of steps now have different numbers"
        for optimizer, state, pairs in self.states:
            if optimizer.state is not state or "step" in vars(optimizer) or any(state.get(p) is not mine for p, mine in pairs):
                return f"the state of the optimizer {type(optimizer).__name__} was replaced, or the optimizer has hooks"
        for generator, before in self.seeds:
            if generator.seed != before:
                return "the seed of the random numbers changed"
        return self.snapshot.changed()

    def stale(self) -> str:
        """Describe the first tensor whose type, layout, requires_grad or hooks changed since the trace; return "" if there is none."""
        if list(map(_facts, self.compared)) == self.facts:
            return ""
        x, before = next((x, before) for x, before in zip(self.compared, self.facts, strict=True) if _facts(x) != before)
        names = ("type", "layout", "requires_grad", "hooks")
        name, old, new = next((name, a, b) for name, a, b in zip(names, before, _facts(x), strict=True) if a != b)
        return f"{name} of the tensor {x.tensor_type} was {old} and is {new}"

    # ---------------------------------------------------------------- running

    def run(self, call: Call, first: bool) -> Any:
        """Run the plan for a call, apply the effects of the function on Python objects, and return its result.

        `first` is True directly after the trace, which has already stepped schedules and counters.
        """
        trace, recorder = self.trace, self.trace.recorder
        before = [] if first else [(each, dict(vars(each)), [group["lr"] for group in each.optimizer.param_groups]) for each in recorder.schedules]
        if not first:
            for action in recorder.repeated:
                action()
        tensors = call.tensors
        added = {name: tensors[x] if isinstance(x, int) else x for name, x in self.added.items()}
        owners = [(tensors[x] if isinstance(x, int) else x, number) for x, number in trace.gradients]
        try:
            outputs = self.replay.run(tensors, added, {number: x for x, number in owners if number is not None})
        except BaseException:
            for schedule, attributes, rates in before:
                vars(schedule).update(attributes)
                for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
            raise
        if not first:
            for mine in recorder.counted:
                mine["step"] += 1
        for x, position in owners:
            x._gradient = None if position is None else outputs[position]
        self._attach(tensors, outputs)
        for i, number in trace.written:
            x = call.tensors[i]
            own(x, "a compiled function")[...] = outputs[number].array
            x.wrote()
        for watched, key, position, value in trace.effects:
            set_item(watched, key, value if position is None else outputs[position])
        return self._result(call, outputs)

    def _attach(self, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Attach autograd nodes to outputs that require gradients; a node has no saved values if the function differentiated the output."""
        if self.backward is not None:
            self.backward.attach(tensors, outputs)
        for i in self.differentiated:
            spent = TapeNode("compiled", (), 1, _spent)
            spent.drop()
            note(spent, (outputs[i],))

    def _result(self, call: Call, outputs: Sequence[Tensor]) -> Any:
        result = self.trace.result
        if type(result) is Tensor and id(result) in self.returned:
            return outputs[self.returned[id(result)]]

        def filled(x: Tensor) -> Tensor:
            if id(x) in self.returned:
                return outputs[self.returned[id(x)]]
            return call.tensors[self.argument_of[id(x)]] if id(x) in self.argument_of else x

        return replaced(result, Tensor, filled)


def _spent(*_: Any) -> Any:
    raise AssertionError("the node is dropped")


class BackwardPlan:
    """The plan for the gradients of a compiled function whose results are differentiated by its caller; compiled at the first `backward()`."""

    def __init__(self, tracing: Tracing, outside: Outside, entry: Entry) -> None:
        self.tracing, self.outside, self.entry = tracing, outside, entry
        self.cut = Cut(outside)
        self.count = len(entry.trace.outputs)
        self.plan: Replay | None = None
        self.metas: list[Meta] = []
        recorder = entry.trace.recorder
        self.leaves: list[Tensor | int] = [entry.argument_of.get(id(x), x) for x in outside.leaves]
        self.read = [recorder.tensors[name] for name in self.cut.variables() if name in recorder.tensors]

    def attach(self, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Record one call of the compiled function on the autograd tape, with the values that this plan needs."""
        saved = {id(value): outputs[self.count + i].array for i, value in enumerate(self.cut.saved)}
        read = list(self.read)
        for value in self.cut.inputs:
            key = value.node.op.key  # type: ignore[attr-defined]
            if key in self.entry.replay.constant:
                saved[id(value)] = self.entry.replay.constant[key].copy()
            else:
                x = next(x for meta, x in zip(self.entry.replay.built.inputs, tensors, strict=True) if meta.name == key)
                saved[id(value)] = x.array
                read.append(x)
        here, name = self.tracing.here, self.tracing.tracer.name
        later = LaterBackward(here, name, self.outside, saved, read, self.run)
        attach(later, outputs, [tensors[x] if isinstance(x, int) else x for x in self.leaves])

    def run(self, saved: Mapping[int, Array], gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Run this plan for one call, and return the gradients of the leaves.

        `saved` has the arrays of the call by id of a value.  `gradients` are the gradients of the outputs.
        """
        with scope.lock(), scope.using(interpreter=None):
            plan = self.plan = self.plan or self._compiled()
            here, inputs = self.tracing.here, []
            for number, (value, gradient) in enumerate(zip(self.outside.seeds, gradients, strict=True)):
                like = self.entry.replay.outputs[self.outside.outputs[number]]
                layout = None if plan.built.local else Layout(value.node.placement, value.node.op.sbp)  # type: ignore[attr-defined]
                inputs.append(seed(here, layout, gradient, like))
            for meta, value in zip(self.metas[len(inputs) :], [*self.cut.saved, *self.cut.inputs], strict=True):
                inputs.append(Tensor(meta.type, meta.layout, saved[id(value)]))
            outputs = plan.run(inputs, {}, {})
        return outputs

    @collection_paused()
    def _compiled(self) -> Replay:
        tracing, recorder, first = self.tracing, self.entry.trace.recorder, self.entry.replay
        name = f"{tracing.tracer.name}.backward"
        tracer = Tracer(name, tracing.tracer.placement, tracing.tracer.where, False, kind="graph")
        values, self.metas = self.cut.program(tracer, recorder, first.outputs[self.count :], recorder.alone)
        program = replace(tracer.traced(), placement=union(tracing.here, tracer))
        graph = logical(program, values).graph
        outputs = tuple([Tensor(value.tensor_type, None, None, traced=value) for value in values])
        tensors = {name: x for name, x in recorder.tensors.items() if name in graph.variables}
        built = Built(name, graph, tuple(self.metas), Arguments((), {}), outputs, tensors, [], [], (), first.built.local)
        return Replay(tracing.here, built, tracing.memory, {}, {})


def set_item(watched: Watched, key: Any, value: Any) -> None:
    """Assign `value` to the item or attribute `key` of a container."""
    if watched.kind == "cell":
        watched.target.cell_contents = value
    elif watched.kind == "slots":
        setattr(watched.target, key, value)
    elif watched.kind == "class":
        setattr(watched.owner, key, value)
    else:
        watched.target[key] = value


@collection_paused()
def compiled(tracing: Tracing, trace: Trace) -> Replay:
    """Compile the program of a trace, and return its plan, bound to the tensors that it reads and writes."""
    recorder, here = trace.recorder, tracing.here
    saved = [] if trace.outside is None else Cut(trace.outside).saved
    values: list[Value] = [*[recorder.known(x).traced for x in trace.outputs], *saved]
    program = replace(tracing.tracer.traced(), placement=union(here, tracing.tracer))
    graph = logical(program, values).graph
    layouts: list[Layout | None] = [*(meta.layout for meta in tracing.metas), *(x.layout for x in (*recorder.tensors.values(), *trace.outputs))]
    layouts += [x.layout for x in recorder.held.values()]
    local = all(layout is None for layout in layouts)
    cut = [Tensor(value.tensor_type, None, None, traced=value) for value in saved]
    outputs = (*[recorder.known(x) for x in trace.outputs], *cut)
    built = Built(
        tracing.tracer.name, graph, tracing.metas, Arguments((), {}), outputs, recorder.tensors, recorder.draws, recorder.numbers, (), local
    )
    created = {number: trace.outputs[number] for _, number in trace.gradients if number is not None}
    return Replay(here, built, tracing.memory, recorder.held, created)
