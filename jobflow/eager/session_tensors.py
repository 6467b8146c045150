"""Tensors that are variables of a session: those of modules which jobs call.  Tensor and variable have the same numbers.

Where the memory of the variable can be looked at as one array - it lies on hosts, and this process has all of it, or the tensor is global and
shows this rank's piece - the tensor lies in it.  Elsewhere (on a GPU; in pieces on threads) the numbers are fetched when the tensor is asked for
them.  What the program writes to the tensor goes to the variable before that is used the next time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import Array, TensorType
from jobflow.eager.convert import convert_array
from jobflow.eager.state import EagerState, state
from jobflow.eager.tensor import FarHome, Home, TensorBase, has_array, lives, moves
from jobflow.engine.session import Session
from jobflow.graph.ir import Variable
from jobflow.plan.storage import is_common
from jobflow.program.commands import Barrier, ExchangeItems
from jobflow.program.program import state_of
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.world import World


@dataclass(frozen=True, eq=False)
class Tie:
    """A tensor, the variable that it is, and where both lie; None on a rank that has no part of it."""

    variable: Variable
    tensor: TensorBase
    home: Home | None
    #: of the tensor
    type: TensorType
    layout: Layout | None

    @property
    def moved(self) -> bool:
        """Whether the program may have given the tensor other numbers than the variable has."""
        return self.home is not None and has_array(self.tensor) and self.tensor.array is not self.home.array

    def changed(self, where: str) -> str:
        """How the tensor differs from what it was `where` it was tied; "" if it does not."""
        before, now = (f"{type} {layout or 'local'}" for type, layout in ((self.type, self.layout), (self.tensor.tensor_type, self.tensor.layout)))
        return "" if before == now else f"{self.variable.name} was {before} {where} and is {now} now"

    def bring_home(self) -> None:
        """The tensor, whose numbers the variable has taken, lies where that does again."""
        assert self.home is not None
        self.home.come_back()
        lives(self.tensor, self.home)


def relay(here: EagerState, x: TensorBase, lies: Layout, what: str) -> bool:
    """Whether a global tensor lay otherwise than it does from now on, as the variable that it becomes."""
    if x.layout is None or x.layout == lies:
        return False
    before = x.layout if x.storage is None else x.storage.before or x.layout
    x.array, x.layout = convert_array(here, x.array, x.tensor_type, x.layout, lies, what).copy(), lies
    x.storage = None
    x.memory.before = before
    return True


class SessionTensors:
    """Those of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.ties: dict[str, Tie] = {}
        self._names: dict[int, str] = {}

    @classmethod
    def of(cls, session: Session) -> SessionTensors:
        """Those of a session, which has them from now on."""
        if not isinstance(session.tensors, SessionTensors):
            session.tensors = cls(session)
        return session.tensors

    def name_of(self, x: TensorBase) -> str | None:
        """The name of the variable that a tensor is, if it is one."""
        return self._names.get(id(x))

    def __contains__(self, name: str) -> bool:
        return name in self.ties

    # ---------------------------------------------------------------- becoming one

    def tie(self, tensors: Mapping[str, TensorBase]) -> None:
        """Have new variables begin with the numbers of these tensors, which are one from then on."""
        variables = self.session.variables
        for name, x in tensors.items():
            self._check(variables[name], x)
        local = {name: x.array for name, x in tensors.items() if x.layout is None or not self.session.multi}
        self.session.put({name: np.asarray(array, order="C") for name, array in self._of_first(local).items()})
        for name, x in tensors.items():
            self._tied(variables[name], x)
        self._meet(len(local) < len(tensors))

    def _check(self, variable: Variable, x: TensorBase) -> None:
        """JobError for a local tensor of one of several clients that cannot show the variable."""
        world = self._world
        if not world.multi or x.layout is not None:
            return
        outside = set(range(world.size)) - set(variable.placement.ranks)
        if not variable.layout.is_whole or outside:
            lies = f"on {variable.placement} only" if outside else f"in pieces, {variable.layout}"
            raise JobError(
                f"variable {variable.name!r} at {user_line()}: the module has it as a local tensor, whole on every rank, but it is stored {lies}; "
                f"call to_global(placement, sbp.broadcast) on the module before the job, so that its tensors can lie as the variables do"
            )

    def _of_first(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The numbers of the first of several clients, if theirs differ."""
        if not self.session.multi or len(set(self._exchanged(_digests(arrays), "parameters"))) == 1:
            return arrays
        given = dict(arrays) if self._world.ranks[0].index == 0 else None
        return self._exchanged(given, "parameters of rank 0")[0]

    def _tied(self, variable: Variable, x: TensorBase) -> None:
        if self.session.multi and x.layout is not None:
            self._relaid(variable, x)
        home = self._home(variable, x)
        if home is not None:
            moves(x, home)
        self.ties[variable.name] = Tie(variable, x, home, x.tensor_type, x.layout)
        self._names[id(x)] = variable.name

    def _relaid(self, variable: Variable, x: TensorBase) -> None:
        """Give the variable the numbers of a global tensor, which lies as the variable does from now on."""
        here = state()
        relay(here, x, Layout(variable.placement, variable.sbp), f"variable {variable.name}")
        if here.rank.index in variable.placement.ranks:
            self._state(here.rank.index).write(variable.name, x.array)

    def _home(self, variable: Variable, x: TensorBase) -> Home | None:
        """Where a tensor can look at its variable."""
        world, name, lies = self._world, variable.name, variable.placement.ranks
        if world.multi:
            rank = world.ranks[0].index
            if rank not in lies:
                return None
        else:
            rank = lies[0]
        held = self._state(rank)
        if held.device.tag != "cpu" or not (variable.layout.is_whole or (world.multi and x.layout is not None)):
            return FarHome(np.array(x.array), partial(held.read, name) if world.multi else partial(self._whole, name))
        slot = held.slots[name]
        copies = not is_common(slot.buffer)
        sharing = lies if len(lies) > 1 and (variable.layout.is_whole or not copies) else ()
        return Home(held.array(name), held.buffers[slot.buffer], slot.offset, sharing, copies)

    def _whole(self, name: str) -> Array:
        return self.session.read([name])[name]

    # ---------------------------------------------------------------- staying one

    def settle(self) -> None:
        """Have variables take what the program has written to their tensors."""
        moved = [tie for tie in self.ties.values() if tie.moved]
        if not moved:
            return
        for changed in filter(None, (tie.changed("when a job was compiled for it") for tie in moved)):
            raise JobError(
                f"{user_line()}: the parameter or buffer {changed}; change modules before jobs call them, or start again with clear_default_session()"
            )
        whole = {tie.variable.name: tie.tensor.array for tie in moved if tie.layout is None or not self.session.multi}
        self._check_alike([tie.variable.name for tie in moved], whole)
        self.session.put({name: np.asarray(array, order="C") for name, array in whole.items()})
        for tie in moved:
            if tie.variable.name not in whole:
                self._state(self._world.ranks[0].index).write(tie.variable.name, tie.tensor.array)
            if isinstance(tie.home, FarHome):
                np.copyto(tie.home.fetched, tie.tensor.array)
            tie.bring_home()
        self._meet(len(whole) < len(moved))

    def _check_alike(self, names: Sequence[str], whole: Mapping[str, Array]) -> None:
        """JobError, on all clients, unless they have written the same to their local tensors."""
        if not self.session.multi:
            return
        told = self._exchanged((tuple(names), _digests(whole)), "what was written to parameters")
        for rank, (theirs, digests) in enumerate(told):
            other = next((name for name in {**dict.fromkeys(theirs), **dict.fromkeys(told[0][0])} if (name in theirs) != (name in told[0][0])), None)
            other = other or next((name for name, mine in dict(told[0][1]).items() if dict(digests)[name] != mine), None)
            if other is not None:
                raise JobError(
                    f"{user_line()}: ranks 0 and {rank} have written different numbers to {other}, which is one variable of a job: write the same on "
                    f"every rank (the same seed, the same gradients), or make the module global with to_global"
                )

    def changed(self, names: Iterable[str]) -> None:
        """These variables have taken new values."""
        for name in names:
            tie = self.ties.get(name)
            if tie is not None and tie.home is not None:
                tie.tensor.wrote()
                if isinstance(tie.home, FarHome):
                    tie.home.forget()

    def part(self) -> None:
        """The session ends: tensors keep their numbers, in memory of their own."""
        for tie in self.ties.values():
            if isinstance(tie.home, FarHome):
                tie.home.bring()
            if tie.home is not None and not tie.home.array.flags.writeable:
                tie.home.leave()

    # ---------------------------------------------------------------- ranks

    @property
    def _world(self) -> World:
        assert self.session.world is not None, "its jobs are bound"
        return self.session.world

    def _state(self, rank: int) -> State:
        """The variables of a rank of this process."""
        return state_of(next(each for each in self._world.ranks if each.index == rank))

    def _exchanged(self, item: Any, about: str) -> list[Any]:
        return self._world.call(ExchangeItems(item, about))

    def _meet(self, needed: bool) -> None:
        if needed:
            self._world.call(Barrier())


def _digests(arrays: Mapping[str, Array]) -> tuple[tuple[str, int], ...]:
    return tuple((name, zlib.crc32(np.asarray(array, order="C").tobytes())) for name, array in arrays.items())
