"""The optimizer LBFGS, which evaluates a closure several times per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from jobflow.core.errors import ArgumentError, ConfigError, user_line
from jobflow.functional.creation import zeros_like
from jobflow.functional.joining import cat
from jobflow.functional.tensor_class import Tensor
from jobflow.optim.optimizer import POSITIVE, Group, Legal, Optimizer
from jobflow.tensors.state import gradients, refuse_tracing

__all__ = ["LBFGS"]

#: constants of the Wolfe conditions: sufficient decrease, and curvature
_DECREASE, _CURVATURE = 1e-4, 0.9
#: the smallest curvature of a pair of the history
_SMALLEST = 1e-10


@dataclass
class Point:
    """A point of the line search: its distance from the start, and the loss, the gradient and the derivative along the line."""

    distance: float
    loss: float
    gradient: Tensor
    slope: float


class LBFGS(Optimizer):
    """L-BFGS (Liu and Nocedal 1989) with one parameter group; `line_search_fn` is None or "strong_wolfe".

    `step(closure)` calls the closure, which computes the gradients and returns the loss, up to `max_eval` times.  `max_eval` is by default
    5/4 `max_iter`.  The state belongs to the first parameter; its vectors have the elements of all parameters.
    """

    LEGAL: ClassVar[dict[str, Legal]] = {"tolerance_grad": POSITIVE, "tolerance_change": POSITIVE}

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        what = f"{self._word} at {user_line()}"
        counts = {"max_iter": max_iter, "history_size": history_size} | ({} if max_eval is None else {"max_eval": max_eval})
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{what}: {name} must be an integer of at least 1, not {count!r}")
        if line_search_fn not in (None, "strong_wolfe"):
            raise ConfigError(f'{what}: line_search_fn must be None or "strong_wolfe", not {line_search_fn!r}')
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )
        if len(self.param_groups) != 1:
            raise ConfigError(f"{what}: params must be one group, not {len(self.param_groups)}; pass module.parameters()")

    def rule(self, group: Group) -> NoReturn:
        """Raise ConfigError, because a graph has one evaluation of the loss per step."""
        raise ConfigError(
            f"{self._word} at {user_line()}: a step evaluates the loss several times, which a graph cannot do; call step(closure) outside of graphs, "
            "and compile the loss with flow.compile"
        )

    def _state_of(self, saved: Any, p: Tensor, what: str) -> Any:
        """Return a copy of an entry of a saved state; vectors have the elements of all parameters."""
        if isinstance(saved, list):
            return [self._state_of(x, p, what) for x in saved]
        return saved.detach().clone() if isinstance(saved, Tensor) else saved

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Minimize along up to `max_iter` directions, and return the loss of the first evaluation.  Raises: ArgumentError without a closure."""
        refuse_tracing(f"{self._word}.step", "the loss cannot be evaluated several times", "call step(closure) outside of compiled functions")
        if not callable(closure):
            raise ArgumentError(
                f"{self._word}.step at {user_line()}: closure must be a function that computes the gradients and returns the loss, not {closure!r}"
            )
        with gradients(False):
            return _Minimisation(self, closure).run()


class _Minimisation:
    """One step of LBFGS."""

    def __init__(self, optimizer: LBFGS, closure: Callable[[], Any]) -> None:
        self.closure, self.group = closure, optimizer.param_groups[0]
        self.params: list[Tensor] = self.group["params"]
        self.state = optimizer.state[self.params[0]]
        self.state.setdefault("func_evals", 0)
        self.state.setdefault("n_iter", 0)
        self.evaluations = 0

    def run(self) -> Any:
        """Perform the step, and return the first result of the closure."""
        group, state = self.group, self.state
        first, loss, gradient = self._evaluated()
        for iteration in range(1, group["max_iter"] + 1):
            if iteration == 1 and _largest(gradient) <= group["tolerance_grad"]:
                break
            state["n_iter"] += 1
            direction = self._direction(gradient)
            state["prev_flat_grad"], state["prev_loss"] = gradient.clone(), loss
            rate = float(group["lr"])
            state["d"], state["t"] = direction, rate * min(1.0, 1.0 / float(gradient.abs().sum())) if state["n_iter"] == 1 else rate
            slope = _dot(gradient, direction)
            if slope > -group["tolerance_change"]:
                break
            before = loss
            loss, gradient = self._moved(Point(0.0, loss, gradient, slope), iteration == group["max_iter"])
            if iteration == group["max_iter"] or self.evaluations >= group["max_eval"] or _largest(gradient) <= group["tolerance_grad"]:
                break
            if _largest(direction) * abs(state["t"]) <= group["tolerance_change"] or abs(loss - before) < group["tolerance_change"]:
                break
        return first

    def _evaluated(self) -> tuple[Any, float, Tensor]:
        """Call the closure; return its result, the loss as a number, and the gradients of all parameters as one vector."""
        with gradients(True):
            result = self.closure()
        self.evaluations += 1
        self.state["func_evals"] += 1
        pieces = [(zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in self.params]
        return result, float(result), cat(pieces)

    def _move(self, direction: Tensor, distance: float) -> None:
        """Add `distance` times the direction to the parameters."""
        start = 0
        for p in self.params:
            stop = start + p.numel()
            p.add_(direction[start:stop].reshape(p.shape), alpha=distance)
            start = stop

    def _direction(self, gradient: Tensor) -> Tensor:
        """Return the product of the inverse Hessian, which the history approximates, and the negative gradient."""
        state = self.state
        if state["n_iter"] == 1:
            state["old_dirs"], state["old_stps"], state["ro"], state["H_diag"] = [], [], [], 1.0
            return -gradient
        change, step = gradient - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = _dot(change, step)
        if curvature > _SMALLEST:
            for name, new in (("old_dirs", change), ("old_stps", step), ("ro", 1.0 / curvature)):
                state[name] = [*state[name], new][-self.group["history_size"] :]
            state["H_diag"] = curvature / _dot(change, change)
        history = list(zip(state["old_dirs"], state["old_stps"], map(float, state["ro"]), strict=True))
        direction, shares = -gradient, []
        for change, step, inverse in reversed(history):
            shares.append(_dot(step, direction) * inverse)
            direction = direction - change * shares[-1]
        direction = direction * float(state["H_diag"])
        for (change, step, inverse), share in zip(history, reversed(shares), strict=True):
            direction = direction + step * (share - _dot(change, direction) * inverse)
        return direction

    def _moved(self, start: Point, last: bool) -> tuple[float, Tensor]:
        """Move the parameters along the direction; return the loss and the gradient there, or the values of `start` in the last iteration."""
        state, group = self.state, self.group
        direction = state["d"]
        if group["line_search_fn"] is None:
            self._move(direction, state["t"])
            return (start.loss, start.gradient) if last else self._evaluated()[1:]
        point = _strong_wolfe(self._searched, start, state["t"], _largest(direction), group["max_eval"] - self.evaluations, group["tolerance_change"])
        state["t"] = point.distance
        self._move(direction, point.distance)
        return point.loss, point.gradient

    def _searched(self, distance: float) -> Point:
        """Evaluate the closure at a distance along the direction, and restore the parameters."""
        direction, before = self.state["d"], [p.clone() for p in self.params]
        self._move(direction, distance)
        _, loss, gradient = self._evaluated()
        for p, value in zip(self.params, before, strict=True):
            p.copy_(value)
        return Point(distance, loss, gradient, _dot(gradient, direction))


def _dot(x: Tensor, y: Tensor) -> float:
    return float((x * y).sum())


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def _strong_wolfe(evaluate: Callable[[float], Point], start: Point, distance: float, size: float, limit: int, tolerance: float) -> Point:
    """Return a point of the line that fulfils the strong Wolfe conditions, or the best one after `limit` rounds.

    `size` is the largest element of the direction, and `tolerance` the smallest change of the parameters.
    """
    previous, point = start, evaluate(distance)
    for count in range(limit):
        if _too_high(point, start) or (count > 1 and point.loss >= previous.loss):
            break
        if abs(point.slope) <= -_CURVATURE * start.slope:
            return point
        if point.slope >= 0:
            break
        nearest, farthest = point.distance + 0.01 * (point.distance - previous.distance), 10 * point.distance
        previous, point = point, evaluate(_cubic_minimum(previous, point, nearest, farthest))
    else:
        previous, count = start, limit
    low, high = sorted((previous, point), key=lambda each: each.loss)
    return _refined(evaluate, start, low, high, size, limit - count, tolerance)


def _refined(evaluate: Callable[[float], Point], start: Point, low: Point, high: Point, size: float, limit: int, tolerance: float) -> Point:
    """Shrink the interval between `low`, the end with the smaller loss, and `high` until a point fulfils the Wolfe conditions."""
    slow = False
    for _ in range(limit):
        left, right = sorted((low.distance, high.distance))
        if (right - left) * size < tolerance:
            break
        distance, near = _cubic_minimum(low, high, left, right), 0.1 * (right - left)
        close = min(right - distance, distance - left) < near
        if close and (slow or not left < distance < right):
            distance = right - near if abs(distance - right) < abs(distance - left) else left + near
            close = False
        slow = close
        point = evaluate(distance)
        if _too_high(point, start) or point.loss >= low.loss:
            low, high = (point, low) if point.loss < low.loss else (low, point)
        elif abs(point.slope) <= -_CURVATURE * start.slope:
            return point
        else:
            low, high = point, low if point.slope * (high.distance - low.distance) >= 0 else high
    return low


def _too_high(point: Point, start: Point) -> bool:
    """Return True if the loss at `point` violates the Wolfe condition of sufficient decrease."""
    return point.loss > start.loss + _DECREASE * point.distance * start.slope


def _cubic_minimum(a: Point, b: Point, low: float, high: float) -> float:
    """Return the minimum of the cubic polynomial through two points with their slopes, within [low, high]; the middle if there is none."""
    if a.distance > b.distance:
        a, b = b, a
    mean = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.distance - b.distance)
    square = mean**2 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    root = math.sqrt(square)
    minimum = b.distance - (b.distance - a.distance) * ((b.slope + root - mean) / (b.slope - a.slope + 2 * root))
    return min(max(minimum, low), high)
