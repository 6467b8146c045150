"""The recorder of `flow.compile`, a graph recorder that also differentiates.

While a function is traced, operations on its tensors are recorded as in `nn.Graph.build`.
The autograd tape records the same operations.  So `loss.backward()`, gradient clipping and `optimizer.step()` run as in eager mode and are
recorded.  The user's tensors are not replaced; each tensor has a traced counterpart while the function runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field, replace
from typing import Any, ClassVar

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import B, Layout
from jobflow.core.types import Array
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Node, Variable
from jobflow.nn.compiled.host_numbers import HostNumber, SessionGenerator
from jobflow.nn.compiled.observer import Observer
from jobflow.nn.compiled.optimizer_steps import OptimizerSteps
from jobflow.nn.compiled.snapshot import Untraceable
from jobflow.nn.compiled.traced_tape import Differentiating, TracedNode, TracedSweep
from jobflow.nn.graph.building import Building, Decomposing
from jobflow.ops.layout_ops import Copy, ToLayout
from jobflow.ops.op import Op
from jobflow.ops.scalar import Detach
from jobflow.ops.source import Constant, Literal
from jobflow.tensors.backward import RedistributeGradient, Sweep, gradient_layout
from jobflow.tensors.run import Prepared, prepared
from jobflow.tensors.run_values import HostValue, item_of
from jobflow.tensors.state import gradients
from jobflow.tensors.tape import Edge, follow, note, op_gradient, read_by


@dataclass
class StepRecorder(OptimizerSteps, Building):
    """The recorder of one trace of a compiled function."""

    running: ClassVar[str] = "flow.compile"
    short: ClassVar[str] = "the compiled function"
    differentiates: ClassVar[bool] = True
    untraceable: ClassVar[type[JobError]] = Untraceable
    sweep: ClassVar[type[Sweep[Tensor]]] = TracedSweep

    #: names of the tensors of the program, by id; the trace adds to them
    names: dict[int, str]
    observer: Observer | None = None
    #: tensors whose `grad` the function reads or changes, and the `grad` before, by id
    gradients: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    #: ids of tensors whose old `grad` the function reads
    gradients_read: set[int] = field(default_factory=set)
    #: tensors by id of their old `grad`
    owners: dict[int, Tensor] = field(default_factory=dict)
    host_inputs: list[HostNumber] = field(default_factory=list)
    #: functions that a replay calls before every run, in this order
    repeated: list[Callable[[], Any]] = field(default_factory=list)
    #: dictionaries of optimizer state whose step a replay counts
    counted: list[dict[str, Any]] = field(default_factory=list)
    #: optimizers that step, with their state for each parameter
    stepped: list[tuple[Any, list[tuple[Tensor, dict[str, Any]]]]] = field(default_factory=list)
    #: functions that undo changes of optimizer state after a failed trace
    undo: list[Callable[[], None]] = field(default_factory=list)
    #: tensors with data that the function overwrites, by id
    written: dict[int, Tensor] = field(default_factory=dict)
    #: number of steps of schedules so far
    schedule_steps: int = 0
    schedules: list[Any] = field(default_factory=list)
    #: tensors by name of the variable of their `grad`
    held: dict[str, Tensor] = field(default_factory=dict)
    #: tensors whose `requires_grad` the function sets, and the value before, by id
    requiring: dict[int, tuple[Tensor, bool]] = field(default_factory=dict)
    #: traced tensors whose elements are Python numbers after every run
    items: list[Tensor] = field(default_factory=list)
    #: pairs of tensors that have shared memory since an assignment to `data`
    _sharing: list[tuple[weakref.ref[Tensor], weakref.ref[Tensor]]] = field(default_factory=list)
    #: number of writes to a tensor at the last assignment to its `data`, by id
    _replaced: dict[int, int] = field(default_factory=dict)
    #: constants of the program that have the elements of NumPy arrays, with the arrays and a copy of their elements
    _borrowed: list[tuple[Tensor, Array, bytes]] = field(default_factory=list)
    _constants: dict[int, Tensor] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)
    _used: set[str] = field(default_factory=set)
    _host_tensors: dict[Any, Tensor] = field(default_factory=dict)
    _of_key: dict[Any, HostNumber] = field(default_factory=dict)
    _states: dict[int, int] = field(default_factory=dict)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Record all operations inside the `with` block, in the gradient mode of the caller."""
        mode = self.here.grad_enabled
        with super().in_force():
            self.here.grad_enabled = mode
            yield

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Run operations eagerly inside the `with` block."""
        before, self.here.building = self.here.building, None
        try:
            with scope.using(interpreter=None):
                yield
        finally:
            self.here.building = before

    # ---------------------------------------------------------------- operations

    def run(self, op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Record an operation, and return its outputs."""
        observer = self.observer
        if observer is None or not observer.suspend():
            return super().run(op, inputs)
        try:
            return super().run(op, inputs)
        finally:
            observer.resume()

    def _ran(self, op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        known = [self.known(x) for x in inputs]
        plan = prepared(self.here, op, known)
        if plan.decomposed:
            with scope.using(interpreter=Decomposing(self, plan.placement), autocast=None):
                pieces: Any = op.decompose(*inputs)
            return tuple(pieces)
        values = self._record(op, [x.traced for x in known], plan.placement or self.alone.placement)
        outputs = tuple([Tensor(value.tensor_type, layout, None, traced=value) for value, layout in zip(values, plan.layouts, strict=True)])
        if self.here.grad_enabled and not isinstance(op, Detach) and any(x._needs_gradient for x in known):
            self._note(op, plan, inputs, known, outputs)
        return outputs

    def _note(self, op: Op, plan: Prepared, inputs: Sequence[Tensor], known: Sequence[Tensor], outputs: tuple[Tensor, ...]) -> None:
        """Record an operation on the autograd tape."""
        edges = tuple([self._edge(x, now) for x, now in zip(inputs, known, strict=True)])
        gradient = op_gradient(op, plan.placement, plan.gradients, known, outputs, edges)
        saved = read_by(gradient.program, known, outputs)
        note(TracedNode(op.word(), edges, len(outputs), gradient, outputs[0].traced.node, saved), outputs)

    @staticmethod
    def _edge(x: Tensor, now: Tensor) -> Edge:
        if now.node is not None:
            return now.node, now.index
        return x if now._needs_gradient else None

    def edge(self, x: Tensor) -> Edge:
        """Return the destination of the gradient of x."""
        return self._edge(x, self.known(x))

    def known(self, x: Tensor) -> Tensor:
        if x.traced is None and x.base is not None and id(x) not in self._standing:
            follow(x)
        if self._replaced and x.base is not None:
            self._check_replaced(x)
        return super().known(x)

    def _check_replaced(self, view: Tensor) -> None:
        """Raise Untraceable if the view was created before an assignment to `data` of its base, because it keeps the old memory."""
        root = view
        while root.base is not None:
            root = root.base[0]
        version = self._replaced.get(id(root))
        if version is not None and (view.traced is None or view._synced_version < version):
            raise Untraceable(
                f"flow.compile at {user_line()}: a view {view.tensor_type} keeps the values from before the assignment to data; use clone() for "
                "old values"
            )

    def change(self, x: Tensor, target: Layout, back: Sequence[Any] | None) -> Tensor:
        now = self.known(x)
        if now.layout is None:
            raise Untraceable(
                f"to_global at {user_line()}: a local tensor cannot become global inside a compiled function; convert it before the call"
            )
        if now.layout == target and back is None:
            return x
        (value,) = self._record(ToLayout(target.sbp, None), [now.traced], target.placement)
        output = Tensor(x.tensor_type, target, None, traced=value)
        if self.here.grad_enabled and now._needs_gradient:
            target_gradient = None if back is None else Layout(target.placement, tuple(back))
            gradient = RedistributeGradient(self.here, gradient_layout(now.layout), target_gradient)
            note(TracedNode("to_global", (self._edge(x, now),), 1, gradient, value.node), (output,))
        return output

    def _equal(self, x: Tensor, target: Layout, what: str) -> Tensor:
        counterpart = super()._equal(x, target, what)
        self.constant(counterpart)
        return counterpart

    def filled(self, x: Tensor, value: float) -> Tensor:
        """Return a traced tensor with the type and layout of x and all elements equal to `value`."""
        layout = None if x.layout is None else Layout(x.layout.placement, (B,) * len(x.layout.sbp))
        output = self.source(Constant(x.tensor_type.shape, x.tensor_type.dtype, value), layout, None)
        return output if x.layout is None else self.change(output, x.layout, None)

    def again(self, x: Tensor) -> Tensor:
        """Return a copy of the traced tensor for x; both have the same value in the program."""
        now = self.known(x)
        return Tensor(now.tensor_type, now.layout, None, traced=now.traced)

    def unwritten(self, x: Tensor) -> Tensor:
        """Return a traced tensor with the present value and gradient of x, which later writes to x do not affect."""
        now, output = self.known(x), self.again(x)
        output._needs_gradient, output.node, output.index = now._needs_gradient, now.node, now.index
        return output

    # ---------------------------------------------------------------- writes

    def _hold(self, x: Tensor, value: Tensor) -> None:
        now = self._standing[id(x)] if x.traced is None else x
        before = now._needs_gradient, now.node, now.index
        super()._hold(x, value)
        now._needs_gradient, now.node, now.index = before
        if self.here.grad_enabled and value._needs_gradient:
            now._needs_gradient, now.node, now.index = True, value.node, value.index
        elif self.here.grad_enabled:
            now.node, now.index = None, 0
            now._needs_gradient = before[0] and before[1] is None

    def write(self, x: Tensor, output: Tensor) -> None:
        """Record an assignment of `output` to x, and to the bases of x if x is a view.

        Raises: Untraceable if x is a view that was created outside of the compiled function.
        """
        root = x
        while root.base is not None:
            root = root.base[0]
        if root.traced is None:
            self.written[id(root)] = root
        if any(x is root for x, _, _ in self._borrowed):
            raise Untraceable(
                f"flow.compile at {user_line()}: the tensor {root.tensor_type} of from_numpy is overwritten, and a replay does not write to NumPy "
                "arrays; use flow.tensor(array)"
            )
        if x.traced is None and x.base is not None:
            raise Untraceable(
                f"flow.compile at {user_line()}: a view {x.tensor_type} from outside of the compiled function cannot be "
                "overwritten; create the view inside"
            )
        self.known(x)
        value = self.known(output)
        if self.here.grad_enabled and value._needs_gradient and value.node is None:
            output = self.run(Copy(), [output])[0]
        super().write(x, output)
        self._update_sharing(root)

    def update(self, op: Op, inputs: Sequence[Tensor]) -> None:
        """Record an operation that overwrites some of its inputs, as its `alias` lists them."""
        values, _ = self._applied(op, [self.known(x) for x in inputs])
        for number, index in op.alias.items():
            x = inputs[index]
            output = Tensor(values[number].tensor_type, self.known(x).layout, None, traced=values[number])
            self.write(x, output)

    def assign_data(self, x: Tensor, value: Tensor) -> bool:
        """Record `x.data = value` as a write to x; return False if x would use the memory of a tensor from outside of the compiled function."""
        shown = value
        while shown.base is not None and isinstance(shown.base[1], Detach):
            shown = shown.base[0]
        if shown is x:
            return True
        is_new = x.base is None and shown.traced is not None and shown.base is None
        if not is_new or value.tensor_type != x.tensor_type or value.layout != x.layout:
            return False
        self._sharing = [pair for pair in self._sharing if pair[0]() is not x]
        with gradients(False):
            self.write(x, self.again(value))
        self._sharing.append((weakref.ref(x), weakref.ref(shown)))
        self._replaced[id(x)] = self.known(x).version
        return True

    def host_item(self, x: Tensor) -> HostValue:
        """Return the only element of x as a placeholder for a Python number."""
        self.items.append(self.again(x))
        return item_of(self.items[-1])

    def _update_sharing(self, root: Tensor) -> None:
        """After a write to `root`, update the tensor with which it has shared memory since an assignment to `data`."""
        for pair in self._sharing:
            x, value = (reference() for reference in pair)
            if root is x and value is not None:
                value.traced = self.known(x).traced
                value.wrote()
            elif root is value and x is not None:
                with gradients(False):
                    super().write(x, self.again(value))
                self.written[id(x)] = x

    def borrow(self, array: Array) -> Tensor:
        """Return a constant of the program with the elements of a NumPy array, whose memory it does not share."""
        x = self.source(Literal.of(array), None, None)
        self._borrowed.append((x, array, array.tobytes()))
        return x

    def check_borrowed(self) -> None:
        """Raise Untraceable if the function wrote to a NumPy array after `from_numpy`, because tensors of the program do not change with it."""
        for x, array, before in self._borrowed:
            if array.tobytes() != before:
                raise Untraceable(
                    f"flow.compile: the function writes to the NumPy array of a tensor {x.tensor_type} after from_numpy; use flow.tensor(array)"
                )

    def require_gradient(self, x: Tensor, requires_grad: bool) -> None:
        """Note that the function sets `requires_grad` of x, and update the traced counterpart of x."""
        if x.traced is None:
            self.requiring.setdefault(id(x), (x, x._needs_gradient))
            if (now := self._standing.get(id(x))) is not None and now.node is None:
                now._needs_gradient = requires_grad

    # ---------------------------------------------------------------- tensors of the program

    def _read(self, x: Tensor) -> Tensor:
        owner = self.owners.get(id(x))
        if owner is not None:
            return self._read_gradient(x, owner)
        if id(x) not in self.names:
            path = None if self.observer is None else self.observer.path_of(x)
            if path is None and id(x) not in self._constants:
                raise Untraceable(
                    f"flow.compile at {user_line()}: code that is not recorded creates a tensor {x.tensor_type} during tracing; "
                    "pass the tensor as an argument"
                )
            self.names[id(x)] = self._unique(path or "constant")
        output = super()._read(x)
        output._needs_gradient = x._needs_gradient
        name = self._variables[id(x)]
        if x._needs_gradient and x.is_leaf:
            self.relocate(name, "parameter")
        return output

    def _unique(self, name: str) -> str:
        """Return `name`, with a number appended if a tensor of the compiled function already has this name."""
        if not self._used:
            self._used.update(self.names.values(), self.known_tensors, self.tensors)
        unique, number = name, 1
        while unique in self._used:
            number += 1
            unique = f"{name}{number}"
        self._used.add(unique)
        return unique

    def relocate(self, name: str, group: str) -> None:
        """Assign the variable `name` to a group; the variables of a group share one buffer, so one operation can update them all."""
        self.tracer.variables[name] = replace(self.tracer.variables[name], group=group, trainable=True)

    def constant(self, x: Tensor) -> None:
        """Register x, a tensor that the function creates with the same elements in every call, so that the plan can read x as a variable."""
        self._constants[id(x)] = x

    def is_constant(self, x: Tensor) -> bool:
        """Return True if x was registered as a constant of the function, such as the state of an optimizer."""
        return id(x) in self._constants

    def _read_gradient(self, x: Tensor, owner: Tensor) -> Tensor:
        """Return the traced counterpart of x, the `grad` of `owner` before the call: a read of the variable for this gradient."""
        name = self.gradient_variable(owner)
        output = Tensor(x.tensor_type, x.layout, None, traced=self.tracer.reads[name])
        self._variables[id(x)] = name
        self._standing[id(x)] = output
        return output

    def gradient_variable(self, owner: Tensor) -> str:
        """Return the name of the variable for the `grad` of `owner`; create the variable at the first call."""
        name = next((name for name, x in self.held.items() if x is owner), None)
        if name is None:
            name = f"{self._variables.get(id(owner)) or self.names.get(id(owner)) or f'tensor{len(self.held)}'}.grad"
            self.held[name] = owner
            self.tracer.variable(storage_variable(name, owner, self.alone, "gradient"))
        return name

    def _write(self, x: Tensor, standing: Tensor, value: Tensor) -> None:
        self.check_guarded(x)
        if x.layout is not None and value.layout != x.layout:
            value = self.change(value, x.layout, None)
        standing.traced, standing.layout = value.traced, value.layout
        if id(x) in self._variables:
            self.tracer.assign(self._variables[id(x)], value.traced)

    def stand_in(self, x: Tensor, key: str) -> None:
        """Create the traced counterpart of the argument x: the input `key` of the program."""
        value = self.tracer.input(key, x.tensor_type, layout=x.layout or self.alone)
        output = Tensor(x.tensor_type, x.layout, None, traced=value)
        output._needs_gradient = x._needs_gradient if x.base is None else follow(x)
        self._standing[id(x)] = output

    def standing(self, x: Tensor) -> Tensor | None:
        """Return the traced counterpart of x, or None before the first use of x."""
        return self._standing.get(id(x))

    # ---------------------------------------------------------------- random numbers

    def _generator(self, layout: Layout | None) -> Any:
        return SessionGenerator(self.here, layout is None)

    def _replayed(self, generator: Any) -> Any:
        local = generator is self.here.local_generator
        return SessionGenerator(self.here, local) if local or generator is self.here.global_generator else generator

    # ---------------------------------------------------------------- gradients

    def backward(self, loss: Tensor, gradient: Tensor | None = None) -> None:
        raise AssertionError("the tape differentiates")

    def backward_pass(self, create: bool) -> Differentiating:
        """Return the interpreter of a backward pass; with `create`, its operations are also recorded for gradients of gradients."""
        return Differentiating(self, create)

    def hold_gradient(self, x: Tensor) -> None:
        """Note that the function replaces the `grad` of x, and store the old `grad`."""
        self.gradients.setdefault(id(x), (x, x._gradient))
        self._changed.add(id(x))

    def replaces_gradient(self, x: Tensor) -> bool:
        """Return True if the function replaces the `grad` of x, perhaps by an equal value."""
        return id(x) in self._changed

    def gradient_of(self, x: Tensor) -> Tensor | None:
        """Return the `grad` of x; before the function replaces it, note that the function reads the old `grad`."""
        _, before = self.gradients.setdefault(id(x), (x, x._gradient))
        if id(x) not in self._changed:
            self.gradients_read.add(id(x))
            if before is not None and before.traced is None:
                self.owners[id(before)] = x
        return x._gradient

    def zero_gradient(self, x: Tensor, set_to_none: bool) -> None:
        """Set the `grad` of x to None if `set_to_none`, or else record that it is filled with zeros."""
        if set_to_none:
            self.hold_gradient(x)
            x._gradient = None
        elif (known := self.gradient_of(x)) is not None:
            self.write(known, self.filled(known, 0.0))
            now = self.known(known)
            now._needs_gradient, now.node, now.index = False, None, 0

    @contextmanager
    def differentiating(self, records: bool) -> Iterator[None]:
        """Record operations that gradient functions call inside the `with` block, and with `records` also their gradients."""
        before, self.here.grad_enabled = self.here.grad_enabled, records
        try:
            with scope.using(interpreter=Differentiating(self, records)):
                yield
        finally:
            self.here.grad_enabled = before

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Mark the nodes that are recorded inside the `with` block as the backward pass, with the user's line of the request."""
        with self.tracer.phased("backward", user_line()):
            yield

    def in_gradient_of(self, node: Node | None) -> AbstractContextManager[Any]:
        """Return a context manager that marks new nodes as part of the gradient of `node`; it does nothing for None."""
        return nullcontext() if node is None else self._in_gradient_of(node)

    @contextmanager
    def _in_gradient_of(self, node: Node) -> Iterator[None]:
        interpreter = scope.current().interpreter
        with self.tracer.gradients_of(node), scope.using(interpreter=interpreter):
            yield

    # ---------------------------------------------------------------- modules

    def called(self, module: Any, forward: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if self.observer is not None:
            self.observer.add(module, type(module).__name__)
        return forward(*args, **options)


def storage_variable(name: str, like: Tensor, alone: Layout, group: str) -> Variable:
    """Return a variable of zeros with the type and layout of the tensor `like`; the variable is not trainable."""
    layout = like.layout or alone
    return Variable(
        name,
        like.tensor_type,
        Constant(like.tensor_type.shape, like.tensor_type.dtype, 0),
        layout.placement,
        layout.sbp,
        trainable=False,
        group=group,
    )
