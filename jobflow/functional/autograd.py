"""Functions with gradients of their own: what `flow.autograd` offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.eager import backward as passes
from jobflow.eager.state import state
from jobflow.eager.tape import Gradients, record
from jobflow.eager.tensor import Tensor
from jobflow.errors import ArgumentError, JobError, user_line
from jobflow.functional.creation import zeros_like
from jobflow.functional.gradients import enable_grad, grad, no_grad, set_grad_enabled

__all__ = ["Function", "backward", "enable_grad", "grad", "no_grad", "set_grad_enabled"]


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add the gradients of the tensors' sum to the `grad` of the leaves."""
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    seeds = [None] * len(roots) if grad_tensors is None else [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
    if len(seeds) != len(roots):
        raise ArgumentError(f"backward at {user_line()}: {len(seeds)} grad_tensors for {len(roots)} tensors")
    passes.backward(roots, seeds, keep=bool(retain_graph), create=create_graph)


class Saved:
    """What `forward` leaves for `backward`: `save_for_backward(*tensors)`, and any attribute."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        #: per argument of forward, whether its gradient is asked for
        self.needs_input_grad = needs
        self.saved_tensors: tuple[Tensor, ...] = ()
        self.without: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors; `saved_tensors` in backward."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """These outputs have no gradient."""
        self.without = outputs


class Function:
    """A function with a gradient of its own; it is called by `apply`.

    class Double(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy * 2

    `backward` gives one gradient for each argument of forward, None for those that have none.
    """

    forward: Any
    backward: Any

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """The result of forward, with backward as its gradient."""
        here = state()
        if here.building is not None:
            raise JobError(f"{cls.__name__} at {user_line()}: a function with a gradient of its own cannot be part of nn.Graph.build")
        saved = Saved(tuple(isinstance(each, Tensor) and each.requires_grad for each in arguments))
        with no_grad():
            made = cls.forward(saved, *arguments)
        several = isinstance(made, tuple)
        outputs = [_fresh(each, arguments) for each in (made if several else (made,))]
        if here.grad_enabled and any(saved.needs_input_grad):
            given = [each for each in made if isinstance(each, Tensor)] if several else [made]
            with_gradient = [
                output for output, original in zip(_tensors(outputs), given, strict=True) if all(original is not each for each in saved.without)
            ]
            inputs = [each for each in arguments if isinstance(each, Tensor)]
            tensors = tuple(isinstance(each, Tensor) for each in arguments)
            record(cls.__name__, inputs, with_gradient, _Backward(cls, saved, tensors, [output.detach() for output in with_gradient]))
        return tuple(outputs) if several else outputs[0]


def _fresh(output: Any, arguments: Sequence[Any]) -> Any:
    """An argument that is handed through is another tensor, in the same memory."""
    if isinstance(output, Tensor) and any(output is each for each in arguments):
        made: Tensor = output.detach()
        return made
    return output


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [each for each in values if isinstance(each, Tensor)]


class _Backward:
    """The gradients of the tensors among the arguments, by the function's own backward."""

    def __init__(self, function: type[Function], saved: Saved, tensors: tuple[bool, ...], outputs: Sequence[Tensor]) -> None:
        self.function = function
        self.saved = saved
        self.tensors = tensors
        self.outputs = outputs

    def __call__(self, kept: Sequence[Tensor], gradients: Gradients) -> Gradients:
        given = [zeros_like(output) if gradient is None else gradient for output, gradient in zip(self.outputs, gradients, strict=True)]
        found = self.function.backward(self.saved, *given)
        listed = found if isinstance(found, tuple) else (found,)
        if len(listed) != len(self.tensors):
            raise ArgumentError(
                f"{self.function.__name__}.backward at {user_line()}: {len(listed)} gradients for {len(self.tensors)} arguments of forward"
            )
        return [gradient for gradient, tensor in zip(listed, self.tensors, strict=True) if tensor]
