"""Plans of compiled functions with the conditions under which calls replay them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import jobflow.core.scope as scope
from jobflow.compiler.compile import logical
from jobflow.compiler.front.trace import Tracer
from jobflow.core.layout import Layout
from jobflow.core.types import Array
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Value
from jobflow.nn.compiled.call import Call
from jobflow.nn.compiled.changing import ChangedValue, set_item
from jobflow.nn.compiled.host_numbers import HostNumber, HostSample
from jobflow.nn.compiled.outside import Cut, LaterBackward, Outside, ReleasedBackward, attach, is_open, seed
from jobflow.nn.compiled.replay import Replay
from jobflow.nn.compiled.snapshot import Snapshot, Untraceable
from jobflow.nn.compiled.tracing import Trace, Tracing
from jobflow.nn.graph.built import Arguments, Built, Meta
from jobflow.nn.graph.graph import union
from jobflow.runtime.collection import collection_paused
from jobflow.tensors.overlaps import Ranges, overlap
from jobflow.tensors.run_values import HostList, HostValue, RunResults
from jobflow.tensors.structures import replaced
from jobflow.tensors.tape import TapeNode, note
from jobflow.tensors.tensor import own

#: attributes of a tensor that must be unchanged for a plan
_facts = attrgetter("tensor_type", "layout", "_needs_gradient", "hooks")
#: names of facts of a tensor that code can read without an operation
_OF_FACTS = frozenset({"requires_grad", "is_leaf", "shape", "size", "dim", "ndim", "numel", "dtype", "layout", "sbp", "placement", "is_global"})


class NumberError(Exception):
    """The error of a run without effects, because the computation of a Python number of the function raises its cause."""


class Entry:
    """A plan of a compiled function and the conditions under which a call can replay it."""

    def __init__(self, tracing: Tracing, trace: Trace) -> None:
        recorder = trace.recorder
        self.trace, self.call_key, self.tracer_name = trace, tracing.call.key, tracing.tracer.name
        self.objects = tracing.call.objects
        self.replay = compiled(tracing, trace)
        self.snapshot: Snapshot = trace.guards.finish(tracing.is_ignored)
        self.host_numbers: Sequence[HostNumber] = recorder.host_inputs
        inside = {id(x) for x in tracing.call.tensors}
        self.tensors = [x for x in recorder.tensors.values() if id(x) not in inside]
        read = [x for x in trace.guards.tensors_read(_OF_FACTS) if id(x) not in inside]
        self.compared = list({id(x): x for x in (*self.tensors, *read)}.values())
        self.facts = list(map(_facts, self.compared))
        self.argument_of = {id(x): i for i, x in enumerate(tracing.call.tensors)}
        self.bound = {id(x) for x in self.tensors}
        #: arguments that the function also reads elsewhere, by position
        self.elsewhere = [(i, x) for i, x in enumerate(tracing.call.tensors) if _is_read_elsewhere(tracing, x)]
        #: memory that arguments of a call must not share, because the plan writes to it, or to arguments
        shown = [(binding.tensor, resident.array) for binding, resident in self.replay.bindings]
        added = [slot.array for slot in self.replay.added.values()]
        self.guarded_memory = Ranges([*(array for x, array in shown if id(x) in recorder.written or trace.written), *added])
        self.written = set(recorder.written) - inside
        self.changes_memory = bool(recorder.written or added)
        self.guarded = [(x, elements.tobytes()) for x, elements in recorder.guarded.values()]
        self.seeds = [(draw.generator, draw.generator.seed) for draw in recorder.draws]
        read = [recorder.gradients[i][0] for i in recorder.gradients_read]
        self.readers: list[Tensor] = [x for x in read if x.traced is None and id(x) not in inside]
        self.reader_arguments = [(self.argument_of[id(x)], recorder.gradients[id(x)][1] is None) for x in read if id(x) in inside]
        self.had_gradient = [recorder.gradients[id(x)][1] is None for x in self.readers]
        self.states = [(optimizer, optimizer.state, pairs) for optimizer, pairs in recorder.stepped]
        pairs = [pair for _, pairs in recorder.stepped for pair in pairs]
        self.slots = [(mine, name, x) for _, mine in pairs for name, x in mine.items() if isinstance(x, Tensor)]
        self.added = {name: self.argument_of.get(id(x), x) for name, x in recorder.held.items()}
        self.returned = {id(x): i for i, x in enumerate(trace.outputs)}
        self.differentiated = [i for i, x in enumerate(trace.outputs) if (now := recorder.known(x))._needs_gradient and not is_open(now)]
        self.backward = None if trace.outside is None else BackwardPlan(tracing, trace.outside, self)

    # ---------------------------------------------------------------- validity

    def changed(self, call: Call) -> str:
        """Return the reason why a call cannot replay the plan, or "" if it can."""
        if any(id(x) in self.bound for x in call.tensors):
            return "an argument is a tensor that the function also reads elsewhere"
        if any(call.tensors[i] is not x for i, x in self.elsewhere):
            return "an argument was a tensor that the function also reads elsewhere, and is another tensor"
        if self.changes_memory and self._shares_memory(call.tensors):
            return "a tensor that the function reads now shares memory with a tensor that it overwrites"
        if [x._gradient is None for x in self.readers] != self.had_gradient:
            return "the grad of a parameter was None and is a tensor, or the reverse"
        if any((call.tensors[i]._gradient is None) != none for i, none in self.reader_arguments):
            return "the grad of an argument was None and is a tensor, or the reverse"
        for x, elements in self.guarded:
            if x.array.tobytes() != elements:
                return f"a Python number of the function depends on a tensor {x.tensor_type}, whose elements have changed"
        for number in self.host_numbers:
            if number.alike and len({mine["step"] for mine in number.alike}) > 1:
                return "parameters that had the same number of steps now have different numbers"
        for optimizer, state, pairs in self.states:
            if optimizer.state is not state or "step" in vars(optimizer) or any(state.get(p) is not mine for p, mine in pairs):
                return f"the state of the optimizer {type(optimizer).__name__} was replaced, or the optimizer has hooks"
        if any(mine.get(name) is not x for mine, name, x in self.slots):
            return "a tensor in the state of an optimizer was replaced"
        for generator, before in self.seeds:
            if generator.seed != before:
                return "the seed of the random numbers changed"
        return self.snapshot.changed()

    def _shares_memory(self, tensors: Sequence[Tensor]) -> bool:
        """Return True if the plan reads a tensor in the memory of another tensor to which it writes; `tensors` are the arguments."""
        if any(self.guarded_memory.meet(x.array) for x in tensors):
            return True
        written, outside = {id(tensors[i]) for i, _ in self.trace.written}, self.tensors if self.replay.has_strays() else ()
        return bool(written or outside) and overlap([*tensors, *outside], written | self.written) is not None

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
            self._repeat()
        tensors = call.tensors
        before_run = {item.identity: item.read() for item in call.changing}
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
        for who, required in trace.requiring:
            (tensors[who] if isinstance(who, int) else who)._needs_gradient = required
        self._attach(tensors, outputs)
        for i, number in trace.written:
            x = call.tensors[i]
            own(x, "a compiled function")[...] = outputs[number].array
            x.wrote()
        now = RunResults(outputs, self.returned, before_run)
        for watched, key, position, value in trace.effects:
            if isinstance(value, HostList):
                ChangedValue(watched, key).read().extend(self._filled(value.appended, call, now))
            else:
                set_item(watched, key, self._filled(value, call, now) if position is None else outputs[position])
        return self._result(call, now)

    def _repeat(self) -> None:
        """Call the functions that precede every run: schedules, samples of NumPy, and Python numbers.

        Raises: NumberError if a number raises an error, and no function before it has an effect.
        """
        repeated = self.trace.recorder.repeated
        for done, action in enumerate(repeated):
            try:
                action()
            except Exception as error:
                if all(isinstance(getattr(each, "__self__", None), HostSample) for each in repeated[: done + 1]):
                    raise NumberError from error
                raise

    def _attach(self, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Attach autograd nodes to outputs that require gradients; a node has no saved values if the function differentiated the output."""
        if self.backward is not None:
            self.backward.attach(tensors, outputs)
        for i in self.differentiated:
            spent = TapeNode("compiled", (), 1, _spent)
            spent.drop()
            note(spent, (outputs[i],))
        for i, reason in self.trace.released.items():
            note(TapeNode("compiled", (), 1, ReleasedBackward(self.tracer_name, reason)), (outputs[i],))

    def _result(self, call: Call, run: RunResults) -> Any:
        result = self.trace.result
        if type(result) is Tensor and id(result) in self.returned:
            return run.outputs[self.returned[id(result)]]
        return self._filled(result, call, run)

    def _filled(self, x: Any, call: Call, run: RunResults) -> Any:
        """Return x with the tensors and numbers of a run in place of traced tensors and placeholders."""

        def filled(x: Any) -> Any:
            if isinstance(x, HostValue):
                return x.compute(run)
            if id(x) in self.returned:
                return run.outputs[self.returned[id(x)]]
            return call.tensors[self.argument_of[id(x)]] if id(x) in self.argument_of else x

        return replaced(x, (Tensor, HostValue), filled)


def _is_read_elsewhere(tracing: Tracing, x: Tensor) -> bool:
    """Return True if the function may read the argument x elsewhere, too; raise Untraceable if x is the `grad` of a tensor that it reads."""
    guards, recorder, items = tracing.guards, tracing.recorder, tracing.call.changing
    if any(before is x for _, before in recorder.gradients.values()):
        raise Untraceable(f"{tracing.tracer.name} reads the grad of a tensor that is also an argument; pass a clone()")
    if recorder.is_constant(x):
        return True
    if guards.path_of(x) is None:
        return False
    held = [(watched, key) for watched in guards.watched.values() for key, each in watched.items() if each is x]
    if not held and not any(item.read() is x for item in items):  # in a tuple, or a global variable
        return True
    return any(
        guards.reads(watched, key) and (id(watched.target), 0 if watched.kind == "cell" else key) not in tracing.changing for watched, key in held
    )


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
        tracing.tracer.name, graph, tracing.metas, Arguments((), {}), outputs, recorder.tensors, recorder.draws, recorder.host_inputs, (), local
    )
    created = {number: trace.outputs[number] for _, number in trace.gradients if number is not None}
    return Replay(here, built, tracing.memory, recorder.held, created)
