"""Functions of tensors in the body of a job: what they do to tensors of the job is recorded there, with the conventions of tensors.

A tensor of the job goes in as a tensor without numbers, `Tensor(type, None, None, traced=handle)`, and comes out as one of the job again.
Recording needs no rank: the state that functions ask for belongs to the body, so that it is the same on the only rank that traces a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, JobflowError, user_line
from jobflow.core.layout import Layout, Sbp
from jobflow.core.types import Tensor as Value
from jobflow.eager.state import EagerState
from jobflow.eager.tensor import Tensor
from jobflow.engine.body import JobBody
from jobflow.engine.operators import TensorOperators
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.scalar import Detach
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.solo import SoloWorld

#: what a job has where tensors have layouts of their own
LAYOUTS = "in the body of a job use flow.parallel_cast, x.with_distribute or flow.scope.placement"
#: what is wrong with other tensors there
NOT_OF_THE_JOB = "with numbers, none of this job; give the job its array as an argument, or make it a variable (get_variable)"


#: what a tensor has in the place of the job's, until its op is recorded
_WAITING = object()


class Recorder:
    """What stands in the place of a graph that is built (`EagerState.building`), while a function of tensors runs in the body of a job.

    It is the interpreter too: functions of ops, which get these tensors there, are recorded as well.
    """

    #: what is running, in messages, and in short
    running, short = "the body of a job", "the job"
    takes_tensors = True

    def __init__(self, body: JobBody) -> None:
        self.body = body
        self.here = EagerState(SoloWorld(CpuDevice()).ranks[0])
        self.here.default_dtype = body.default_dtype
        self.here.local_generator.seed = body.seed
        #: that of the last op of the function that runs
        self.name: str | None = None
        self._waiting: tuple[Op, list[Value], tuple[Tensor, ...]] | None = None
        self._entered: tuple[scope.Scope, scope.Scope] | None = None

    def scope(self) -> scope.Scope:
        """That of a function which runs here: the body's, with the state of its recording."""
        now = scope.current()
        if self._entered is None or self._entered[0] is not now:
            self._entered = now, replace(now, interpreter=self, root=replace(now.root, eager=self.here))
        outer = now.root.eager
        self.here.building, self.here.grad_enabled = self, outer is None or outer.grad_enabled
        return self._entered[1]

    # ---------------------------------------------------------------- ops

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[Tensor, ...]:
        """The outputs of an op that a function of ops calls."""
        self.name = self.name or name
        return self.run(op, inputs) if inputs else (self.source(op, None, None),)

    def run(self, op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of an op."""
        made = self._recorded(op, [self.known(x, op) for x in inputs])
        if not self.here.grad_enabled:
            made = tuple([self._recorded(Detach(), [self.known(each, op)])[0] for each in made])
        return made

    def _recorded(self, op: Op, inputs: list[Value]) -> tuple[Tensor, ...]:
        """At once; or, where the last op has a name, when the next one comes, or the function has ended."""
        if self.name is None:
            return tuple([Tensor(each.type, None, None, each) for each in self.body.apply(op, inputs, None)])
        self.record(None)
        try:
            types = types_tuple(op.infer(*(x.type for x in inputs)))
        except JobflowError:
            self.body.apply(op, inputs, self.name)  # whose error names the op and the line
            raise
        made = tuple(Tensor(type, None, None, _WAITING) for type in types)
        self._waiting = op, inputs, made
        return made

    def record(self, name: str | None) -> None:
        """Record the op that waits, if one does."""
        if self._waiting is not None:
            (op, inputs, outputs), self._waiting = self._waiting, None
            for x, made in zip(outputs, self.body.apply(op, inputs, name), strict=True):
                x.traced = made

    def source(self, op: Op, layout: Layout | None, counter: int | None) -> Tensor:
        """The output of an op without inputs, or of one that draws, at every run anew."""
        if layout is not None:
            raise JobError(f"{op.word()} at {user_line()}: placement= and sbp= are for global tensors; {LAYOUTS}")
        if counter is not None:
            drawing: Any = op  # ops that draw have a key
            op = replace(drawing, key=self._draw())
        (made,) = self._recorded(op, [] if counter is None else [self.body.run_counter()])
        return made

    def draw_for(self, x: Tensor) -> tuple[str, int, Tensor]:
        """Key, seed and counter of the next draw, for numbers beside x."""
        counter = self.body.run_counter()
        return self._draw(), self.body.seed, Tensor(counter.type, None, None, counter)

    def _draw(self) -> str:
        """The name of a draw, in the place of an op's; no other draw of the job has it."""
        return self.body.unique_name("draw")

    def known(self, x: Tensor, op: Op) -> Value:
        """The tensor of the job that x stands for."""
        if x.traced is None:
            raise JobError(f"{op.word()} at {user_line()}: a tensor {x.type} {NOT_OF_THE_JOB}")
        if x.traced is _WAITING:
            self.record(None)
        found: Any = x.traced
        value: Value = found
        return value

    def called(self, module: Any, forward: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """A module's forward."""
        return forward(*args, **options)

    # ---------------------------------------------------------------- what jobs do not have

    def change(self, x: Tensor, target: Layout, back: Sequence[Sbp] | None) -> Tensor:
        """A layout that is asked for is a wish in jobs."""
        raise JobError(f"to_global at {user_line()}: the tensor {x.type} is one of a job, whose layouts are decided when all is known; {LAYOUTS}")

    def leave(self, x: Tensor) -> Tensor:
        """There are no pieces yet."""
        raise JobError(f"to_local at {user_line()}: the tensor {x.type} is one of a job, and has no pieces before the job runs; {LAYOUTS}")

    def write(self, x: Tensor, made: Tensor) -> None:
        """Tensors of jobs are not written over."""
        raise JobError(f"{user_line()}: the tensor {x.type} of a job cannot be written over; use the form that makes a new tensor (relu for relu_)")

    def update(self, op: Op, inputs: Sequence[Tensor]) -> None:
        """Nor are others, while a body runs that runs again."""
        raise JobError(f"{op.word()} at {user_line()}: it writes over tensors, and those of a job cannot be written over")

    def backward(self, loss: Tensor, gradient: Tensor | None = None) -> None:
        """A job's optimizer says what gradients are for."""
        raise JobError(f"backward at {user_line()}: {loss.type} is a tensor of a job, where an optimizer's minimize says what gradients are for")


# -------------------------------------------------------------------- in and out


def recorder_of(body: JobBody) -> Recorder:
    """The one that records in this body."""
    if body.records is None:
        body.records = Recorder(body)
    found: Recorder = body.records
    return found


def recorded(body: Any, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any], name: str | None = None) -> Any:
    """What the function makes of tensors of the job whose body runs, as such tensors; `name` is that of its last op."""
    recorder = recorder_of(body)
    given = [_in(each) for each in arguments]
    options = {word: _in(each) for word, each in named.items()} if named else named
    before, recorder.name = recorder.name, name
    token = scope.enter(recorder.scope())
    try:
        made = function(*given, **options)
        recorder.record(recorder.name)
    finally:
        scope.leave(token)
        recorder.name, recorder._waiting = before, None
    return made.traced if made.__class__ is Tensor and made.traced is not None else _out(made)


def _in(x: Any) -> Any:
    """Tensors of the job as tensors, also in sequences of them."""
    if isinstance(x, TensorOperators):
        return Tensor(x.type, None, None, x)
    if isinstance(x, list | tuple) and not hasattr(x, "_fields"):
        return type(x)(map(_in, x))
    return x


def _out(x: Any) -> Any:
    """And back."""
    if isinstance(x, Tensor) and x.traced is not None:
        return x.traced
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*map(_out, x))
    if isinstance(x, list | tuple):
        return type(x)(map(_out, x))
    return x
