"""Ordered program -> plan: every value gets an address.

A view is a window on its root and costs no instruction.  Inputs of a join are computed in place if their memory is not fixed.
A root lives from the instruction that writes it to the last one that reads it or a view of it.  In order of decreasing size, each
root is assigned the lowest offset without a conflict with a root of overlapping lifetime.  Values that a collective reads are in the
buffer ``shared``, which other ranks of the node can read, all others in ``arena``.  Variables have fixed addresses.

Example: y = relu(x w + b) with three instructions: x w is dead after the addition, so relu reuses its memory.
"""

from __future__ import annotations

from dataclasses import field
from threading import local

import numpy as np

from jobflow.compiler.rank.buffer_reuse import communicated, placements, reuse_buffers
from jobflow.compiler.rank.format import memory_orders
from jobflow.compiler.rank.local import Collect, Join, LocalInstruction, LocalValue, Receive, Send, WaitFor
from jobflow.compiler.rank.order import Ordered
from jobflow.compiler.rank.row_padding import padded_rows
from jobflow.compiler.rank.views import Orders, StridedWindow, is_dense, is_free, reserved_bytes, views_of, windows, written_over
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.core.types import contiguous_strides
from jobflow.ops.layout_ops import Copy
from jobflow.ops.op import Op
from jobflow.plan import plan as plans
from jobflow.plan.plan import Collective, Completion, Compute, Feed, Instruction, Plan, Slot, Transfer, aligned
from jobflow.plan.plan_checks import Access, verify_memory, verify_order, verify_writes


def plan_memory(ordered: Ordered) -> Plan:
    """Return the verified plan of one rank."""
    known, _last.planning = _last.planning, None
    return (known if known is not None and known.ordered is ordered else _planning(ordered)).run()


def allocations_of(ordered: Ordered) -> tuple[dict[LocalValue, LocalValue], dict[LocalValue, LocalValue], frozenset[LocalInstruction]]:
    """Return the allocation of each value, a second mapping with parts of joins as separate allocations, and the instructions that do no work."""
    planning = _last.planning = _planning(ordered)
    allocations, parts = ({value: way(value) for value in planning.windows} for way in (planning.allocation, planning.part))
    return allocations, parts, frozenset(planning.free)


def _planning(ordered: Ordered) -> _Planning:
    planning = _Planning(ordered)
    planning.lay_out()
    return planning


class _LastPlanning(local):
    """The planning of the last program for which this thread called `allocations_of`; `plan_memory` continues it for the same program."""

    planning: _Planning | None = None


_last = _LastPlanning()


@dataclass
class _Planning:
    ordered: Ordered
    #: root -> (the root that contains it, byte offset)
    inside: dict[LocalValue, tuple[LocalValue, int]] = field(default_factory=dict)
    #: roots that are parts of a join
    parts: set[LocalValue] = field(default_factory=set)
    slots: dict[LocalValue, Slot] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    begun: set[LocalValue] = field(default_factory=set)

    def lay_out(self) -> None:
        """Choose which values share memory."""
        program = self.ordered.program
        self.steps = (*self.ordered.body, *self.ordered.epilogue)
        self.arguments = [argument.value for argument in program.arguments]
        orders: Orders = memory_orders(program)
        roots = [*program.reads.values(), *_stored(self.steps), *self.arguments]
        fetched, sent = {value for _, value in program.fetches}, communicated(self.steps)
        default_windows = windows(self.steps, roots, orders)
        fixed, formats = fetched | sent | set(self.arguments), program.target.patterns.formats
        padded = padded_rows(self.steps, roots, orders, default_windows, fixed, formats)
        if padded:
            orders = {**orders, **padded}
            default_windows = windows(self.steps, roots, orders)
        placed = placements(self.steps, default_windows, fixed, orders, formats)
        self.windows: dict[LocalValue, StridedWindow] = windows(self.steps, roots, orders, placed) if placed else default_windows
        self.updated = views_of(self.steps, set(written_over(self.steps)))
        self._join()
        pinned = set(map(self.allocation, (*fetched, *sent, *self.arguments)))
        reuse_buffers(self.steps, self.windows, self.allocation, pinned, self.inside)
        self.free = {step for step in self.steps if is_free(step, self.windows)}

    def run(self) -> Plan:
        program = self.ordered.program
        sizes, needed = self._allocate()
        feeds = tuple(Feed(a.key, self.slot(a.value), a.box) for a in program.arguments)
        stored = [value for value in self.windows if value.slot is not None]
        self.accesses.append(Access("arguments", (), tuple((self.key(i), self.slot(i)) for i in (*self.arguments, *stored))))
        body = tuple(self._instructions(self.ordered.body))
        epilogue = tuple(self._instructions(self.ordered.epilogue))
        fetches = tuple((position, self.slot(value)) for position, value in program.fetches)
        self.accesses.append(Access("outputs", tuple((self.key(value), self.slot(value)) for _, value in program.fetches), ()))
        variables = {name: self.slot(value) for name, value in program.reads.items()}
        plan = Plan(program.job, program.rank, sizes, feeds, body, epilogue, fetches, variables, program.schedule, needed, program.shadows)
        verify_memory(self.accesses)
        verify_order(plan)
        verify_writes(plan)
        return plan

    # ---------------------------------------------------------------- places

    def allocation(self, value: LocalValue) -> LocalValue:
        """Return the root whose memory contains the value; the memory of a join contains its parts."""
        root = self.windows[value].root
        while root in self.inside:
            root = self.inside[root][0]
        return root

    def part(self, value: LocalValue) -> LocalValue:
        """Return the root whose memory contains the value; parts of a join are separate roots, because they share no memory."""
        root = self.windows[value].root
        while root in self.inside and root not in self.parts:
            root = self.inside[root][0]
        return root

    def key(self, value: LocalValue) -> int:
        """Return the value's key for the verifier: a join is one value, and the result of an in-place update is a new value.

        All values with fixed memory, such as variables before the run, have one key, because they may be adjacent.
        """
        if value in self.updated:
            return id(self.updated[value])
        root = self.windows[value].root
        while root in self.parts:
            root = self.inside[root][0]
        return 0 if root.slot is not None else id(root)

    def slot(self, value: LocalValue) -> Slot:
        window = self.windows[value]
        offset, root = window.offset, window.root
        while root in self.inside:
            root, shift = self.inside[root]
            offset += shift
        base = root.slot or self.slots[root]
        return Slot(base.buffer, base.offset + offset, value.type, window.strides)

    def _join(self) -> None:
        """Place each dense input of a join into the output, unless the memory of the input is fixed."""
        fixed = set(self.arguments)
        for step in self.steps:
            if not isinstance(step.action, Join):
                continue
            for part, offset in zip(step.inputs, step.action.offsets, strict=True):
                window = self.windows[part]
                root = window.root
                whole = window.offset == 0 and root.type.nbytes == part.type.nbytes and is_dense(part.type, window)
                if whole and root.slot is None and root not in fixed:
                    self.inside[root] = (step.outputs[0], offset)
                    self.parts.add(root)
                    fixed.add(root)

    def _lifetimes(self) -> dict[LocalValue, list[int]]:
        """Return the first and last position of every root that needs memory."""
        lifetimes: dict[LocalValue, list[int]] = {}

        def touch(value: LocalValue, at: int) -> None:
            allocation = self.allocation(value)
            if allocation.slot is None:
                life = lifetimes.setdefault(allocation, [at, at])
                life[0], life[1] = min(life[0], at), max(life[1], at)

        for value in self.arguments:
            touch(value, -1)
        for at, step in enumerate(self.steps):
            if step not in self.free:
                for value in (*step.inputs, *step.outputs):
                    touch(value, at)
        for _, value in self.ordered.program.fetches:
            touch(value, len(self.steps))
        return lifetimes

    def _allocate(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the size in bytes of each buffer, and the peak of its live bytes."""
        lifetimes = self._lifetimes()
        shared = {self.allocation(value) for step in self.steps if isinstance(step.action, Collect | Send) for value in step.inputs}
        sizes: dict[str, int] = {}
        needed: dict[str, int] = {}
        for buffer in ("arena", "shared"):
            roots = [root for root in lifetimes if (root in shared) == (buffer == "shared")]
            order = {root: i for i, root in enumerate(lifetimes)}
            roots.sort(key=lambda root: (-self._bytes(root), order[root]))
            sizes[buffer] = self._assign(buffer, roots, lifetimes)
            needed[buffer] = self._peak(roots, lifetimes)
        return sizes, needed

    def _bytes(self, root: LocalValue) -> int:
        """Return the number of bytes that a root occupies."""
        return reserved_bytes(root.type, self.windows[root].strides)

    def _peak(self, roots: list[LocalValue], lifetimes: dict[LocalValue, list[int]]) -> int:
        """Return the largest number of bytes that these roots occupy at any instruction."""
        change = np.zeros(len(self.steps) + 3, np.int64)  # positions from -1 (arguments) to the results
        for root in roots:
            first, last = lifetimes[root]
            change[first + 1] += self._bytes(root)
            change[last + 2] -= self._bytes(root)
        return int(np.cumsum(change).max())

    def _assign(self, buffer: str, roots: list[LocalValue], lifetimes: dict[LocalValue, list[int]]) -> int:
        placed = np.empty((4, len(roots)), np.int64)  # offset, stop, first, last
        size = 0
        for count, root in enumerate(roots):
            first, last = lifetimes[root]
            need = aligned(max(self._bytes(root), 1), self.ordered.program.target.alignment)
            starts, stops, begins, ends = placed[:, :count]
            at_once = np.flatnonzero((begins <= last) & (first <= ends))
            at_once = at_once[starts[at_once].argsort()]
            behind = np.concatenate(([0], np.maximum.accumulate(stops[at_once])))  # candidates: the gap before each root, and after all
            gaps = np.flatnonzero(behind[:-1] + need <= starts[at_once])
            offset = int(behind[gaps[0] if gaps.size else -1])
            window = self.windows[root]
            self.slots[root] = Slot(buffer, offset, root.type, window.strides)
            placed[:, count] = offset, offset + need, first, last
            size = max(size, offset + need)
        return size

    # ---------------------------------------------------------------- instructions

    def _instructions(self, steps: tuple[LocalInstruction, ...]) -> list[Instruction]:
        result: list[Instruction] = []
        for step in steps:
            if step in self.free:
                continue
            if isinstance(step.action, Join):
                result.extend(self._copies(step))
                continue
            inputs, outputs = tuple(map(self.slot, step.inputs)), tuple(map(self.slot, step.outputs))
            self._note(step, step.inputs, step.outputs)
            result.append(_instruction(step, inputs, outputs))
        return result

    def _copies(self, step: LocalInstruction) -> list[Instruction]:
        """Return the copies of a join for inputs that could not be computed in place."""
        assert isinstance(step.action, Join)
        result: list[Instruction] = []
        (joined,) = step.outputs
        allocation = self.slot(joined)
        for part, offset in zip(step.inputs, step.action.offsets, strict=True):
            strides = contiguous_strides(part.type.shape, part.type.dtype.itemsize)
            target = Slot(allocation.buffer, allocation.offset + offset, part.type, strides)
            source = self.slot(part)
            if (source.buffer, source.offset) == (target.buffer, target.offset):  # computed in place, perhaps by an update
                if part in self.updated:
                    self.accesses.append(Access(part.name, ((self.key(part), source),), ((self.key(joined), target),)))
                continue
            result.append(Compute(Copy(), (source,), (target,), part.name, step.where, step.phase))
            new = tuple((self.key(value), self.slot(value)) for value in self._new_allocations((joined,)))
            self.accesses.append(Access(part.name, ((self.key(part), source),), (*new, (self.key(joined), target))))
        return result

    def _new_allocations(self, values: tuple[LocalValue, ...]) -> list[LocalValue]:
        """Return the allocations that these values are the first to use; an allocation includes the gaps between joined parts."""
        allocations = [allocation for allocation in dict.fromkeys(map(self.allocation, values)) if allocation not in self.begun]
        self.begun.update(allocations)
        return allocations

    def _note(self, step: LocalInstruction, inputs: tuple[LocalValue, ...], outputs: tuple[LocalValue, ...]) -> None:
        reads = tuple((self.key(value), self.slot(value)) for value in inputs)
        if isinstance(step.action, WaitFor) and isinstance(step.action.transfer, Receive):  # no read before the wait
            self.accesses.append(Access(step.name, tuple((_transit_key(step.action.transfer), slot) for _, slot in reads), reads))
            return
        if isinstance(step.action, WaitFor) and isinstance(step.action.transfer, Collect):
            (output,) = step.outputs
            began = (_transit_key(step.action.transfer), self.slot(output))
            left = () if step.action.transfer.in_place else reads[:1]
            self.accesses.append(Access(step.name, (*left, began), ((self.key(output), self.slot(output)),)))
            return
        if isinstance(step.action, Collect) and step.action.concurrent:
            allocations = tuple((self.key(value), self.slot(value)) for value in self._new_allocations(outputs))
            began = (_transit_key(step.action), self.slot(outputs[0]))
            self.accesses.append(Access(f"{step.name} ({step.action})", reads, (*allocations, began)))
            return
        if isinstance(step.action, Receive):
            allocations = tuple((self.key(value), self.slot(value)) for value in self._new_allocations(outputs))
            self.accesses.append(Access(step.name, (), (*allocations, *((_transit_key(step.action), self.slot(value)) for value in outputs))))
            return
        writes = tuple((self.key(value), self.slot(value)) for value in (*self._new_allocations(outputs), *outputs))
        self.accesses.append(Access(f"{step.name} ({step.action})", reads, writes))


def _transit_key(communication: Receive | Collect) -> int:
    """Return the key under which the verifier tracks a value until its communication completes."""
    return -1 - communication.order


def _stored(steps: tuple[LocalInstruction, ...]) -> list[LocalValue]:
    """Return the values with fixed memory that instructions read."""
    return list(dict.fromkeys(value for step in steps for value in step.inputs if value.slot is not None))


def _instruction(step: LocalInstruction, inputs: tuple[Slot, ...], outputs: tuple[Slot, ...]) -> Instruction:
    match step.action:
        case Op() as op:
            return Compute(op, inputs, outputs, step.name, step.where, step.phase)
        case Collect(kind, ranks, counts, receives, reduce, order, concurrent):
            return Collective(kind, ranks, inputs[0], outputs[0], counts, receives, reduce, order, step.name, step.where, step.phase, concurrent)
        case WaitFor(Collect() as collect):
            return Completion(inputs[0], outputs[0], collect.order, step.name, step.where)
        case Send(peer, order):
            return Transfer(peer, True, inputs[0], order, step.name, step.where)
        case Receive(peer, order):
            return Transfer(peer, False, outputs[0], order, step.name, step.where)
        case WaitFor(Send(peer, order)):
            return plans.Wait(peer, True, inputs[0], order, step.name, step.where)
        case WaitFor(Receive(peer, order)):
            return plans.Wait(peer, False, inputs[0], order, step.name, step.where)
    raise PlanError(f"{step.name} at {step.where}: {step.action} has no instruction in the plan; report this as a bug of the compiler")
