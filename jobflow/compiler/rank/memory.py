"""Ordered program -> plan: every item gets an address.

Policy.  A view is a window on its root and costs no instruction.  What is joined is made in place where its memory is free to
choose.  Roots live from the step that writes them to the last that reads them or a view of them; largest first, each takes the
lowest offset at which no root with an overlapping life lies.  What a collective reads goes to the buffer ``shared``, which the
other ranks of the node see, all else to ``arena``; variables have their place already.

Example: y = relu(x w + b) with three steps: x w is dead after the addition, so relu writes over it.
"""

from __future__ import annotations

from dataclasses import field
from threading import local

import numpy as np

from jobflow.compiler.rank.format import format_items
from jobflow.compiler.rank.local import Collect, Item, Join, Receive, Send, Step, WaitFor
from jobflow.compiler.rank.order import Ordered
from jobflow.compiler.rank.place import communicated, overwritten, placements
from jobflow.compiler.rank.views import StridedWindow, is_dense, is_free, views_of, windows, written_over
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.core.types import contiguous_strides
from jobflow.ops.layout_ops import Copy
from jobflow.ops.op import Op
from jobflow.plan import plan as plans
from jobflow.plan.plan import Collective, Compute, Feed, Instruction, Plan, Slot, Transfer, aligned
from jobflow.plan.plan_checks import Access, verify_memory, verify_order, verify_writes


def plan_memory(ordered: Ordered) -> Plan:
    """The plan of one rank, verified."""
    known, _asked.planning = _asked.planning, None
    return (known if known is not None and known.ordered is ordered else _planning(ordered)).run()


def homes_of(ordered: Ordered) -> tuple[dict[Item, Item], dict[Item, Item], frozenset[Step]]:
    """For every item the one in whose memory it would lie, the part of a join that it would be there, and the steps that would have nothing to do."""
    planning = _asked.planning = _planning(ordered)
    homes, parts = ({item: way(item) for item in planning.windows} for way in (planning.home, planning.part))
    return homes, parts, frozenset(planning.free)


def _planning(ordered: Ordered) -> _Planning:
    found = _Planning(ordered)
    found.lay_out()
    return found


class _Asked(local):
    """The program that this thread has asked `homes_of` about last, laid out: it is often planned next."""

    planning: _Planning | None = None


_asked = _Asked()


@dataclass
class _Planning:
    ordered: Ordered
    #: root -> (the root it lies in, bytes into it)
    inside: dict[Item, tuple[Item, int]] = field(default_factory=dict)
    #: those of them that are parts of a join
    parts: set[Item] = field(default_factory=set)
    slots: dict[Item, Slot] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    begun: set[Item] = field(default_factory=set)

    def lay_out(self) -> None:
        """Which items lie in each other's memory."""
        program = self.ordered.program
        self.steps = (*self.ordered.body, *self.ordered.epilogue)
        self.arguments = [argument.item for argument in program.arguments]
        orders = format_items(program)
        roots = [*program.reads.values(), *_stored(self.steps), *self.arguments]
        fetched, told = {item for _, item in program.fetches}, communicated(self.steps)
        alone = windows(self.steps, roots, orders)
        placed = placements(self.steps, alone, fetched | told | set(self.arguments), orders, program.target.patterns.formats)
        self.windows: dict[Item, StridedWindow] = windows(self.steps, roots, orders, placed) if placed else alone
        self.updated = views_of(self.steps, set(written_over(self.steps)))
        self._join()
        kept = set(map(self.home, (*fetched, *told, *self.arguments)))
        overwritten(self.steps, self.windows, self.home, kept, self.inside)
        self.free = {step for step in self.steps if is_free(step, self.windows)}

    def run(self) -> Plan:
        program = self.ordered.program
        sizes, needed = self._allocate()
        feeds = tuple(Feed(a.key, self.slot(a.item), a.box) for a in program.arguments)
        stored = [item for item in self.windows if item.slot is not None]
        self.accesses.append(Access("arguments", (), tuple((self.key(i), self.slot(i)) for i in (*self.arguments, *stored))))
        body = tuple(self._instructions(self.ordered.body))
        epilogue = tuple(self._instructions(self.ordered.epilogue))
        fetches = tuple((position, self.slot(item)) for position, item in program.fetches)
        self.accesses.append(Access("outputs", tuple((self.key(item), self.slot(item)) for _, item in program.fetches), ()))
        variables = {name: self.slot(item) for name, item in program.reads.items()}
        plan = Plan(program.job, program.rank, sizes, feeds, body, epilogue, fetches, variables, program.schedule, needed)
        verify_memory(self.accesses)
        verify_order(plan)
        verify_writes(plan)
        return plan

    # ---------------------------------------------------------------- places

    def home(self, item: Item) -> Item:
        """The root whose memory an item lies in, joins included."""
        root = self.windows[item].root
        while root in self.inside:
            root = self.inside[root][0]
        return root

    def part(self, item: Item) -> Item:
        """The same, or the part of a join that it lies in: parts do not share memory."""
        root = self.windows[item].root
        while root in self.inside and root not in self.parts:
            root = self.inside[root][0]
        return root

    def key(self, item: Item) -> int:
        """Names a value for the verifier: what is joined is one value, what is written over another is a new one.

        Variables as they are before the run lie end to end on purpose and count as one.
        """
        if item in self.updated:
            return id(self.updated[item])
        root = self.windows[item].root
        while root in self.parts:
            root = self.inside[root][0]
        return 0 if root.slot is not None else id(root)

    def slot(self, item: Item) -> Slot:
        window = self.windows[item]
        offset, root = window.offset, window.root
        while root in self.inside:
            root, shift = self.inside[root]
            offset += shift
        base = root.slot or self.slots[root]
        return Slot(base.buffer, base.offset + offset, item.type, window.strides)

    def _join(self) -> None:
        """Let what is joined be made where it will lie, if its memory is its own and in the right order."""
        taken = set(self.arguments)
        for step in self.steps:
            if not isinstance(step.action, Join):
                continue
            for part, offset in zip(step.inputs, step.action.offsets, strict=True):
                window = self.windows[part]
                root = window.root
                whole = window.offset == 0 and root.type.nbytes == part.type.nbytes and is_dense(part.type, window)
                if whole and root.slot is None and root not in taken:
                    self.inside[root] = (step.outputs[0], offset)
                    self.parts.add(root)
                    taken.add(root)

    def _lives(self) -> dict[Item, list[int]]:
        """First and last step of every root that needs memory."""
        lives: dict[Item, list[int]] = {}

        def touch(item: Item, at: int) -> None:
            home = self.home(item)
            if home.slot is None:
                life = lives.setdefault(home, [at, at])
                life[0], life[1] = min(life[0], at), max(life[1], at)

        for item in self.arguments:
            touch(item, -1)
        for at, step in enumerate(self.steps):
            if step not in self.free:
                for item in (*step.inputs, *step.outputs):
                    touch(item, at)
        for _, item in self.ordered.program.fetches:
            touch(item, len(self.steps))
        return lives

    def _allocate(self) -> tuple[dict[str, int], dict[str, int]]:
        """The bytes of each buffer, and what its values need at the fullest moment."""
        lives = self._lives()
        shared = {self.home(item) for step in self.steps if isinstance(step.action, Collect | Send) for item in step.inputs}
        sizes: dict[str, int] = {}
        needed: dict[str, int] = {}
        for buffer in ("arena", "shared"):
            roots = [root for root in lives if (root in shared) == (buffer == "shared")]
            order = {root: i for i, root in enumerate(lives)}
            roots.sort(key=lambda root: (-root.type.nbytes, order[root]))
            sizes[buffer] = self._place(buffer, roots, lives)
            needed[buffer] = self._fullest(roots, lives)
        return sizes, needed

    def _fullest(self, roots: list[Item], lives: dict[Item, list[int]]) -> int:
        """The most bytes of roots that live at once."""
        change = np.zeros(len(self.steps) + 3, np.int64)  # from the arguments, at -1, to the results
        for root in roots:
            first, last = lives[root]
            change[first + 1] += root.type.nbytes
            change[last + 2] -= root.type.nbytes
        return int(np.cumsum(change).max())

    def _place(self, buffer: str, roots: list[Item], lives: dict[Item, list[int]]) -> int:
        placed = np.empty((4, len(roots)), np.int64)  # offset, stop, first, last
        size = 0
        for count, root in enumerate(roots):
            first, last = lives[root]
            need = aligned(max(root.type.nbytes, 1), self.ordered.program.target.alignment)
            starts, stops, begins, ends = placed[:, :count]
            at_once = np.flatnonzero((begins <= last) & (first <= ends))
            at_once = at_once[starts[at_once].argsort()]
            behind = np.concatenate(([0], np.maximum.accumulate(stops[at_once])))  # where memory may be free: before each of them, and after all
            gaps = np.flatnonzero(behind[:-1] + need <= starts[at_once])
            offset = int(behind[gaps[0] if gaps.size else -1])
            window = self.windows[root]
            self.slots[root] = Slot(buffer, offset, root.type, window.strides)
            placed[:, count] = offset, offset + need, first, last
            size = max(size, offset + need)
        return size

    # ---------------------------------------------------------------- instructions

    def _instructions(self, steps: tuple[Step, ...]) -> list[Instruction]:
        found: list[Instruction] = []
        for step in steps:
            if step in self.free:
                continue
            if isinstance(step.action, Join):
                found.extend(self._copies(step))
                continue
            inputs, outputs = tuple(map(self.slot, step.inputs)), tuple(map(self.slot, step.outputs))
            self._note(step, step.inputs, step.outputs)
            found.append(_instruction(step, inputs, outputs))
        return found

    def _copies(self, step: Step) -> list[Instruction]:
        """What a join must copy because it could not be made in place."""
        assert isinstance(step.action, Join)
        found: list[Instruction] = []
        (joined,) = step.outputs
        home = self.slot(joined)
        for part, offset in zip(step.inputs, step.action.offsets, strict=True):
            strides = contiguous_strides(part.type.shape, part.type.dtype.itemsize)
            target = Slot(home.buffer, home.offset + offset, part.type, strides)
            source = self.slot(part)
            if (source.buffer, source.offset) == (target.buffer, target.offset):  # made in place
                continue
            found.append(Compute(Copy(), (source,), (target,), part.name, step.where, step.phase))
            new = tuple((self.key(item), self.slot(item)) for item in self._new_homes((joined,)))
            self.accesses.append(Access(part.name, ((self.key(part), source),), (*new, (self.key(joined), target))))
        return found

    def _new_homes(self, items: tuple[Item, ...]) -> list[Item]:
        """The homes whose life begins with these items: all their bytes are theirs from here on, gaps between joined parts too."""
        homes = [home for home in dict.fromkeys(map(self.home, items)) if home not in self.begun]
        self.begun.update(homes)
        return homes

    def _note(self, step: Step, inputs: tuple[Item, ...], outputs: tuple[Item, ...]) -> None:
        reads = tuple((self.key(item), self.slot(item)) for item in inputs)
        if isinstance(step.action, WaitFor) and isinstance(step.action.post, Receive):  # until then nobody may read what is under way
            self.accesses.append(Access(step.name, tuple((_under_way(step.action.post), slot) for _, slot in reads), reads))
            return
        if isinstance(step.action, Receive):
            homes = tuple((self.key(item), self.slot(item)) for item in self._new_homes(outputs))
            self.accesses.append(Access(step.name, (), (*homes, *((_under_way(step.action), self.slot(item)) for item in outputs))))
            return
        writes = tuple((self.key(item), self.slot(item)) for item in (*self._new_homes(outputs), *outputs))
        self.accesses.append(Access(f"{step.name} ({step.action})", reads, writes))


def _under_way(receive: Receive) -> int:
    """The key of what is being received."""
    return -1 - receive.order


def _stored(steps: tuple[Step, ...]) -> list[Item]:
    """Items with a given place that no step makes."""
    return list(dict.fromkeys(item for step in steps for item in step.inputs if item.slot is not None))


def _instruction(step: Step, inputs: tuple[Slot, ...], outputs: tuple[Slot, ...]) -> Instruction:
    match step.action:
        case Op() as op:
            return Compute(op, inputs, outputs, step.name, step.where, step.phase)
        case Collect(kind, ranks, counts, receives, reduce, order):
            return Collective(kind, ranks, inputs[0], outputs[0], counts, receives, reduce, order, step.name, step.where, step.phase)
        case Send(peer, order):
            return Transfer(peer, True, inputs[0], order, step.name, step.where)
        case Receive(peer, order):
            return Transfer(peer, False, outputs[0], order, step.name, step.where)
        case WaitFor(Send(peer, order)):
            return plans.Wait(peer, True, inputs[0], order, step.name, step.where)
        case WaitFor(Receive(peer, order)):
            return plans.Wait(peer, False, inputs[0], order, step.name, step.where)
    raise PlanError(f"{step.name} at {step.where}: {step.action} is not an instruction")
