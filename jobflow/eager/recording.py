"""What functions of tensors do while a program is traced: they record.

`state().building` is a recording while `nn.Graph.build` runs, and while a function of tensors or a module runs in the body of a job.  Functions
of tensors end in `run`, `source`, `update` or `change` here instead of computing.  A traced tensor stands for a value of the program; a tensor
with numbers that is met - a parameter, a buffer - becomes a variable of the program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.layout import Layout, Placement
from jobflow.eager.state import EagerState
from jobflow.eager.tensor import Tensor
from jobflow.ops.op import Op
from jobflow.ops.scalar import Detach


class Recording(ABC):
    """See the module."""

    #: what is running, in messages, and in short
    running: ClassVar[str]
    short: ClassVar[str]
    #: whether traced tensors lie somewhere, as global ones do
    lays: ClassVar[bool] = True

    here: EagerState
    tracer: Tracer
    #: True if gradients are asked for
    trains: bool
    #: by id of a tensor with numbers: what stands for it now
    _standing: dict[int, Tensor]

    # ---------------------------------------------------------------- ops

    def run(self, op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of an op."""
        known = [self.known(x) for x in inputs]
        return self._outputs(*self._applied(op, known), known)

    @abstractmethod
    def _applied(self, op: Op, known: Sequence[Tensor]) -> tuple[Sequence[Any], Sequence[Layout | None]]:
        """Record an op; the values that it gives, and how tensors that stand for them lie."""

    def _record(self, op: Op, values: Sequence[Any], placement: Placement | None) -> tuple[Any, ...]:
        with scope.using(placement=placement, interpreter=self.tracer):
            return self.tracer.apply(op, values, None)

    def _outputs(self, values: Sequence[Any], layouts: Sequence[Layout | None], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        needs = any(x.requires_grad for x in inputs)
        if needs and self.trains and not self.here.grad_enabled:
            values = [self._record(Detach(), [value], value.node.placement)[0] for value in values]
        made = tuple(Tensor(value.type, layout, None, traced=value) for value, layout in zip(values, layouts, strict=True))
        for x in made:
            x.requires_grad = needs and self.here.grad_enabled and x.type.dtype.is_float
        return made

    def update(self, op: Op, inputs: Sequence[Tensor]) -> None:
        """An op that writes over some of its inputs."""
        values, _ = self._applied(op, [self.known(x) for x in inputs])
        for output, index in op.alias.items():
            self.write(inputs[index], Tensor(values[output].type, inputs[index].layout, None, traced=values[output]))

    @abstractmethod
    def source(self, op: Op, layout: Layout | None, counter: int | None) -> Tensor:
        """The output of an op without inputs, or of one that draws, for every run anew."""

    @abstractmethod
    def draw_for(self, x: Tensor) -> tuple[str, int, Tensor]:
        """Key, seed and counter of the next draw, for numbers beside x."""

    @abstractmethod
    def change(self, x: Tensor, target: Layout, back: Sequence[Any] | None) -> Tensor:
        """A tensor in another layout, whose gradient is brought into `back` if that is given."""

    @abstractmethod
    def leave(self, x: Tensor) -> Tensor:
        """This rank's piece: an error, for there are none yet."""

    # ---------------------------------------------------------------- tensors with numbers

    def known(self, x: Tensor) -> Tensor:
        """What stands for a tensor here."""
        if x.traced is not None:
            return x
        found = self._standing.get(id(x))
        return self._read(x) if found is None else found

    @abstractmethod
    def _read(self, x: Tensor) -> Tensor:
        """A tensor with numbers, as a variable."""

    def write(self, x: Tensor, made: Tensor) -> None:
        """x holds `made` from now on; a tensor with numbers does so after the run."""
        value = self.known(made)
        if x.traced is not None:
            x.traced, x.requires_grad = value.traced, x.requires_grad or value.requires_grad
            return
        self._write(x, self.known(x), value)

    @abstractmethod
    def _write(self, x: Tensor, standing: Tensor, value: Tensor) -> None:
        """Have a tensor with numbers hold `value`, in place of what stands for it now."""

    # ---------------------------------------------------------------- training and modules

    @abstractmethod
    def backward(self, loss: Tensor, gradient: Tensor | None = None) -> None:
        """`loss.backward()` was called."""

    @abstractmethod
    def called(self, module: Any, forward: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """A module's forward, with what is said about the module."""
