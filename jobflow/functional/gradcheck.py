"""Gradients compared with central differences: of any function, of tensors in any layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DtypeError, JobError, user_line
from jobflow.core.layout import B, Layout, Partial
from jobflow.core.types import Array, TensorType, float64
from jobflow.functional.creation import cut, from_numpy
from jobflow.functional.gradients import enable_grad, grad
from jobflow.functional.typed import Tensor

#: what seeds and directions are drawn with: every rank draws the same
SEED = 1


class GradcheckError(JobError, RuntimeError):
    """A gradient is not the central difference."""


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
    """Whether the gradients of `func(*inputs)` for the inputs that require them are (f(x + eps) - f(x - eps)) / (2 eps).

    All elements are compared, or with `fast_mode` one number per output and input, along directions that are drawn.  The gradients of
    two runs may differ by `nondet_tol`.  Of global tensors all ranks call it.
    Raises: GradcheckError, which names output, input, elements and both numbers, unless `raise_exception` is False; DtypeError for
    inputs that are not float64, whose differences say little.
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
    """The same for the gradients, as functions of the inputs and of the outputs' gradients, which are drawn if they are not given."""
    given = _listed(inputs)
    if grad_outputs is None:
        random = np.random.default_rng(SEED)
        seeds = [_laid(y, random.standard_normal(y.tensor_type.shape)) for y in _outputs(func, given)]
    else:
        seeds = [x.detach() for x in _listed(grad_outputs)]

    def first(*tensors: Any) -> tuple[Tensor, ...]:
        arguments, gradients = tensors[: len(given)], tensors[len(given) :]
        wanted = [x for x in arguments if isinstance(x, Tensor) and x._needs_gradient]
        outputs = [(y, dy) for y, dy in zip(_outputs(func, arguments), gradients, strict=True) if y._needs_gradient]
        found = grad([y for y, _ in outputs], wanted, [dy for _, dy in outputs], create_graph=True, allow_unused=True)
        return tuple(x for x in found if x is not None)

    check = Check("gradgradcheck", first, eps, atol, rtol, nondet_tol, fast_mode)
    return check.holds([*given, *(x.requires_grad_() for x in seeds)], raise_exception)


def _listed(given: Any) -> list[Any]:
    return [given] if isinstance(given, Tensor) else list(given)


def _outputs(func: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    """The tensors of floats that the function gives."""
    with enable_grad():
        made = func(*inputs)
    listed = made if isinstance(made, tuple | list) else [made]
    return [y for y in listed if isinstance(y, Tensor) and y.dtype.is_float]


def _laid(x: Tensor, array: Array) -> Tensor:
    """A tensor of these numbers where x lies; whole on all ranks where x is partial."""
    array = np.array(array, x.tensor_type.dtype.numpy)
    if x.layout is None:
        return from_numpy(array)
    sbp = tuple(B if isinstance(each, Partial) else each for each in x.layout.sbp)
    return cut("gradcheck", array, Layout(x.layout.placement, sbp))


@dataclass(frozen=True)
class Check:
    """A comparison of gradients of `func` with differences."""

    what: str
    func: Callable[..., Any]
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    fast: bool

    def holds(self, inputs: Sequence[Any], raises: bool) -> bool:
        """Whether the gradients are right; GradcheckError if they are not and `raises`."""
        wanted = {i: x for i, x in enumerate(inputs) if isinstance(x, Tensor) and x._needs_gradient}
        if not wanted:
            raise ArgumentError(f"{self.what} at {user_line()}: none of the {len(inputs)} inputs requires gradients")
        for i, x in wanted.items():
            if x.dtype is not float64:
                raise DtypeError(f"{self.what} at {user_line()}: input {i} is {x.tensor_type}; finite differences need float64")
        problem = self.problem(inputs, wanted)
        if problem is not None and raises:
            raise GradcheckError(f"{self.what} at {user_line()}: {problem}")
        return problem is None

    def problem(self, inputs: Sequence[Any], wanted: dict[int, Tensor]) -> str | None:
        """What is wrong, in words."""
        random = np.random.default_rng(SEED)
        outputs = [y.tensor_type for y in _outputs(self.func, inputs)]
        seeds = [self.directions(y, random) for y in outputs]
        gradients, again = (self.gradients(inputs, wanted, seeds) for _ in range(2))
        for i, x in ((i, x) for i, x in wanted.items() if x.tensor_type.size):
            ways = self.directions(x.tensor_type, random)
            differences = self.differences(inputs, i, x, ways)
            for k, y in enumerate(outputs):
                at = f"output {k}, {y}, input {i}, {x.tensor_type}"
                first, second = (found[k][i] @ ways.T for found in (gradients, again))
                if np.abs(first - second).max(initial=0.0) > self.nondet_tol:
                    return f"{at}: the gradients of two runs differ by {np.abs(first - second).max():.3g}"
                other = seeds[k] @ differences[k].T
                wrong = ~(np.abs(first - other) <= self.atol + self.rtol * np.abs(other))
                if wrong.any():
                    return self.describe(at, first, other, wrong, y, x.tensor_type)
        return None

    def directions(self, type: TensorType, random: np.random.Generator) -> Array:
        """Along what a tensor is weighed or moved: along each element, or one drawn direction."""
        if not self.fast:
            return np.eye(type.size)
        drawn = random.standard_normal((1, type.size))
        return drawn / max(float(np.linalg.norm(drawn)), 1.0)

    def gradients(self, inputs: Sequence[Any], wanted: dict[int, Tensor], seeds: Sequence[Array]) -> list[dict[int, Array]]:
        """By output and input: the gradients for each seed, as rows."""
        found: list[dict[int, Array]] = []
        outputs = _outputs(self.func, inputs)
        for y, rows in zip(outputs, seeds, strict=True):
            found.append({i: np.zeros((len(rows), x.tensor_type.size)) for i, x in wanted.items()})
            for r, row in enumerate(rows if y._needs_gradient else []):
                made = grad(y, list(wanted.values()), _laid(y, row.reshape(y.tensor_type.shape)), retain_graph=True, allow_unused=True)
                for i, gradient in zip(wanted, made, strict=True):
                    if gradient is not None:
                        found[-1][i][r] = gradient.numpy().ravel()
        return found

    def differences(self, inputs: Sequence[Any], i: int, x: Tensor, ways: Array) -> list[Array]:
        """By output: its central differences where input i is moved each way, as rows."""
        value = x.detach().numpy()
        rows: list[list[Array]] = []
        for way in ways:
            ends = []
            for step in (self.eps, -self.eps):
                moved = _laid(x, value + step * way.reshape(value.shape)).requires_grad_()
                ends.append([y.detach().numpy().ravel() for y in _outputs(self.func, [*inputs[:i], moved, *inputs[i + 1 :]])])
            rows.append([(a - b) / (2 * self.eps) for a, b in zip(*ends, strict=True)])
        return [np.array(each) for each in zip(*rows, strict=True)]

    def describe(self, at: str, ours: Array, theirs: Array, wrong: Array, y: TensorType, x: TensorType) -> str:
        """The first wrong gradient, and how many there are."""
        r, c = (int(n) for n in np.argwhere(wrong)[0])
        numbers = f"{ours[r, c]:.8g}, by differences {theirs[r, c]:.8g}"
        if self.fast:
            return f"{at}: the gradient along the drawn directions is {numbers}"
        where, by = (list(map(int, np.unravel_index(n, type.shape))) for n, type in ((r, y), (c, x)))
        return f"{at}: the gradient of element {where} by element {by} is {numbers}; {int(wrong.sum())} of {wrong.size} elements are wrong"
