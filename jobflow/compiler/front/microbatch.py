"""Gradient accumulation: the batch passes through the body in k microbatches, and variables are updated once.

The program is unrolled.  The body is traced for the rows of one microbatch and differentiated, and its nodes are copied once per
microbatch.  Microbatches are balanced: they have at most two sizes, and the body is traced at most twice.  Later stages, from layouts
to memory, need no change.  Only the activations of one microbatch are alive at a time, because its forward and backward pass precede
the next microbatch.

* An argument is cut along its first axis.  Arguments with a first axis of length 1 or without axes are passed whole to every
  microbatch.  All other arguments must have the length of the batch.  Rows are cut among microbatches first, then among ranks.
* Values that do not depend on the rows (variables, casts of them, constants) are computed once.
* Gradients accumulate over microbatches before they are reduced over ranks, so ranks exchange them once.  Unscaling, regularizers
  and clipping are applied once, to the sum.
* The result is the mean over the batch, also if microbatches differ in length.  A loss per row has weight 1 / (number of elements
  in the batch).  A loss of fixed size, which the program reduced, is weighted by its number of rows.
* Random values are the same as without microbatches if the first axis is the batch axis; otherwise each microbatch samples separately.
* A variable that the body assigns (moving statistics) is passed from one microbatch to the next, and the last value is stored.
  Such a variable in the results has its value before the run.
* Results are concatenated along axis 0.  The caller concatenates results with rows of the batch, so they need no gather; the
  program concatenates results with one value per microbatch.
* If arguments reside on the ranks (`Microbatches.within`), the program selects the rows of a microbatch there, by logical rows in
  any layout, and concatenates all results.
* In the mirrored view every rank cuts its own rows.  An argument that is one array for all ranks is cut into microbatches, and each
  microbatch over the ranks.  If ranks differ in length, dropout samples other values than without microbatches.

Example, k = 2, y = x w with a loss per row.  The program has two nodes for each of x w and x' dy, then dw = dw#0 + dw#1 and
w <- w - lr dw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from jobflow.compiler.front.differentiate import (
    Gradients,
    LogicalProgram,
    Weight,
    backpropagate,
    check_losses,
    counted,
    raised_by,
    update_variables,
    watched,
)
from jobflow.compiler.front.gradient_sums import added, addends
from jobflow.compiler.front.trace import Tracer, recorded
from jobflow.compiler.front.whole_batch import Part, Parts, Statistic, combined, leading_to
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError
from jobflow.core.layout import B, Box, P, Partial, Placement, Split
from jobflow.graph.ir import End, Node, Provenance, Value
from jobflow.graph.rewrite import walk
from jobflow.graph.traced import Traced
from jobflow.graph.training import Microbatches, Watch
from jobflow.ops.arithmetic import Add
from jobflow.ops.axes import reshape
from jobflow.ops.op import Op
from jobflow.ops.rows import Rows
from jobflow.ops.slices import concat
from jobflow.ops.source import Input, ReadVariable, Source

#: A traced body and its outputs.
Body = tuple[Traced, Sequence[Value]]


# -------------------------------------------------------------------- bodies


@dataclass
class _Body:
    """A traced and differentiated body for microbatches of `rows` rows."""

    rows: int
    program: Traced
    #: results, then values of watches
    outputs: list[Value]
    watches: tuple[Watch, ...]
    backward: Gradients
    gradients: dict[str, Value]
    #: the factor by which gradients are multiplied (`raised_by`)
    raised: float
    #: node whose result depends on row positions -> elements per row along its first axis, on all ranks that share it
    times: dict[Node, int | None] = field(default_factory=dict)
    #: values that differ from microbatch to microbatch
    varying: set[Value] = field(default_factory=set)
    #: nodes that are copied for each microbatch, and their names
    copied: set[Node] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    #: values computed once for all microbatches
    shared: dict[Value, Value] = field(default_factory=dict)
    #: the rules that combine its values into those of the batch; None for the rule of num_gradient_accumulation_steps
    parts: Parts | None = None


def _bodies(traced: Sequence[Body], microbatches: Microbatches, parts: Sequence[Parts]) -> list[_Body]:
    """Differentiate each traced body with the weight of its losses in the batch."""
    trainings = [check_losses(program) for program, _ in traced]
    losses = [training.losses[0] for training in trainings]
    elements = [counted(program, loss) for (program, _), loss in zip(traced, losses, strict=True)]
    if parts:
        weights = [Weight(each.elements) for each in parts]
    else:
        weights = _weights(losses, elements, microbatches, _sharing(traced[0][0], losses[0], microbatches))
    raised = min(raised_by(program.nodes, training, weight) for (program, _), training, weight in zip(traced, trainings, weights, strict=True))
    weights = [replace(weight, raised=raised) for weight in weights]
    bodies: list[_Body] = []
    for (program, outputs), training, weight, rows in zip(traced, trainings, weights, microbatches.sizes, strict=True):
        tracer = Tracer.onward(program)
        backward = backpropagate(tracer, training, weight)
        watches, shown = watched(tracer, backward.of, weight)
        bodies.append(_Body(rows, tracer.traced(), [*outputs, *shown], watches, backward, backward.of_variables(tracer), raised))
    if parts:
        for body, own in zip(bodies, parts, strict=True):
            body.parts = own
            body.times = {node: _rows_of(body, node, microbatches) for node in body.program.nodes if node.op.by_position or node.name in own.placed}
        return bodies
    positioned = [[node for node in body.program.nodes if node.op.by_position] for body in bodies]
    alike = len(set(map(len, positioned))) == 1
    for body, nodes in zip(bodies, positioned, strict=True):
        for at, node in enumerate(nodes):
            others = [each[at].outputs[0] for each in positioned] if alike else node.outputs[:1]
            times = _times(others, microbatches.sizes if alike else [body.rows], _sharing(body.program, others[0], microbatches))
            certain = len(others) > 1 or times == 1 or not isinstance(node.op, Source)
            body.times[node] = times if certain else None
    return bodies


def _rows_of(body: _Body, node: Node, microbatches: Microbatches) -> int | None:
    """Return the number of elements per row of the batch along axis 0 of a node's output; None if axis 0 is not the axis of rows."""
    assert body.parts is not None, "the body was compared with that of the batch"
    value = node.outputs[0]
    if node.name not in body.parts.placed or body.parts.placed[node.name][1] != Split(0):
        return None
    return value.shape[0] * _sharing(body.program, value, microbatches) // body.rows


def _weights(losses: Sequence[Value], elements: Sequence[int], microbatches: Microbatches, ranks: int) -> list[Weight]:
    """Return the weight of the losses in the batch, one per microbatch size.

    `losses` and `elements` have one entry per size: a loss, and its number of elements on each of `ranks`.
    """
    sizes = microbatches.sizes
    grows = len(set(elements)) > 1 if len(sizes) > 1 else _times(losses, sizes, ranks) is not None
    if not grows:
        return [Weight(n, rows / microbatches.rows) for n, rows in zip(elements, sizes, strict=True)]
    each = dict(zip(sizes, elements, strict=True))
    return [Weight(sum(each[stop - start] for start, stop in microbatches.spans))] * len(sizes)


def _sharing(program: Traced, value: Value, microbatches: Microbatches) -> int:
    """Return the number of ranks that share the rows of a value: all ranks in the mirrored view if arguments are cut over them, else 1."""
    of_all = bool(microbatches.arguments) and not any(program.inputs[name].local for name in microbatches.arguments)
    return value.node.placement.size if value.local and of_all else 1


def _times(values: Sequence[Value], sizes: Sequence[int], ranks: int = 1) -> int | None:
    """Return the number of elements along the first axis per row of the batch; None if the first axis does not grow with the rows.

    `values` has one value per microbatch size, and `ranks` share its first axis.  With one size, any multiple of the size counts as rows.
    """
    if not all(value.shape and value.shape[0] * ranks % size == 0 for value, size in zip(values, sizes, strict=True)):
        return None
    times, *others = {value.shape[0] * ranks // size for value, size in zip(values, sizes, strict=True)}
    return None if others else times


# -------------------------------------------------------------------- unrolling


def unroll(traced: Sequence[Body], microbatches: Microbatches, parts: Sequence[Parts] = ()) -> LogicalProgram:
    """Return the program that runs all microbatches of a batch; `traced` has one body per microbatch size.

    `parts` has the rules that combine the values of each body.  Without `parts`, the rule of num_gradient_accumulation_steps applies.
    Raises: JobError if the bodies differ, or if a loss per row cannot be distinguished from a mean loss.
    """
    for other in traced[1:]:
        _check_alike(traced[0], other, microbatches, joined=not parts)
    program = traced[0][0]
    if program.rows and microbatches.count == microbatches.rows:
        raise JobError(
            f"{program}: the ranks' arguments differ in length ({list(program.rows)}) and microbatches of one rank have one row each, so "
            f"a loss per row cannot be distinguished from a mean loss; request fewer than {microbatches.rows} at {microbatches.where}"
        )
    return _Unrolling(microbatches, _bodies(traced, microbatches, parts)).run()


def _check_alike(one: Body, other: Body, microbatches: Microbatches, joined: bool) -> None:
    """Raise JobError if two traces of the body differ in variables or in the number of results, watches, assignments or losses.

    With `joined`, results must also be compatible along axis 0.
    """
    (a, outputs), (b, others) = one, other
    sizes = " and of ".join(map(str, microbatches.sizes))
    what = f"{a}: its body, traced for microbatches of {sizes} rows ({microbatches.count} of {microbatches.rows}),"
    for name in {**a.variables, **b.variables}:
        first, second = (str(t.variables[name].type) if name in t.variables else "nothing" for t in (a, b))
        if first != second:
            raise JobError(
                f'{what} declares variable "{name}" as {first} in the first trace and as {second} in the second; '
                f"declare it with a type that does not depend on the batch"
            )
    counts = {
        "results": (len(outputs), len(others)),
        "watches": (len(a.watches), len(b.watches)),
        "assigned variables": (len(a.updates), len(b.updates)),
        "losses": tuple(len(t.training.losses) if t.training else 0 for t in (a, b)),
    }
    for word, (n, m) in counts.items():
        if n != m:
            raise JobError(
                f"{what} has {n} {word} in the first trace and {m} in the second; make their number independent of the rows and of outside values"
            )
    for x, y in zip(outputs, others, strict=True):
        if joined and x.shape[1:] != y.shape[1:]:
            raise JobError(
                f"{what} returns {x.tensor_type} and {y.tensor_type}, which cannot be concatenated along axis 0; use microbatches of equal size"
            )


class _Unrolling:
    """A rewriter that copies the bodies of all microbatches into one program."""

    def __init__(self, microbatches: Microbatches, bodies: Sequence[_Body]) -> None:
        program = bodies[0].program
        self.tracer, self.microbatches = Tracer.onward(replace(program, nodes=())), microbatches
        self.training = check_losses(program)
        self.bodies = bodies
        self.of_size = {body.rows: body for body in bodies}
        trained = {name for optimizer in self.training.optimizers for name in optimizer.selects(list(bodies[0].gradients))}
        #: variables that the body assigns, except those of optimizers
        self.written = [name for name in program.updates if name not in trained]
        #: assigned variables that a microbatch passes to the next
        parts = bodies[0].parts
        self.assigned = [name for name in self.written if parts is None or isinstance(parts.updates[name], Statistic)]
        #: values of the whole batch, in the order of `Parts.gathered`, and the arguments cut into microbatches
        self.gathered: list[Value] = []
        self.cut: dict[tuple[int, str], Sequence[Value]] = {}
        #: assigned variables after the last microbatch
        self.state: dict[str, Value] = {}
        #: variables before the run
        self.reads: dict[str, Value] = {}
        self.inputs: dict[str, Value] = {}
        #: variable -> placement -> accumulated gradient
        self.totals: dict[str, dict[Placement, Value]] = {}

    def run(self) -> LogicalProgram:
        tracer, spans = self.tracer, self.microbatches.spans
        for body in self.bodies:
            self._find_copied(body)
        for name, part in self.bodies[0].parts.gathered.items() if self.bodies[0].parts is not None else ():
            self._gather(name, part)
        passes = [self._pass(i, self.of_size[stop - start], start) for i, (start, stop) in enumerate(spans)]
        results = [self._result(at, passes) for at in range(len(self.bodies[0].outputs))]
        if self.bodies[0].parts is not None:
            parts = self.bodies[0].parts.updates
            self.state |= {name: self._update(name, parts[name], passes) for name in self.written if name not in self.assigned}
        tracer.inputs, tracer.reads, tracer.updates = self.inputs, self.reads, dict(self.state)
        tracer.rows = ()  # the lengths of arguments do not apply to microbatches
        first = self.bodies[0]
        update_variables(tracer, self.training, self._gradients(), first.raised)
        return LogicalProgram(tracer.graph([value for result in results for value in result]), first.watches, tuple(map(len, results)))

    def _find_copied(self, body: _Body) -> None:
        """Collect the nodes to copy: all nodes that depend on the rows, or on a variable that the previous microbatch assigned.

        Nodes of a region are always copied, so that their outputs can be dropped and recomputed.
        """
        assigned = {
            value for node in body.program.nodes if isinstance(node.op, ReadVariable) and node.op.key in self.assigned for value in node.outputs
        }
        for node in body.program.nodes:
            if isinstance(node.op, ReadVariable):
                continue
            if body.parts is not None and node.name in body.parts.gathered:
                continue
            varies = self._begins(body, node) or any(value in body.varying or value in assigned for value in node.inputs)
            if varies:
                body.varying.update(node.outputs)
            repeated = node.provenance.region is not None and not node.op.external
            if varies or repeated or any(value.node in body.copied for value in node.inputs):
                body.copied.add(node)
                body.names.add(node.name)

    def _begins(self, body: _Body, node: Node) -> bool:
        """Return True for a node without inputs whose output has rows: a cut argument, or random values per row."""
        if isinstance(node.op, Input):
            return node.op.key in self.microbatches.arguments
        if body.parts is not None:
            return isinstance(node.op, Source) and node.name in body.parts.placed and isinstance(body.parts.placed[node.name][1], Split)
        return isinstance(node.op, Source) and body.times.get(node) is not None

    # ---------------------------------------------------------------- the whole batch

    def _gather(self, name: str, part: Part) -> None:
        """Record the computation of a value of the whole batch, before the first microbatch."""
        nodes = {body.rows: next(node for node in body.program.nodes if node.name == name) for body in self.bodies}
        each = [
            self._value_ahead(self.of_size[stop - start], nodes[stop - start].inputs[0], number, start)
            for number, (start, stop) in enumerate(self.microbatches.spans)
        ]
        with self.tracer.standing_for(nodes[self.bodies[0].rows]):
            total = combined(part, each)
        for body in self.bodies:
            body.shared[nodes[body.rows].outputs[0]] = total

    def _value_ahead(self, body: _Body, target: Value, microbatch: int, start: int) -> Value:
        """Record the computation of `target` for one microbatch before the first microbatch, as a contribution to a value of the whole batch."""
        needed = leading_to(target)
        now: dict[Value, Value] = {}

        def take(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
            if node not in body.copied or isinstance(node.op, Input):
                return self._outputs(body, node, inputs, microbatch, start)
            op = self._placed(body, node, microbatch, start) if node in body.times else node.op
            provenance = replace(node.provenance, region=None)
            return self.tracer.again(node, inputs, op=op, provenance=provenance, suffix=f"#{microbatch}.{target.name}")

        walk([node for node in body.program.nodes if node in needed], take, now)
        return now[target]

    def _update(self, name: str, part: Part, passes: Sequence[Mapping[Value, Value]]) -> Value:
        """Return the new value of a variable, combined from all microbatches."""
        sizes = [stop - start for start, stop in self.microbatches.spans]
        each = [now[self.of_size[size].program.updates[name]] for now, size in zip(passes, sizes, strict=True)]
        with self.tracer.standing_for(self.bodies[0].program.updates[name].node):
            return combined(part, each)

    # ---------------------------------------------------------------- one microbatch

    def _pass(self, microbatch: int, body: _Body, start: int) -> dict[Value, Value]:
        """Copy the body for the microbatch that begins with row `start`; return the copy of each value."""
        now: dict[Value, Value] = {}
        names: dict[Value, list[str]] = {}  # terms on different placements are accumulated separately
        for name, value in body.gradients.items():
            for part in addends(value):
                names.setdefault(part, []).append(name)

        def take(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
            outputs = self._outputs(body, node, inputs, microbatch, start)
            for value, gradient in zip(node.outputs, outputs, strict=True):
                for name in names.get(value, ()):
                    self._add(name, gradient, microbatch)
            return outputs

        walk(body.program.nodes, take, now)
        self.state.update({name: now[body.program.updates[name]] for name in self.assigned})
        return now

    def _outputs(self, body: _Body, node: Node, inputs: tuple[Value, ...], microbatch: int, start: int) -> Sequence[Value]:
        """Return the values that replace the outputs of a body's node in a microbatch."""
        if isinstance(node.op, ReadVariable):
            return (self._read(node, node.op.key),)
        if node in body.copied:
            return self._copy(body, node, inputs, microbatch, start)
        if node.outputs[0] not in body.shared:
            body.shared.update(zip(node.outputs, self._share(body, node, inputs), strict=True))
        return [body.shared[value] for value in node.outputs]

    def _read(self, node: Node, name: str) -> Value:
        """Return the value of a variable at the start of this microbatch."""
        if name not in self.reads:
            (self.reads[name],) = self.tracer.again(node, ())
        return self.state.get(name, self.reads[name])

    def _share(self, body: _Body, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        if not isinstance(node.op, Input):
            return self.tracer.again(node, inputs, provenance=body.backward.provenance(node))
        if node.op.key not in self.inputs:
            (self.inputs[node.op.key],) = self.tracer.again(node, ())
        return (self.inputs[node.op.key],)

    def _copy(self, body: _Body, node: Node, inputs: tuple[Value, ...], microbatch: int, start: int) -> Sequence[Value]:
        if node.op.alias:
            with self.tracer.standing_for(node, microbatch):
                value = node.op.unwritten(*inputs)
            assert isinstance(value, Value)
            return (value,)
        op, suffix = node.op, f"#{microbatch}"
        if isinstance(op, Input) and (microbatch, op.key) in self.cut:
            return self.cut[microbatch, op.key]
        if isinstance(op, Input) and self.microbatches.within:
            self.cut[microbatch, op.key] = self._rows(node, op, microbatch, start)
            return self.cut[microbatch, op.key]
        if isinstance(op, Input):
            key = op.key
            op = op.rows(start, start + body.rows)
            suffix = f"[{start}:{start + body.rows}]"
        elif op.by_position or node in body.times:
            op = self._placed(body, node, microbatch, start)
        provenance = body.backward.provenance(node)
        provenance = replace(provenance, microbatch=microbatch, gradients=tuple(self._end(body, end, suffix) for end in provenance.gradients))
        outputs = self.tracer.again(node, inputs, op=op, provenance=provenance, suffix=suffix)
        if isinstance(op, Input):
            (self.inputs[op.key],) = self.cut[microbatch, key] = outputs
        return outputs

    def _rows(self, node: Node, op: Input, microbatch: int, start: int) -> Sequence[Value]:
        """Select the rows of a microbatch from a whole argument; arguments may differ in length if all microbatches have one size."""
        length, equal = op.shape[0], len(self.microbatches.sizes) == 1
        if op.key not in self.inputs:
            rows = self.microbatches.count * length if equal else self.microbatches.rows
            (self.inputs[op.key],) = self.tracer.again(node, (), op=replace(op, shape=(rows, *op.shape[1:])))
        start = microbatch * length if equal else start
        provenance = replace(node.provenance, microbatch=microbatch)
        end = start + length
        return self.tracer.again(node, (self.inputs[op.key],), op=Rows(start, end), provenance=provenance, suffix=f"[{start}:{end}]")

    @staticmethod
    def _end(body: _Body, end: End | None, suffix: str) -> End | None:
        """Return `end` with the name of the copied node; unchanged if its node is not copied."""
        return replace(end, node=end.node + suffix) if end is not None and end.node in body.names else end

    def _placed(self, body: _Body, node: Node, microbatch: int, start: int) -> Op:
        """Return the node's op for the rows of the batch that begin at `start`."""
        if not node.outputs[0].shape:
            return node.op
        if body.parts is not None and body.times[node] is None:
            return self._placed_along(body, node, start)
        length, *rest = node.outputs[0].shape
        times = body.times[node]
        if times is None:  # no rows: concatenate the values of all microbatches
            first, whole = microbatch * length, self.microbatches.count * length
        else:
            shared = _sharing(body.program, node.outputs[0], self.microbatches) > 1  # each microbatch is divided among the ranks
            first, whole = start * times, length if shared else max(self.tracer.rows, default=self.microbatches.rows) * times
        op = node.op if body.parts is None else body.parts.placed[node.name][0]
        return op.localize((), (Box(((first, first + length), *((0, n) for n in rest)), (whole, *rest)),))

    def _placed_along(self, body: _Body, node: Node, start: int) -> Op:
        """Return the node's op for the rows of a microbatch that begin at `start`, along any axis; unchanged if the value has no rows."""
        assert body.parts is not None
        value = node.outputs[0]
        op, part = body.parts.placed.get(node.name, (node.op, B))
        if not isinstance(part, Split):
            return node.op
        spans, whole = [(0, n) for n in value.shape], list(value.shape)
        times = value.shape[part.axis] // body.rows
        spans[part.axis] = (start * times, (start + body.rows) * times)
        whole[part.axis] = self.microbatches.rows * times
        return op.localize((), (Box(tuple(spans), tuple(whole)),))

    def _add(self, name: str, gradient: Value, microbatch: int) -> None:
        """Add a microbatch's gradient of a variable to the sum on its placement."""
        here = gradient.node.placement
        totals = self.totals.setdefault(name, {})
        if here not in totals:
            totals[here] = gradient
            return
        read = self.reads[name].node
        provenance = Provenance(read.where, "backward", totals[here].node.provenance.stage, microbatch)
        label = f"{name}.gradient#{microbatch}" if here == read.placement else f"{name}.gradient#{microbatch}@{here}"
        (totals[here],) = self.tracer.add(Add(), (totals[here], gradient), label, here, provenance)

    def _gradients(self) -> dict[str, Value]:
        """Return the gradients of variables, summed over all microbatches and placements."""
        gradients: dict[str, Value] = {}
        for name in self.bodies[0].gradients:
            with self.tracer.gradients_of(self.reads[name].node):
                gradients[name] = added(list(self.totals[name].values()))
        return gradients

    # ---------------------------------------------------------------- results

    def _result(self, at: int, passes: Sequence[Mapping[Value, Value]]) -> list[Value]:
        """Return the values of the body's output `at`: one value for the batch, or one per microbatch that the caller concatenates."""
        body = self.bodies[0]
        value, number = body.outputs[at], at - len(body.outputs) + len(body.watches)
        sizes = [stop - start for start, stop in self.microbatches.spans]
        each = [now[self.of_size[size].outputs[at]] for now, size in zip(passes, sizes, strict=True)]
        with self.tracer.standing_for(value.node):
            if body.parts is not None:
                return self._joined(at, each, body.parts)
            if number >= 0 and body.watches[number].gradient and body.watches[number].value not in body.varying:
                return [added(each)]
            if value not in body.varying:
                return each[:1]
            if (
                not value.local
                and not self.microbatches.within
                and _times([body.outputs[at] for body in self.bodies], self.microbatches.sizes) is not None
            ):
                return each
            return [recorded(concat([one if one.shape else reshape(one, (1,)) for one in each]))]

    def _joined(self, at: int, each: list[Value], parts: Parts) -> list[Value]:
        """Return the values of one output of the batch: one value, or one per microbatch that the caller concatenates."""
        body = self.bodies[0]
        number = at - len(body.outputs) + len(body.watches)
        if number < 0:
            part = parts.outputs[at]
        else:
            watch = body.watches[number]
            part = parts.watches[body.program.watches.index(watch)]
            if watch.gradient and not isinstance(part, Split):
                part = B if isinstance(part, Partial) else P
        separate = part == Split(0) and not body.outputs[at].local and not self.microbatches.within and len(set(each)) == len(each)
        return each if separate else [combined(part, each)]
