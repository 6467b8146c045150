"""Recording of optimizer steps and of learning rate schedules in compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import user_line
from jobflow.core.layout import B, Layout
from jobflow.core.types import Array, DType, TensorType, int64, type_of
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.compiled.host_numbers import HostNumber, HostSample
from jobflow.nn.compiled.pure_code import is_own
from jobflow.nn.compiled.snapshot import Untraceable
from jobflow.ops.optimizer_updates import OptimizerUpdate
from jobflow.ops.update import rate_dtype

if TYPE_CHECKING:
    from jobflow.compiler.front.trace import Tracer
    from jobflow.nn.compiled.observer import Observer


class OptimizerSteps:
    """The part of the recorder of a compiled function that records updates of parameters, and numbers that the host passes to every run."""

    tracer: Tracer
    observer: Observer | None
    host_inputs: list[HostNumber]
    repeated: list[Callable[[], Any]]
    counted: list[dict[str, Any]]
    stepped: list[tuple[Any, list[tuple[Tensor, dict[str, Any]]]]]
    undo: list[Callable[[], None]]
    schedule_steps: int
    schedules: list[Any]
    names: dict[int, str]
    alone: Layout
    _variables: dict[int, str]
    _host_tensors: dict[Any, Tensor]
    _of_key: dict[Any, HostNumber]
    _states: dict[int, int]

    if TYPE_CHECKING:

        def suspended(self) -> AbstractContextManager[None]: ...
        def known(self, x: Tensor) -> Tensor: ...
        def constant(self, x: Tensor) -> None: ...
        def relocate(self, name: str, group: str) -> None: ...
        def change(self, x: Tensor, target: Layout, back: Sequence[Any] | None) -> Tensor: ...
        def update(self, op: Any, inputs: Sequence[Tensor]) -> None: ...
        def _unique(self, name: str) -> str: ...

    @contextmanager
    def stepping(self, optimizer: Any) -> Iterator[None]:
        """Mark the nodes that are recorded inside the `with` block as a step of the optimizer."""
        if "step" in vars(optimizer):
            raise Untraceable(f"optim.{type(optimizer).__name__}.step at {user_line()}: hooks of an optimizer are not replayed")
        if self.observer is not None:
            self.observer.add(optimizer, f"the optimizer {type(optimizer).__name__}")
        self.stepped.append((optimizer, []))
        observed = self.observer is not None and is_own(type(optimizer)) and self.observer.suspend()
        try:
            with self.tracer.updating(user_line()):
                yield
        finally:
            if self.observer is not None and observed:
                self.observer.resume()

    @contextmanager
    def slots_of(self, optimizer: Any, p: Tensor) -> Iterator[None]:
        """Create the optimizer state of parameter p eagerly inside the `with` block; a failed trace removes the new state."""
        mine = optimizer.state.get(p)
        names = None if mine is None else set(mine)
        with self.suspended():
            yield

        def restore() -> None:
            if names is None:
                optimizer.state.pop(p, None)
            else:
                for name in [name for name in optimizer.state[p] if name not in names]:
                    del optimizer.state[p][name]

        self.undo.append(restore)

    def step(self, op: OptimizerUpdate, group: dict[str, Any], p: Tensor, mine: dict[str, Any], slots: Sequence[Tensor], gradient: Tensor) -> None:
        """Record the update of parameter p by `op`; `mine` is the optimizer state of p, and `slots` its tensors in the order of `op.slots`."""
        dtype = rate_dtype(p.tensor_type.dtype)
        scalars = [self._number(("lr", id(group), self.schedule_steps), dtype, p, float(group["lr"]), lambda: float(group["lr"]))]
        if op.reads_step:
            count, before = mine["step"], self._states.setdefault(id(mine), mine["step"])
            scalars.append(self._number(("step", before, count), int64, p, count, lambda: mine["step"] + count - before, mine))
        for name, slot in zip(op_names(op), slots, strict=True):
            self.constant(slot)
            if id(slot) not in self.names:
                self.known(p)
                self.names[id(slot)] = self._unique(f"{self._variables.get(id(p), 'parameter')}-{name}")
            self.known(slot)
            self.relocate(self._variables[id(slot)], name)
        current = self.known(p)
        if current.layout is not None and gradient.layout != current.layout:
            gradient = self.change(gradient, current.layout, None)
        self.update(op, (p, *slots, gradient, *scalars))
        mine["step"] += 1
        self.counted.append(mine)
        self.stepped[-1][1].append((p, mine))

    def _number(self, key: Any, dtype: DType, p: Tensor, now: float, read: Callable[[], float], mine: dict[str, Any] | None = None) -> Tensor:
        """Return a traced tensor [1] on the placement of p for a number with the value `now`; read() returns its value before every run.

        Numbers with equal keys share a tensor.  `mine` is the optimizer state that must have the same number.
        """
        where = self.alone if p.layout is None else Layout(p.layout.placement, (B,) * len(p.layout.sbp))
        key = (*key, dtype, where)
        if key not in self._host_tensors:
            number = HostNumber(f"#number{len(self.host_inputs)}", np.full(1, now, dtype.numpy), read)
            value = self.tracer.input(number.key, TensorType((1,), dtype), layout=where)
            self._host_tensors[key] = Tensor(value.tensor_type, None if p.layout is None else where, None, traced=value)
            self.host_inputs.append(number)
            self.repeated.append(number.update)
            self._of_key[key] = number
        if mine is not None:
            self._of_key[key].alike.append(mine)
        return self._host_tensors[key]

    def sampled(self, again: Callable[[], Any], before: Any) -> None:
        """Register a call of a sampling function of NumPy, which `again` repeats; `before` is the state of the generator before the call."""
        if self.observer is not None:
            self.observer.sampled(before)
        self.repeated.append(again)

    def host_array(self, array: Array, compute: Callable[[], Array]) -> Tensor:
        """Return a traced tensor for an array that the host passes to every run; compute() returns it after the sampling functions ran."""
        sample = HostSample(f"#host{len(self.host_inputs)}", array.copy(), float, compute=compute)
        value = self.tracer.input(sample.key, type_of(sample.array), layout=self.alone)
        self.host_inputs.append(sample)
        self.repeated.append(sample.update)
        return Tensor(value.tensor_type, None, None, traced=value)

    def repeat(self, schedule: Any, plain: bool) -> None:
        """Register a learning rate schedule, whose `step` every replay calls; raise Untraceable unless `plain`.

        A schedule that overrides `step`, or changes the momentum, is not plain.
        """
        if not plain:
            raise Untraceable(
                f"{type(schedule).__name__} at {user_line()}: a schedule that overrides step() or changes momentum is not replayed; call step() "
                "outside of the compiled function"
            )
        self.undo.append(schedule.snapshot())
        self.schedule_steps += 1
        self.schedules.extend(schedule.family())
        self.repeated.append(schedule.step)


def op_names(op: OptimizerUpdate) -> list[str]:
    """Return the names of the slots of an optimizer update, in order."""
    return [slot.name for slot in op.slots]
