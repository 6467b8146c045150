"""Backward hooks of modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.backward import like
from jobflow.tensors.state import state
from jobflow.tensors.tape import Gradients, edge_of, record

if TYPE_CHECKING:
    from jobflow.nn.modules.module import Module

Hook = Callable[..., Any]


class HookedCall:
    """One call of a module with backward hooks.

    Hooks in `before` are called as hook(module, grad_output), and hooks in `after` as hook(module, grad_input, grad_output).
    """

    def __init__(self, module: Module, before: Sequence[Hook], after: Sequence[Hook]) -> None:
        self.module = module
        self.before = before
        self.after = after
        self.inputs = self.outputs = 0
        #: indices of the positional arguments and of the outputs with gradients
        self.entered: list[int] = []
        self.left: list[int] = []
        self.of_outputs: tuple[Tensor | None, ...] | None = None

    def enter(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments `inputs` as outputs of an autograd node, whose gradient function calls the hooks `after`."""
        self.inputs, self.entered = len(inputs), _with_gradients(inputs)
        return tuple(self._passed(inputs, self.entered, self._to_inputs))

    def leave(self, output: Any) -> Any:
        """Return the outputs of the module as outputs of an autograd node, whose gradient function calls the hooks `before`.

        Raises: JobError for an output that is neither a tensor nor None, nor a tuple or list of these.
        """
        several = isinstance(output, tuple | list)
        outputs: Sequence[Any] = output if several else [output]
        if not all(x is None or isinstance(x, Tensor) for x in outputs):
            raise JobError(
                f"{self._name()} at {user_line()}: backward hooks need a module that returns a tensor or a tuple of tensors; got {_described(output)}"
            )
        self.outputs, self.left = len(outputs), _with_gradients(outputs)
        passed = self._passed(outputs, self.left, self._from_outputs)
        return type(output)(passed) if several else passed[0]

    def _passed(self, tensors: Sequence[Any], chosen: Sequence[int], backward: Callable[..., Gradients]) -> list[Any]:
        """Return `tensors`, where the tensors at the positions `chosen` are outputs of one autograd node and share the old memory.

        `backward` is the gradient function of the node.
        """
        passed = list(tensors)
        if chosen:
            for i in chosen:
                passed[i] = tensors[i].detach()
            record(f"{self._name()}Hooks", [tensors[i] for i in chosen], [passed[i] for i in chosen], backward)
        return passed

    def _from_outputs(self, saved: Sequence[Tensor], gradients: Gradients) -> Gradients:
        complete = _spread(gradients, self.left, self.outputs)
        for hook in self.before:
            complete = self._changed(complete, self._called(hook, complete), "full_backward_pre_hook")
        self.of_outputs = complete
        if not self.entered:
            for hook in self.after:
                self._changed((None,) * self.inputs, self._called(hook, (None,) * self.inputs, complete), "full_backward_hook")
        return [complete[i] for i in self.left]

    def _to_inputs(self, saved: Sequence[Tensor], gradients: Gradients) -> Gradients:
        if self.of_outputs is None:  # a second derivative that does not pass the outputs
            return gradients
        complete, grad_input = _spread(gradients, self.entered, self.inputs), self.of_outputs
        for hook in self.after:
            complete = self._changed(complete, self._called(hook, complete, grad_input), "full_backward_hook")
        self.of_outputs = None
        return [complete[i] for i in self.entered]

    def _called(self, hook: Hook, *gradients: Any) -> Any:
        with scope.using(interpreter=None):
            return hook(self.module, *gradients)

    def _changed(self, before: tuple[Tensor | None, ...], gradients: Any, kind: str) -> tuple[Tensor | None, ...]:
        """Return `gradients`, the result of a hook, as a tuple; for None, return `before`, the gradients that the hook received.

        Raises: ArgumentError for another number of gradients, or for a tensor in place of None; ShapeError for another type.
        """
        if gradients is None:
            return before
        listed = tuple(gradients) if isinstance(gradients, tuple | list) else (gradients,)
        what = f"the result of a {kind} of {self._name()}"
        if len(listed) != len(before):
            raise ArgumentError(f"backward at {user_line()}: {what} has {len(listed)} gradients, but must have {len(before)}")
        for old, new in zip(before, listed, strict=True):
            if old is None and new is not None:
                raise ArgumentError(f"backward at {user_line()}: {what} must have None for a value that requires no gradient; got a tensor")
        return tuple(new if old is None or new is None else like(old, new, what) for old, new in zip(before, listed, strict=True))

    def _name(self) -> str:
        return type(self.module).__name__


def _with_gradients(tensors: Sequence[Any]) -> list[int]:
    enabled = state().grad_enabled
    return [i for i, x in enumerate(tensors) if enabled and isinstance(x, Tensor) and x.dtype.is_float and edge_of(x) is not None]


def _spread(gradients: Gradients, where: Sequence[int], count: int) -> tuple[Tensor | None, ...]:
    """Return `count` gradients, with `gradients` at the positions `where` and None elsewhere."""
    by_position: list[Tensor | None] = [None] * count
    for i, gradient in zip(where, gradients, strict=True):
        by_position[i] = gradient
    return tuple(by_position)


def _described(output: Any) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} with {', '.join(sorted({type(x).__name__ for x in output if not isinstance(x, Tensor)}))}"
    return f"a {type(output).__name__}"
