"""Functions of tensors and modules in the body of a job: what they do to tensors of the job is recorded there, with the conventions of tensors.

A tensor of the job goes in as a tensor without numbers, `Tensor(type, None, None, traced=handle)`, and comes out as one of the job again.
Recording needs no rank: the state that functions ask for belongs to the body, so that it is the same on the only rank that traces a job.
Parameters and buffers of a module that is called are variables of the session; nothing else that has numbers can be met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, JobflowError, user_line
from jobflow.core.layout import B, Layout, P, Placement, Sbp
from jobflow.eager.recording import Recording
from jobflow.eager.session_tensors import SessionTensors
from jobflow.eager.state import EagerState
from jobflow.eager.structures import replaced
from jobflow.eager.tensor import TensorBase
from jobflow.engine.body import JobBody
from jobflow.engine.distribute import is_local
from jobflow.engine.operators import TensorOperators
from jobflow.engine.session import current_session
from jobflow.graph.ir import Variable
from jobflow.ops.layout_ops import ToLayout, to_global
from jobflow.ops.op import Op, apply, types_tuple
from jobflow.ops.parts import TakePart
from jobflow.ops.scalar import Detach
from jobflow.ops.source import Constant
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.solo import SoloWorld

#: what a job has where tensors have layouts of their own
LAYOUTS = "in the body of a job use flow.parallel_cast, x.with_distribute or flow.scope.placement"
#: what is wrong with other tensors there
NOT_OF_THE_JOB = "with numbers, none of this job; give the job its array as an argument, or make it a variable (get_variable)"


#: what a tensor has in the place of the job's, until its op is recorded
_WAITING = object()


@dataclass(frozen=True)
class Called:
    """A module that is called in the body of a job: its class, the namespaces of the call, and names by id."""

    word: str
    namespace: tuple[str, ...]
    #: of its parameters and buffers
    names: Mapping[int, str]
    #: of the modules inside of it
    paths: Mapping[int, str]


class Recorder(Recording[TensorBase]):
    """What stands in the place of a graph that is built (`EagerState.building`), while functions of tensors and modules run in the body of a job.

    It is the interpreter too: functions of ops, which get these tensors there, are recorded as well.
    """

    running, short, lays = "the body of a job", "the job", False
    takes_tensors = True

    def __init__(self, body: JobBody) -> None:
        self.body = body
        self.here = EagerState(SoloWorld(CpuDevice()).ranks[0])
        self.here.default_dtype = body.default_dtype
        self.here.local_generator.seed = body.seed
        #: that of the last op of the function that runs
        self.name: str | None = None
        #: the module that is called, if one is
        self.module: Called | None = None
        self._standing: dict[int, TensorBase] = {}
        self._waiting: tuple[Op, list[Any], tuple[TensorBase, ...]] | None = None
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

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[TensorBase, ...]:
        """The outputs of an op that a function of ops calls."""
        if self.module is None:
            self.name = self.name or name
        return self.run(op, inputs) if inputs else (self.source(op, None, None),)

    def _ran(self, op: Op, inputs: Sequence[TensorBase]) -> tuple[TensorBase, ...]:
        made = self._recorded(op, [self._handle(x, op) for x in inputs])
        if not self.here.grad_enabled:
            made = tuple([self._recorded(Detach(), [self._handle(each, op)])[0] for each in made])
        return made

    def _applied(self, op: Op, known: Sequence[TensorBase]) -> tuple[Sequence[Any], Sequence[None]]:
        made = self._recorded(op, [x.traced for x in known])
        return [self._handle(x, op) for x in made], (None,) * len(made)

    def _handle(self, x: TensorBase, op: Op) -> Any:
        """The tensor of the job that x stands for."""
        if x.traced is None and self.module is None:
            raise JobError(f"{op.word()} at {user_line()}: a tensor {x.tensor_type} {NOT_OF_THE_JOB}")
        return self.known(x).traced

    def known(self, x: TensorBase) -> TensorBase:
        if x.traced is _WAITING:
            self.record(None)
        return super().known(x)

    def _recorded(self, op: Op, inputs: list[Any]) -> tuple[TensorBase, ...]:
        """At once; or, where the last op has a name, when the next one comes, or the function has ended."""
        if self.name is None:
            return tuple([TensorBase.new(each.tensor_type, None, None, each) for each in self.body.apply(op, inputs, None)])
        self.record(None)
        try:
            types = types_tuple(op.infer(*(x.tensor_type for x in inputs)))
        except JobflowError:
            self.body.apply(op, inputs, self.name)  # whose error names the op and the line
            raise
        made = tuple(TensorBase.new(type, None, None, _WAITING) for type in types)
        self._waiting = op, inputs, made
        return made

    def record(self, name: str | None) -> None:
        """Record the op that waits, if one does."""
        if self._waiting is not None:
            (op, inputs, outputs), self._waiting = self._waiting, None
            for x, made in zip(outputs, self.body.apply(op, inputs, name), strict=True):
                x.traced = made

    def source(self, op: Op, layout: Layout | None, counter: int | None) -> TensorBase:
        if layout is not None and self.module is None:
            raise JobError(f"{op.word()} at {user_line()}: placement= and sbp= are for global tensors; {LAYOUTS}")
        if counter is not None:
            drawing: Any = op  # ops that draw have a key
            op = replace(drawing, key=self._draw())
        (made,) = self._recorded(op, [] if counter is None else [self.body.run_counter()])
        return made

    def draw_for(self, x: TensorBase) -> tuple[str, int, TensorBase]:
        counter = self.body.run_counter()
        return self._draw(), self.body.seed, TensorBase.new(counter.tensor_type, None, None, counter)

    def _draw(self) -> str:
        """The name of a draw, in the place of an op's; no other draw of the job has it."""
        return self.body.unique_name("draw")

    def called(self, module: Any, forward: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """A module's forward: names of ops begin with the module's own."""
        path = "" if self.module is None else self.module.paths.get(id(module), "")
        if self.module is None or not path:
            return forward(*args, **options)
        with scope.using(namespace=(*self.module.namespace, path)):
            return forward(*args, **options)

    # ---------------------------------------------------------------- parameters and buffers

    def _read(self, x: TensorBase) -> TensorBase:
        name, placement = self._named(x), scope.current().placement or self.body.placement
        lies = Layout(placement, (B,) * len(placement.mesh)) if x.layout is None else x.layout
        trained = x._needs_gradient and x.is_leaf
        first, group = Constant(x.tensor_type.shape, x.tensor_type.dtype, 0), "parameter" if trained else "buffer"
        handle = self.body.variable(Variable(name, x.tensor_type, first, lies.placement, lies.sbp, trained, group=group))
        self.body.tensors[name] = x
        self._standing[id(x)] = TensorBase.new(x.tensor_type, None, None, handle)
        return self._standing[id(x)]

    def _named(self, x: TensorBase) -> str:
        """The name of the variable that a tensor is.  JobError if it has none, or the variable is something else."""
        session = current_session()
        tensors = SessionTensors.of(session)
        tied = tensors.name_of(x)
        if tied is not None:
            return tied
        assert self.module is not None, "others have been refused"
        name = self.module.names.get(id(x))
        if name is None:
            is_parameter = x._needs_gradient and x.is_leaf
            remedy = "make it one (register_buffer), create it in forward with flow.tensor, or pass its array to the job"
            if is_parameter:
                remedy = "assign it, or its module, to an attribute in __init__"
            raise JobError(
                f"{user_line()}: {self.module.word}, called in job {self.body.name}, reads a {'parameter' if is_parameter else 'tensor'} "
                f"{x.tensor_type} that is not its parameter or buffer, so the job would not see its values change; {remedy}"
            )
        if name in session.variables or name in self.body.variables:
            whose = "another module" if name in self.body.tensors or name in tensors else "get_variable or a layer"
            raise JobError(
                f'{user_line()}: {self.module.word} has a "{name}", but job {self.body.name} has a variable of that name already, made by {whose}; '
                f'call this module in a namespace of its own: with flow.scope.namespace("..."): y = model(x)'
            )
        return name

    def _write(self, x: TensorBase, standing: TensorBase, value: TensorBase) -> None:
        standing.traced, standing._needs_gradient = value.traced, value._needs_gradient
        self.body.assign(next(name for name, tensor in self.body.tensors.items() if tensor is x), self._of_all_devices(value.traced))

    def _of_all_devices(self, value: Any) -> Any:
        """Return the new value of a buffer: in the mirrored view the mean over devices with samples, or the first one's integer."""
        if not is_local(value):
            return value
        whole = Placement(value.node.placement.tag, value.node.placement.ranks)
        with scope.using(interpreter=self.body, placement=whole):
            part = self.body.summand_of_mean(value, whole.size) if value.tensor_type.dtype.is_float else value
            with scope.using(view="consistent"):
                return to_global(part, P) if value.tensor_type.dtype.is_float else self._of_first_device(to_global(part, B), whole)

    def _of_first_device(self, value: Any, whole: Placement) -> Any:
        op = TakePart(B, self.body.first_device, whole)
        with scope.using(placement=op.single):
            return apply(op, value)

    def write(self, x: TensorBase, made: TensorBase) -> None:
        if self.module is None:
            raise JobError(
                f"{user_line()}: the tensor {x.tensor_type} of a job cannot be overwritten; use the form that returns a new tensor (relu for relu_)"
            )
        super().write(x, made)

    # ---------------------------------------------------------------- what jobs do not have

    def change(self, x: TensorBase, target: Layout, back: Sequence[Sbp] | None) -> TensorBase:
        """In modules, which may have been written for global tensors, recorded; the tensors of jobs have other words for it."""
        if self.module is not None:
            with scope.using(placement=target.placement):
                return self.run(ToLayout(target.sbp, None if back is None else tuple(back)), [x])[0]
        raise JobError(
            f"to_global at {user_line()}: the tensor {x.tensor_type} belongs to a job, whose layouts are chosen after its body has run; {LAYOUTS}"
        )

    def leave(self, x: TensorBase) -> TensorBase:
        """There are no pieces yet."""
        raise JobError(
            f"to_local at {user_line()}: the tensor {x.tensor_type} belongs to a job, and has no local part before the job runs; {LAYOUTS}"
        )

    def backward(self, loss: TensorBase, gradient: TensorBase | None = None) -> None:
        """A job's optimizer says what gradients are for."""
        raise JobError(f"backward at {user_line()}: {loss.tensor_type} is a tensor of a job; call an optimizer's minimize instead")

    def update(self, op: Op, inputs: Sequence[TensorBase]) -> None:
        if self.module is None:
            raise JobError(f"{op.word()} at {user_line()}: it overwrites tensors, and those of a job cannot be overwritten")
        own = any(is_local(self.known(x).traced) for x in inputs)
        with nullcontext() if own else scope.using(view="consistent"):  # variables alone give the same on all devices
            super().update(op, inputs)


# -------------------------------------------------------------------- in and out


def is_body(interpreter: Any) -> bool:
    """True for the body of a job."""
    return isinstance(interpreter, JobBody)


def recorder_of(body: JobBody) -> Recorder:
    """The one that records in this body."""
    if body.records is None:
        body.records = Recorder(body)
    return body.records


def recorded(body: Any, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any], name: str | None = None) -> Any:
    """What the function makes of tensors of the job whose body runs, as such tensors; `name` is that of its last op."""
    recorder = recorder_of(body)
    given, options = replaced((tuple(arguments), dict(named)), TensorOperators, lambda x: TensorBase.new(x.tensor_type, None, None, x))
    before, recorder.name = recorder.name, name
    token = scope.enter(recorder.scope())
    try:
        made = function(*given, **options)
        recorder.record(recorder.name)
        return replaced(made, TensorBase, lambda x: x if x.traced is None and recorder.module is None else recorder.known(x).traced)
    finally:
        scope.leave(token)
        recorder.name, recorder._waiting = before, None
