"""Gradient checks by central differences, for any function of tensors in any layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DtypeError, JobError, user_line
from jobflow.core.layout import B, Layout, Partial
from jobflow.core.types import Array, TensorType, float64
from jobflow.functional.creation import cut, tensor
from jobflow.functional.devices import device_of
from jobflow.functional.gradients import enable_grad, grad
from jobflow.functional.typed import Tensor

#: seed of the random directions, equal on all ranks
SEED = 1


class GradcheckError(JobError, RuntimeError):
    """A gradient that differs from the central difference."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    fast_mode: bool = False,
) -> bool:
    """Return True if the gradients of `func(*inputs)` match the central differences (f(x + eps) - f(x - eps)) / (2 eps).

    The check covers the inputs that require gradients: all elements, or with `fast_mode` one random direction per output and input.
    A difference may be up to atol + rtol * |central difference|.  The gradients of two runs may differ by `nondet_tol`.  For global
    tensors, all ranks must call gradcheck.
    Raises: GradcheckError for the first mismatch, unless `raise_exception` is False; DtypeError for an input other than float64;
    ArgumentError if no input requires gradients.
    """
    check = Check("gradcheck", func, eps, atol, rtol, nondet_tol, fast_mode)
    return check.holds(_listed(inputs), raise_exception)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    fast_mode: bool = False,
) -> bool:
    """Return True if the second gradients of `func(*inputs)` match central differences of its gradients; arguments as in `gradcheck`.

    The check also differentiates with respect to `grad_outputs`, the gradients of the outputs, which are random by default.
    """
    arguments_of_func = _listed(inputs)
    if grad_outputs is None:
        random = np.random.default_rng(SEED)
        seeds = [_with_layout(y, random.standard_normal(y.tensor_type.shape)) for y in _outputs(func, arguments_of_func)]
    else:
        seeds = [x.detach() for x in _listed(grad_outputs)]

    def first(*tensors: Any) -> tuple[Tensor, ...]:
        arguments, gradients = tensors[: len(arguments_of_func)], tensors[len(arguments_of_func) :]
        targets = [x for x in arguments if isinstance(x, Tensor) and x._needs_gradient]
        outputs = [(y, dy) for y, dy in zip(_outputs(func, arguments), gradients, strict=True) if y._needs_gradient]
        gradients_of_targets = grad([y for y, _ in outputs], targets, [dy for _, dy in outputs], create_graph=True, allow_unused=True)
        return tuple(x for x in gradients_of_targets if x is not None)

    check = Check("gradgradcheck", first, eps, atol, rtol, nondet_tol, fast_mode)
    return check.holds([*arguments_of_func, *(x.requires_grad_() for x in seeds)], raise_exception)


def _listed(inputs: Any) -> list[Any]:
    return [inputs] if isinstance(inputs, Tensor) else list(inputs)


def _outputs(func: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    """Return the floating point tensors among the outputs of the function."""
    with enable_grad():
        result = func(*inputs)
    listed = result if isinstance(result, tuple | list) else [result]
    return [y for y in listed if isinstance(y, Tensor) and y.dtype.is_float]


def _with_layout(x: Tensor, array: Array) -> Tensor:
    """Return `array` as a tensor with the layout of x, except that partial dimensions of the mesh become broadcast."""
    array = np.array(array, x.tensor_type.dtype.numpy)
    if x.layout is None:
        return tensor(array, device=device_of(x))
    sbp = tuple(B if isinstance(each, Partial) else each for each in x.layout.sbp)
    return cut("gradcheck", array, Layout(x.layout.placement, sbp))


@dataclass(frozen=True)
class Check:
    """A comparison of the gradients of `func` with central differences."""

    what: str
    func: Callable[..., Any]
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    fast: bool

    def holds(self, inputs: Sequence[Any], raises: bool) -> bool:
        """Return True if all gradients match; on a mismatch, raise GradcheckError if `raises`, else return False."""
        targets = {i: x for i, x in enumerate(inputs) if isinstance(x, Tensor) and x._needs_gradient}
        if not targets:
            raise ArgumentError(f"{self.what} at {user_line()}: none of the {len(inputs)} inputs requires gradients; call requires_grad_()")
        for i, x in targets.items():
            if x.dtype is not float64:
                raise DtypeError(f"{self.what} at {user_line()}: input {i} is {x.tensor_type}, but finite differences need float64; use x.double()")
        problem = self.problem(inputs, targets)
        if problem is not None and raises:
            raise GradcheckError(f"{self.what} at {user_line()}: {problem}")
        return problem is None

    def problem(self, inputs: Sequence[Any], targets: dict[int, Tensor]) -> str | None:
        """Return a description of the first mismatch, or None."""
        random = np.random.default_rng(SEED)
        outputs = [y.tensor_type for y in _outputs(self.func, inputs)]
        seeds = [self.directions(y, random) for y in outputs]
        gradients, again = (self.gradients(inputs, targets, seeds) for _ in range(2))
        for i, x in ((i, x) for i, x in targets.items() if x.tensor_type.size):
            directions = self.directions(x.tensor_type, random)
            differences = self.differences(inputs, i, x, directions)
            for k, y in enumerate(outputs):
                at = f"output {k}, {y}, input {i}, {x.tensor_type}"
                first, second = (each_run[k][i] @ directions.T for each_run in (gradients, again))
                if np.abs(first - second).max(initial=0.0) > self.nondet_tol:
                    return f"{at}: the gradients of two runs differ by {np.abs(first - second).max():.3g}"
                other = seeds[k] @ differences[k].T
                wrong = ~(np.abs(first - other) <= self.atol + self.rtol * np.abs(other))
                if wrong.any():
                    return self.describe(at, first, other, wrong, y, x.tensor_type)
        return None

    def directions(self, type: TensorType, random: np.random.Generator) -> Array:
        """Return a matrix of directions for tensors of `type`: one unit vector per element, or in fast mode a single random row."""
        if not self.fast:
            return np.eye(type.size)
        sample = random.standard_normal((1, type.size))
        return sample / max(float(np.linalg.norm(sample)), 1.0)

    def gradients(self, inputs: Sequence[Any], targets: dict[int, Tensor], seeds: Sequence[Array]) -> list[dict[int, Array]]:
        """Return one dict per output of `func`: from the index of each target to its gradients, a matrix with one row per row of `seeds`."""
        by_output: list[dict[int, Array]] = []
        outputs = _outputs(self.func, inputs)
        for y, rows in zip(outputs, seeds, strict=True):
            by_output.append({i: np.zeros((len(rows), x.tensor_type.size)) for i, x in targets.items()})
            for r, row in enumerate(rows if y._needs_gradient else []):
                seed = _with_layout(y, row.reshape(y.tensor_type.shape))
                row_gradients = grad(y, list(targets.values()), seed, retain_graph=True, allow_unused=True)
                for i, gradient in zip(targets, row_gradients, strict=True):
                    if gradient is not None:
                        by_output[-1][i][r] = gradient.numpy().ravel()
        return by_output

    def differences(self, inputs: Sequence[Any], i: int, x: Tensor, directions: Array) -> list[Array]:
        """Return one matrix per output of `func`: the central differences for input i, moved from x along each row of `directions`."""
        value = x.detach().numpy()
        rows: list[list[Array]] = []
        for direction in directions:
            ends = []
            for step in (self.eps, -self.eps):
                moved = _with_layout(x, value + step * direction.reshape(value.shape)).requires_grad_()
                ends.append([y.detach().numpy().ravel() for y in _outputs(self.func, [*inputs[:i], moved, *inputs[i + 1 :]])])
            rows.append([(a - b) / (2 * self.eps) for a, b in zip(*ends, strict=True)])
        return [np.array(each) for each in zip(*rows, strict=True)]

    def describe(self, at: str, gradients: Array, differences: Array, wrong: Array, y: TensorType, x: TensorType) -> str:
        """Return a description of the first wrong gradient, with the number of wrong elements except in fast mode."""
        r, c = (int(n) for n in np.argwhere(wrong)[0])
        values = f"{gradients[r, c]:.8g}, by differences {differences[r, c]:.8g}"
        if self.fast:
            return f"{at}: the gradient along random directions is {values}"
        where, by = (list(map(int, np.unravel_index(n, type.shape))) for n, type in ((r, y), (c, x)))
        return f"{at}: the gradient of element {where} by element {by} is {values}; {int(wrong.sum())} of {wrong.size} elements are wrong"
