"""Recording of functions of tensors while a program is traced.

`state().building` is a recorder while `nn.Graph.build` runs, and while a function of tensors or a module runs in the body of a job.
Functions of tensors then call `run`, `source`, `update` or `change` of the recorder, instead of computing.  A traced tensor represents a
value of the program.  A tensor with values, such as a parameter or a buffer, becomes a variable of the program.

Views are recorded as in eager execution: a write through a view updates the base of the view.  After a write to a base, its views are derived
again from the base before they are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import Layout, Placement
from jobflow.core.types import Array, contiguous_strides, unread
from jobflow.ops.axes import Reshape, Transpose
from jobflow.ops.op import Op, ViewOp
from jobflow.ops.scalar import Detach
from jobflow.ops.slice_update import SliceUpdate
from jobflow.ops.slices import Slice
from jobflow.ops.source import Literal
from jobflow.ops.user_gradient import OutputGradient, UserGradient
from jobflow.tensors.state import EagerState, Generator
from jobflow.tensors.tensor import TensorBase

if TYPE_CHECKING:
    from jobflow.compiler.front.trace import Tracer

T = TypeVar("T", bound=TensorBase)


def symbolic_array(x: TensorBase) -> Array:
    """Return an array with the shape and strides that x would have if computed eagerly; its elements must not be read."""
    if x.traced is None and x.layout is None:
        return x.array
    return unread(x.tensor_type, contiguous_strides(x.tensor_type.shape, x.tensor_type.dtype.itemsize) if x.strides is None else x.strides)


def symbolic_strides(op: Op, x: TensorBase) -> tuple[int, ...] | None:
    """Return the strides, in bytes, of the output of a view operation on x; None if the output is not a view.

    The strides are equal on all ranks.
    """
    if not isinstance(op, ViewOp):
        return symbolic_array(x).strides if isinstance(op, Detach) else None
    try:
        strides: tuple[int, ...] = op.view(symbolic_array(x)).strides
    except ValueError:  # only a copy can have this shape
        return None
    return strides


class ProgramRecorder(ABC, Generic[T]):
    """Base class of the recorders of `nn.Graph.build`, of compiled functions and of jobs."""

    #: the name of the tracing in messages, and a short form
    running: ClassVar[str]
    short: ClassVar[str]
    #: True if traced tensors have layouts
    lays: ClassVar[bool] = True
    #: True if gradients are computed during tracing, so that `backward`, clipping and optimizer steps are recorded, too
    differentiates: ClassVar[bool] = False

    here: EagerState
    tracer: Tracer
    #: True if gradients are needed
    trains: bool = True
    #: True while the backward of an autograd.Function is recorded
    reversing = False
    #: the device of local tensors, as their attribute `device` returns it; None is the host
    device: Any = None
    #: True after the traced function returned, when changes of Python objects are not observed
    has_returned = False
    #: messages of the errors of `refuse_tracing`, which user code may catch
    forbidden: list[str]
    #: by id of a tensor with values: its current traced value
    _standing: dict[int, T]

    @property
    def program(self) -> Tracer:
        """The record of the program."""
        return self.tracer

    @property
    def interpreter(self) -> Any:
        """The interpreter of user code."""
        return self.tracer

    # ---------------------------------------------------------------- ops

    def run(self, op: Op, inputs: Sequence[T]) -> tuple[T, ...]:
        """Record an operation, and return its outputs."""
        outputs = self._ran(op, inputs)
        strides = symbolic_strides(op, inputs[0]) if len(inputs) == 1 else None
        if strides is not None:
            base = self.known(inputs[0])
            base.shares(outputs[0])
            outputs[0].base, outputs[0]._synced_version, outputs[0].strides = (inputs[0], op), base.version, strides
        return outputs

    def _ran(self, op: Op, inputs: Sequence[T]) -> tuple[T, ...]:
        known = [self.known(x) for x in inputs]
        return self._outputs(*self._applied(op, known), known)

    @abstractmethod
    def _applied(self, op: Op, known: Sequence[T]) -> tuple[Sequence[Any], Sequence[Layout | None]]:
        """Record an operation on the traced tensors `known`; return its output values and their layouts."""

    def _record(self, op: Op, values: Sequence[Any], placement: Placement | None) -> tuple[Any, ...]:
        with scope.using(placement=placement, interpreter=self.tracer):
            return self.tracer.apply(op, values, None)

    def _outputs(self, values: Sequence[Any], layouts: Sequence[Layout | None], inputs: Sequence[T]) -> tuple[T, ...]:
        needs = any(x._needs_gradient for x in inputs)
        if needs and self.trains and not self.here.grad_enabled:
            values = [self._record(Detach(), [value], value.node.placement)[0] for value in values]
        outputs = tuple(TensorBase.new(value.tensor_type, layout, None, traced=value) for value, layout in zip(values, layouts, strict=True))
        for x in outputs:
            x._needs_gradient = needs and self.here.grad_enabled and x.tensor_type.dtype.is_float
        return outputs

    def constant(self, x: T) -> None:
        """Register x, a tensor outside of the user's code that the program may read as a variable; recorders that read any tensor do nothing."""

    def update(self, op: Op, inputs: Sequence[T]) -> None:
        """Record an operation that overwrites some of its inputs, as its `alias` lists them."""
        values, _ = self._applied(op, [self.known(x) for x in inputs])
        for output, index in op.alias.items():
            self.write(inputs[index], TensorBase.new(values[output].tensor_type, inputs[index].layout, None, traced=values[output]))

    @abstractmethod
    def source(self, op: Op, layout: Layout | None, generator: Generator | None) -> T:
        """Record an operation without inputs, or a random operation of `generator`, and return its output; every run samples new random numbers."""

    def constant_data(self, array: Array, layout: Layout | None) -> T:
        """Record the data of a tensor that user code creates during tracing, and return the tensor."""
        return self.source(Literal.of(array), layout, None)

    @abstractmethod
    def draw_for(self, x: T) -> tuple[str, int, T]:
        """Return the key, the seed and the counter, a traced tensor, of the next random operation on the placement of x."""

    @abstractmethod
    def change(self, x: T, target: Layout, back: Sequence[Any] | None) -> T:
        """Record a redistribution of x to `target`, and return the result; the gradient is first redistributed to the sbp `back`, if set."""

    @abstractmethod
    def replicate(self, x: T, target: Layout, what: str) -> T:
        """Record the local tensor x, equal on all ranks, as a global tensor in the layout `target`, B on all mesh dimensions."""

    @abstractmethod
    def to_local(self, x: T) -> T:
        """Raise JobError, because a traced tensor has no piece on this rank during tracing."""

    # ---------------------------------------------------------------- tensors with values, and views

    def known(self, x: T) -> T:
        """Return the traced tensor that represents x in this program."""
        if x.traced is not None:
            if x.base is not None and x._synced_version != x.version:
                self._refresh_view(x)
            return x
        standing = self._standing.get(id(x))
        return self._read(x) if standing is None else standing

    def _refresh_view(self, view: T) -> None:
        """Derive a view again from its base, after a write to the base."""
        assert view.base is not None
        base, op = view.base
        view._synced_version = view.version
        before, self.here.grad_enabled = self.here.grad_enabled, True
        try:
            value = self.known(self._ran(op, [base])[0])
        finally:
            self.here.grad_enabled = before
        view.traced, view._needs_gradient = value.traced, value._needs_gradient
        view.node, view.index = value.node, value.index

    def guarded_value(self, node: Any) -> Array | None:
        """Return the elements of the tensor from outside that `node` reads, if every run compares them; None in jobs."""
        return None

    def read_elements(self, x: T, what: str) -> None:
        """Register that user code reads the elements of x, a tensor from outside, while the program is traced."""

    @abstractmethod
    def _read(self, x: T) -> T:
        """Register a tensor with values as a variable, and return the traced tensor for it."""

    def write(self, x: T, new_value: T) -> None:
        """Assign `new_value` to x and update the bases of x; a tensor with values receives the new value after the run.

        Where no gradients are recorded (no_grad, detach, data), the gradient of the new value is the gradient of the old value.
        Raises: JobError in the backward of an autograd.Function for a tensor from outside of this backward.
        """
        chain = [x]
        while (base := chain[-1].base) is not None:
            chain.append(base[0])
        if self.reversing and self.known(chain[-1]).traced.node.phase != "backward":
            raise JobError(
                f"in-place write at {user_line()}: the backward of an autograd.Function cannot overwrite a tensor {x.tensor_type} from outside of "
                f"it in {self.running}; overwrite a clone() of the tensor"
            )
        hidden, old_values = not self.here.grad_enabled, []
        for tensor in chain:
            old_values.append(self.snapshot(tensor) if hidden and tensor.traced is not None and self.needs_gradient(tensor) else None)
            hidden = hidden or (tensor.base is not None and isinstance(tensor.base[1], Detach))
        value = self.known(new_value)
        self.known(x).wrote()
        before = self.here.grad_enabled
        try:
            for view, below, old in zip(chain, [*chain[1:], None], old_values, strict=True):
                view._synced_version = x.version
                self._hold(view, value if old is None else self._with_gradient_of(old, value))
                if below is not None:
                    assert view.base is not None
                    self.here.grad_enabled = self.here.grad_enabled and not isinstance(view.base[1], Detach)
                    value = self._around(view, below)
        finally:
            self.here.grad_enabled = before

    def _hold(self, x: T, value: T) -> None:
        if x.traced is not None:
            x.traced, x._needs_gradient = value.traced, x._needs_gradient or value._needs_gradient
        else:
            self._write(x, self.known(x), value)

    def _around(self, view: T, base: T) -> T:
        """Return the value of `base` with the part of `view` replaced by the value of `view`."""
        assert view.base is not None
        op = view.base[1]
        if isinstance(op, Slice):
            (result,) = self._ran(SliceUpdate(Slice(op.starts, op.stops, op.steps)), [base, view])
        elif isinstance(op, Transpose):
            (result,) = self._ran(Transpose(tuple(op.perm.index(i) for i in range(len(op.perm)))), [view])
        else:
            (result,) = self._ran(Reshape(base.tensor_type.shape), [view])
        result = self.known(result)
        return result if base.layout is None or result.layout == base.layout else self.change(result, base.layout, None)

    @abstractmethod
    def _write(self, x: T, standing: T, value: T) -> None:
        """Assign `value` to a tensor with values, replacing its current traced value `standing`."""

    # ---------------------------------------------------------------- gradients that user code defines

    def needs_gradient(self, x: T) -> bool:
        """Return True if the program computes the gradient of x."""
        return self.trains and self.known(x)._needs_gradient

    def snapshot(self, x: T) -> T:
        """Return a traced tensor with the present value of x, which later writes to x do not affect."""
        now = self.known(x)
        result: T = TensorBase.new(now.tensor_type, now.layout, None, now.traced)
        result._needs_gradient = now._needs_gradient
        return result

    @contextmanager
    def recording_gradient(self, what: str) -> Iterator[None]:
        """Record the operations inside the `with` block as the computation of a user-defined gradient.

        Raises: JobError for random numbers and for writes to variables, because the block runs when the function is called.
        """
        tracer, before = self.program, (self.trains, self.reversing, self.here.grad_enabled)
        inputs, updates = len(tracer.inputs), dict(tracer.updates)
        self.trains, self.reversing, self.here.grad_enabled = False, True, False
        try:
            with tracer.phased("backward", None):
                yield
        finally:
            self.trains, self.reversing, self.here.grad_enabled = before
        if len(tracer.inputs) != inputs or tracer.updates != updates:
            problem = "samples random numbers" if len(tracer.inputs) != inputs else "overwrites a tensor from outside of it"
            raise JobError(f"{what}: backward {problem}, which {self.running} does not support; do it in forward, or use flow.compile")

    def output_gradient(self, y: T) -> T:
        """Return a placeholder for the gradient of y, with the layout of this gradient."""
        return self.run(OutputGradient(), [self.known(y)])[0]

    def with_gradients(self, arguments: Sequence[T], results: Sequence[T], placeholders: Sequence[T], gradients: Sequence[T]) -> tuple[T, ...]:
        """Return tensors equal to `results`; `gradients`, computed from `placeholders`, are the gradients of `arguments`."""
        known = [self.known(x) for x in results]
        values = self._marked(UserGradient(len(arguments)), [self.known(x) for x in (*arguments, *known, *placeholders, *gradients)], known[0])
        outputs = tuple([TensorBase.new(y.tensor_type, y.layout, None, value) for y, value in zip(known, values, strict=True)])
        for y in outputs:
            y._needs_gradient = y.tensor_type.dtype.is_float
        return outputs

    def _marked(self, op: Op, inputs: Sequence[T], like: T) -> Sequence[Any]:
        """Record `op` on the placement of `like`, and return its output values."""
        return self._record(op, [x.traced for x in inputs], like.traced.node.placement)

    def _with_gradient_of(self, old: T, new: T) -> T:
        """Return a tensor equal to `new`, whose gradient is the gradient of `old`."""
        if old.layout is not None and new.layout != old.layout:
            new = self.known(self.change(new, old.layout, None))
        with self.recording_gradient("in-place write"):
            placeholder = self.output_gradient(new)
        return self.with_gradients([old], [new], [placeholder], [placeholder])[0]

    # ---------------------------------------------------------------- training and modules

    @abstractmethod
    def backward(self, loss: T, gradient: T | None = None) -> None:
        """Record a call of `loss.backward()`."""

    @abstractmethod
    def called(self, module: Any, forward: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Run `forward` of a module with the recorder's settings for the module, and return its result."""
