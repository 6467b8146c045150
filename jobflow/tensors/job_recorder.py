"""Recording of tensor functions and modules in the body of a job.

A function or module receives a tensor of the job as a traced tensor without values, `Tensor(type, None, None, traced=handle)`.  Results become
tensors of the job again.  The functions use an `EagerState` that belongs to the body and has a single rank.  Parameters and buffers of a called
module become variables of the session.  Other tensors with values raise JobError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeGuard

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, JobflowError, user_line
from jobflow.core.layout import B, Layout, P, Placement, Sbp
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
from jobflow.tensors.program_recorder import ProgramRecorder
from jobflow.tensors.session_tensors import SessionTensors
from jobflow.tensors.state import EagerState, Generator
from jobflow.tensors.structures import replaced
from jobflow.tensors.tensor import TensorBase

#: advice for calls that set layouts in the body of a job
LAYOUTS = "in the body of a job use flow.parallel_cast, x.with_distribute or flow.scope.placement"
#: the end of messages about eager tensors in the body of a job
NOT_OF_THE_JOB = "that does not belong to this job; pass its array to the job as an argument, or use a variable (get_variable)"


#: the traced value of a tensor until its operation is recorded
_WAITING = object()


@dataclass(frozen=True)
class Called:
    """A call of the module `word` in the body of a job: the namespace of its operations, and the names of its tensors and submodules."""

    word: str
    namespace: tuple[str, ...]
    #: names of the module's parameters and buffers, by id
    names: Mapping[int, str]
    #: names of the module's submodules, by id
    paths: Mapping[int, str]


class JobRecorder(ProgramRecorder[TensorBase]):
    """The recorder of tensor functions and modules in the body of a job; `EagerState.building` refers to it while they run.

    The recorder is also the interpreter, so operations that the functions call are recorded, too.
    """

    running, short, lays = "the body of a job", "the job", False
    takes_tensors = True

    def __init__(self, body: JobBody) -> None:
        self.body = body
        self.here = EagerState(SoloWorld(CpuDevice()).ranks[0])
        self.here.default_dtype = body.default_dtype
        self.here.local_generator.seed = body.seed
        #: the name of the last operation of the running function
        self.name: str | None = None
        #: the called module, if any
        self.module: Called | None = None
        self.forbidden: list[str] = []
        self._standing: dict[int, TensorBase] = {}
        self._waiting: tuple[Op, list[Any], tuple[TensorBase, ...]] | None = None
        self._entered: tuple[scope.Scope, scope.Scope] | None = None

    def scope(self) -> scope.Scope:
        """Return the scope in which the functions run: the scope of the body, with this recorder and its state."""
        now = scope.current()
        if self._entered is None or self._entered[0] is not now:
            self._entered = now, replace(now, interpreter=self, root=replace(now.root, eager=self.here))
        outer = now.root.eager
        self.here.building, self.here.grad_enabled = self, outer is None or outer.grad_enabled
        return self._entered[1]

    @property
    def program(self) -> Tracer:
        """The record of the job."""
        return self.body.tracer

    @property
    def interpreter(self) -> Any:
        return self

    # ---------------------------------------------------------------- ops

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[TensorBase, ...]:
        """Record the operation `op` of a tensor function, and return its outputs.

        Outside modules, `name` becomes the name of the function's last operation unless the call of the function sets one.
        """
        if self.module is None:
            self.name = self.name or name
        return self.run(op, inputs) if inputs else (self.source(op, None, None),)

    def _ran(self, op: Op, inputs: Sequence[TensorBase]) -> tuple[TensorBase, ...]:
        outputs = self._recorded(op, [self._handle(x, op) for x in inputs])
        if self.trains and not self.here.grad_enabled:
            outputs = tuple([self._recorded(Detach(), [self._handle(each, op)])[0] for each in outputs])
        return outputs

    def _applied(self, op: Op, known: Sequence[TensorBase]) -> tuple[Sequence[Any], Sequence[None]]:
        outputs = self._recorded(op, [x.traced for x in known])
        return [self._handle(x, op) for x in outputs], (None,) * len(outputs)

    def needs_gradient(self, x: TensorBase) -> bool:
        """Return True for floating point tensors, because the job's losses are unknown while functions run."""
        return self.trains and x.tensor_type.dtype.is_float

    def _marked(self, op: Op, inputs: Sequence[TensorBase], like: TensorBase) -> Sequence[Any]:
        return self._applied(op, inputs)[0]

    def _handle(self, x: TensorBase, op: Op) -> Any:
        """Return the tensor of the job that x represents; outside modules, raise JobError if x is not a traced tensor."""
        if x.traced is None and self.module is None:
            raise JobError(f"{op.word()} at {user_line()}: an input is a tensor {x.tensor_type} {NOT_OF_THE_JOB}")
        return self.known(x).traced

    def known(self, x: TensorBase) -> TensorBase:
        if x.traced is _WAITING:
            self.record(None)
        return super().known(x)

    def _recorded(self, op: Op, inputs: list[Any]) -> tuple[TensorBase, ...]:
        """Record an operation, and return its outputs.

        If the function has a name, the operation is deferred until the next operation or the end of the function.  Only the last operation gets
        the name.
        """
        if self.name is None:
            return tuple([TensorBase.new(each.tensor_type, None, None, each) for each in self.body.apply(op, inputs, None)])
        self.record(None)
        try:
            types = types_tuple(op.infer(*(x.tensor_type for x in inputs)))
        except JobflowError:
            self.body.apply(op, inputs, self.name)  # its error names the operation and the line
            raise
        outputs = tuple(TensorBase.new(type, None, None, _WAITING) for type in types)
        self._waiting = op, inputs, outputs
        return outputs

    def record(self, name: str | None) -> None:
        """Record the deferred operation, if any, under this name."""
        if self._waiting is not None:
            (op, inputs, outputs), self._waiting = self._waiting, None
            for x, value in zip(outputs, self.body.apply(op, inputs, name), strict=True):
                x.traced = value

    def source(self, op: Op, layout: Layout | None, generator: Generator | None) -> TensorBase:
        if layout is not None and self.module is None:
            raise JobError(f"{op.word()} at {user_line()}: placement= and sbp= are for global tensors; {LAYOUTS}")
        if generator is not None:
            random: Any = op  # random operations have a key
            op = replace(random, key=self._draw())
        (output,) = self._recorded(op, [] if generator is None else [self.body.run_counter()])
        return output

    def draw_for(self, x: TensorBase) -> tuple[str, int, TensorBase]:
        counter = self.body.run_counter()
        return self._draw(), self.body.seed, TensorBase.new(counter.tensor_type, None, None, counter)

    def _draw(self) -> str:
        """Return a name for a random operation, unique within the job, on which its random numbers depend."""
        return self.body.unique_name("draw")

    def called(self, module: Any, forward: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Run `forward` of a module, and return its result; for a submodule, its name is appended to the namespace of the operations."""
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
        """Return the name of a tensor's variable; raise JobError if the module does not register the tensor, or if the name is in use."""
        session = current_session()
        tensors = SessionTensors.of(session)
        tied = tensors.name_of(x)
        if tied is not None:
            return tied
        assert self.module is not None, "tensors outside of modules are refused earlier"
        name = self.module.names.get(id(x))
        if name is None:
            is_parameter = x._needs_gradient and x.is_leaf
            remedy = "register it (register_buffer), create it in forward with flow.tensor, or pass its array to the job"
            if is_parameter:
                remedy = "assign it, or its module, to an attribute in __init__"
            raise JobError(
                f"{self.module.word} at {user_line()}: job {self.body.name} calls this module, which reads a "
                f"{'parameter' if is_parameter else 'tensor'} {x.tensor_type} that is not its parameter or buffer, so the job would miss changes "
                f"of its values; {remedy}"
            )
        if name in session.variables or name in self.body.variables:
            whose = "another module" if name in self.body.tensors or name in tensors else "get_variable or a layer"
            error = JobError(
                f'{self.module.word} at {user_line()}: the module has a tensor "{name}", but job {self.body.name} already has a variable of '
                f"that name, created by {whose}; "
                f'call this module in a separate namespace: with flow.scope.namespace("..."): y = model(x)'
            )
            error.variable = name if name in session.variables else None
            raise error
        return name

    def _write(self, x: TensorBase, standing: TensorBase, value: TensorBase) -> None:
        standing.traced, standing._needs_gradient = value.traced, value._needs_gradient
        self.body.assign(next(name for name, tensor in self.body.tensors.items() if tensor is x), self._of_all_devices(value.traced))

    def _of_all_devices(self, value: Any) -> Any:
        """Combine the values that the devices of the mirrored view computed for a buffer; return other values unchanged.

        Floating point values are averaged over the devices with samples.  Other values are read from the first of these devices.
        """
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

    def write(self, x: TensorBase, value: TensorBase) -> None:
        if self.module is None:
            raise JobError(
                f"in-place write at {user_line()}: the tensor {x.tensor_type} of a job cannot be overwritten; "
                f"use the form that returns a new tensor (relu for relu_)"
            )
        super().write(x, value)

    # ---------------------------------------------------------------- unsupported in jobs

    def change(self, x: TensorBase, target: Layout, back: Sequence[Sbp] | None) -> TensorBase:
        """Record a redistribution of x in a module's forward; elsewhere raise JobError, because jobs set layouts by other functions."""
        if self.module is not None:
            with scope.using(placement=target.placement):
                return self.run(ToLayout(target.sbp, None if back is None else tuple(back)), [x])[0]
        raise JobError(f"to_global at {user_line()}: the tensor {x.tensor_type} belongs to a job, whose layouts are chosen after tracing; {LAYOUTS}")

    def replicate(self, x: TensorBase, target: Layout, what: str) -> TensorBase:
        """Raise JobError, because tensors of a job have no devices."""
        raise JobError(f"{what} at {user_line()}: the tensor {x.tensor_type} belongs to a job, whose layouts are chosen after tracing; {LAYOUTS}")

    def to_local(self, x: TensorBase) -> TensorBase:
        """Raise JobError, because tensors of a job have no pieces during tracing."""
        raise JobError(f"to_local at {user_line()}: the tensor {x.tensor_type} belongs to a job and has no local piece during tracing; {LAYOUTS}")

    def backward(self, loss: TensorBase, gradient: TensorBase | None = None) -> None:
        """Raise JobError, because the optimizer of a job computes the gradients."""
        raise JobError(f"backward at {user_line()}: the loss {loss.tensor_type} is a tensor of a job; call minimize(loss) of an optimizer instead")

    def update(self, op: Op, inputs: Sequence[TensorBase]) -> None:
        if self.module is None:
            raise JobError(
                f"{op.word()} at {user_line()}: tensors of job {self.body.name} cannot be overwritten; use the form that returns a new tensor"
            )
        own = any(is_local(self.known(x).traced) for x in inputs)
        with nullcontext() if own else scope.using(view="consistent"):  # an update that reads only variables has the same result on all devices
            super().update(op, inputs)


# -------------------------------------------------------------------- in and out


def is_body(interpreter: Any) -> TypeGuard[JobBody]:
    """Return True if the interpreter is the body of a job."""
    return isinstance(interpreter, JobBody)


def recorder_of(body: JobBody) -> JobRecorder:
    """Return the recorder of a job's body; create the recorder if the body has none."""
    if body.records is None:
        body.records = JobRecorder(body)
    return body.records


def recorded(body: Any, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any], name: str | None = None) -> Any:
    """Record a call of `function` on tensors of a job in the job's body, and return the results; the last operation is named `name`."""
    recorder = recorder_of(body)
    args, options = replaced((tuple(arguments), dict(named)), TensorOperators, lambda x: TensorBase.new(x.tensor_type, None, None, x))
    before, recorder.name = recorder.name, name
    token = scope.enter(recorder.scope())
    try:
        results = function(*args, **options)
        recorder.record(recorder.name)
        return replaced(results, TensorBase, lambda x: x if x.traced is None and recorder.module is None else recorder.known(x).traced)
    finally:
        scope.leave(token)
        recorder.name, recorder._waiting = before, None
