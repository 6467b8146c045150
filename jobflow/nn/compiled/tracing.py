"""Tracing of a call of a compiled function into a plan for later calls."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from operator import attrgetter
from typing import Any

import numpy as np

from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SourceLine, user_line
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.compiled.call import PLAIN_VALUES, Call
from jobflow.nn.compiled.changing import Appended, Placeholders, appends, holder_of
from jobflow.nn.compiled.guards import Guards
from jobflow.nn.compiled.outside import Outside, trace_outside
from jobflow.nn.compiled.pure_code import is_library
from jobflow.nn.compiled.replay import CompiledMemory
from jobflow.nn.compiled.snapshot import MISSING, Untraceable, Watched
from jobflow.nn.compiled.step_recorder import StepRecorder
from jobflow.nn.graph.built import Meta
from jobflow.nn.graph.graph import together
from jobflow.optim.optimizer import Optimizer
from jobflow.tensors.host_arrays import numpy_sampling
from jobflow.tensors.overlaps import overlap
from jobflow.tensors.run_values import HostList, HostValue
from jobflow.tensors.state import EagerState
from jobflow.tensors.structures import replaced

#: attributes of the rank that a function must not change
_modes = attrgetter("grad_enabled", "default_dtype", "default_device")


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
    #: (tensor, or number of the argument; the `requires_grad` that the function sets)
    requiring: list[tuple[Tensor | int, bool]]
    #: the backward pass from the outputs, for a caller that differentiates them
    outside: Outside | None = None
    #: reasons why outputs cannot be differentiated, by number
    released: Mapping[int, str] = field(default_factory=dict)


class Tracing:
    """One trace of a function, for the arguments of one call."""

    def __init__(
        self,
        here: EagerState,
        name: str,
        where: SourceLine,
        function: Callable[..., Any],
        call: Call,
        memories: dict[tuple[int, ...], CompiledMemory],
    ) -> None:
        self.here, self.function, self.call = here, function, call
        self.metas = tuple(Meta(f"input{i}", x.tensor_type, x.layout) for i, x in enumerate(call.tensors))
        self.guards = Guards()
        self.tracer = Tracer(name, together(here, self.metas), where, False, kind="graph")
        #: plans of calls on other ranks have separate memory
        self.memory = memory = memories.setdefault(self.tracer.placement.ranks, CompiledMemory())
        names = {id(x): name for name, x in memory.tensors.items()}
        self.gradient_outputs: list[Tensor] = []
        self.modes = _modes(here)
        self.changing = self.guards.unguarded = {item.identity for item in call.changing}
        self.recorder = StepRecorder(here, self.tracer, names, {}, known_tensors=memory.tensors, observer=self.guards)

    def run(self) -> Trace:
        """Run the function once while its operations are recorded, and return the trace.

        If the function fails or cannot be replayed, undo its effects and raise the error.
        """
        call, guards, recorder = self.call, self.guards, self.recorder
        self.placeholders = Placeholders(call.changing)
        try:
            return self._run(call, guards, recorder)
        except BaseException as error:
            self.undo()
            if isinstance(error, SystemError) and guards.reasons:  # from C code that the observer interrupted
                raise Untraceable(guards.reasons[0]) from None
            raise

    def _run(self, call: Call, guards: Guards, recorder: StepRecorder) -> Trace:
        guards.add(self.function, self.tracer.name)
        for value, name in call.objects:
            if isinstance(value, np.ndarray):
                raise Untraceable(
                    f"{self.tracer.name} at {user_line()}: {name} is a NumPy array, whose elements a replay does not read; pass flow.tensor(x)"
                )
            guards.descend(value, name, None, name)
        for kind in call.kinds:
            guards.descend(kind, kind.__name__, None, kind.__name__)
        for value, name in call.containers:
            guards.add_argument(value, name)
        guards.refuse_unrestorable()
        with recorder.in_force():
            for i, x in enumerate(call.tensors):
                if recorder.standing(x) is None:
                    recorder.stand_in(x, f"input{i}")
                    recorder.names.setdefault(id(x), f"input{i}")
            with numpy_sampling(), guards.observing():
                result = self.function(*call.args, **call.options)
            return self._finished(result)

    def undo(self) -> None:
        """Restore the Python objects that the function changed, including gradients, step counts, schedules and the gradient mode."""
        self.placeholders.remove(self.guards)
        self.here.grad_enabled, self.here.default_dtype, self.here.default_device = self.modes
        for x, before in self.recorder.gradients.values():
            x._gradient = before
        for x, required in self.recorder.requiring.values():
            x._needs_gradient = required
        for mine in self.recorder.counted:
            mine["step"] -= 1
        for restore in reversed(self.recorder.undo):
            restore()
        self.guards.restore()

    def forget(self) -> None:
        """Release data that only `undo` needs, such as old gradients."""
        self.recorder.gradients.clear()
        self.recorder.requiring.clear()
        self.recorder.owners.clear()
        self.recorder.undo.clear()

    # ---------------------------------------------------------------- what the function did

    def _finished(self, result: Any) -> Trace:
        recorder, guards = self.recorder, self.guards
        if _modes(self.here) != self.modes:
            raise Untraceable(f"{self.tracer.name} changes the gradient mode or the default element type; change it before the call instead")
        if reason := guards.refused() or "".join(recorder.forbidden[:1]):
            raise Untraceable(f"{self.tracer.name}: {reason}")
        assigned = self.placeholders.remove(guards)
        outputs: dict[int, Tensor] = {}
        replaced(result, Tensor, lambda x: self._returned(x, outputs))
        self._check_result(result)
        changes = [*guards.effects(), *((item.watched, item.key, value) for item, value in assigned)]
        self._check_lists(changes)
        effects = [effect for change in changes if (effect := self._effect(*change, outputs)) is not None]
        for x in recorder.items:
            outputs.setdefault(id(x), x)
        written = self._written(outputs)
        gradients = [self._gradient(x, before, outputs) for x, before in recorder.gradients.values()]
        requiring = [self._required(x, before) for x, before in recorder.requiring.values()]
        outside, released = trace_outside(recorder, list(outputs.values()))
        known = [each for each in gradients if each is not None]
        return Trace(recorder, guards, result, list(outputs.values()), effects, written, known, requiring, outside, released)

    def _check_lists(self, changes: list[tuple[Watched, Any, Any]]) -> None:
        """Raise Appended if the function appends to lists of the program whose holders are known."""
        lists = [watched for watched, _, _ in changes if watched.kind == "list" and watched not in self.guards.arguments]
        holders = [item for watched in lists if appends(watched) and (item := holder_of(self.guards, watched.target)) is not None]
        if holders and len(holders) == len(lists):
            raise Appended(f"{self.tracer.name} changes {lists[0].path}, which a replay does not repeat", holders)

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
        elif dataclasses.is_dataclass(x) and id(x) not in self.guards.visited and not is_library(type(x).__module__):
            for field_of in dataclasses.fields(x):
                self._check_result(getattr(x, field_of.name, None))
        elif not isinstance(x, (Tensor, HostValue, *PLAIN_VALUES)) and id(x) not in self.guards.visited:
            raise Untraceable(
                f"{self.tracer.name} returns a {type(x).__name__}; return tensors and plain values, in lists, tuples, dicts and dataclasses"
            )

    def _position(self, x: Tensor) -> int | None:
        return next((i for i, other in enumerate(self.call.tensors) if other is x), None)

    def _effect(self, watched: Watched, key: Any, value: Any, outputs: dict[int, Tensor]) -> tuple[Watched, Any, int | None, Any] | None:
        """Return the change of an item as (container, key, number of the output or None, constant), in the form of `Trace.effects`.

        Return None for a learning rate that a schedule sets.  Raises: Untraceable for a change that replays cannot repeat.
        """
        if self.is_rate(watched, key) and self.recorder.schedule_steps:
            return None
        path = watched.name(key).replace("\0", "")
        if isinstance(value, HostList) and value.identity == (id(watched.target), key):
            replaced(value.appended, Tensor, lambda x: self._returned(x, outputs))
            self._check_result(value.appended)
            return watched, key, None, value
        if watched.kind in ("list", "set") or value is MISSING or watched in self.guards.arguments:
            raise Untraceable(f"{self.tracer.name} changes {watched.path or path}, which a replay does not repeat")
        if isinstance(value, Tensor) and value.traced is not None:
            outputs.setdefault(id(value), value)
            return watched, key, list(outputs).index(id(value)), None
        if isinstance(watched.target, dict) and type(watched.target).__setitem__ not in (dict.__setitem__, OrderedDict.__setitem__):
            raise Untraceable(f"{self.tracer.name} changes {path}, an entry of a {type(watched.target).__name__} that overrides __setitem__")
        is_argument = isinstance(value, Tensor) and self._position(value) is not None
        if not is_argument and not isinstance(value, (HostValue, *PLAIN_VALUES)) and id(value) not in self.guards.visited:
            raise Untraceable(f"{self.tracer.name} sets {path} to a {type(value).__name__}, which a replay does not repeat")
        return watched, key, None, value

    def is_ignored(self, watched: Watched, key: Any) -> bool:
        """Return True for an item that plans are not guarded by: a learning rate, or an item that the function itself changes."""
        return self.is_rate(watched, key) or (id(watched.target), 0 if watched.kind == "cell" else key) in self.changing

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
        recorder.check_borrowed()
        if recorder.written and (pair := overlap([*self.call.tensors, *recorder.tensors.values(), *recorder.written.values()], recorder.written)):
            x, other = pair
            raise Untraceable(
                f"{self.tracer.name} writes to a tensor {x.tensor_type} whose memory another tensor {other.tensor_type} shares; write to a clone()"
            )
        for x in recorder.written.values():
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

    def _required(self, x: Tensor, before: bool) -> tuple[Tensor | int, bool]:
        """Restore `requires_grad` of x until the plan has run; return x, or its position among the arguments, and the new value."""
        now, x._needs_gradient = x._needs_gradient, before
        position = self._position(x)
        return x if position is None else position, now

    def _gradient(self, x: Tensor, before: Tensor | None, outputs: dict[int, Tensor]) -> tuple[Tensor | int, int | None] | None:
        """Restore `before`, the `grad` of x before the call, until the plan has run.

        Return x, or its position among the arguments, and the number of the output with its new `grad`.  Return None if `grad` is unchanged.
        A function that sets `grad` to None does so in every call, also if `grad` was None in the traced call.
        """
        now, x._gradient = x._gradient, before
        if x.traced is not None or (now is before and not (now is None and self.recorder.replaces_gradient(x))):
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
