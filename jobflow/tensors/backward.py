"""The backward pass: propagation of gradients from tensors to their leaves.

Nodes are processed newest first.  The gradients that several operations compute for one tensor are summed.  After the last of these operations,
the sum for a leaf is redistributed to the layout of the leaf, and added to `grad` in place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, PlacementError, ShapeError, user_line
from jobflow.core.layout import MAX, B, Layout, Partial
from jobflow.core.types import type_of
from jobflow.ops.arithmetic import Add
from jobflow.ops.op import apply
from jobflow.ops.source import Constant
from jobflow.runtime.buffer_pool import POOL, owns_memory
from jobflow.tensors.convert import convert, convert_array
from jobflow.tensors.gpus import anchor_of, as_numpy, duplicate, may_share_memory
from jobflow.tensors.gpus import zeros as zero_array
from jobflow.tensors.in_place_writes import add_into
from jobflow.tensors.run import Running
from jobflow.tensors.state import EagerState, gradients, state
from jobflow.tensors.tape import Edge, Gradients, Hook, OpGradient, ReadyCallback, ReleasedError, TapeNode, anomalies, record
from jobflow.tensors.tensor import TensorBase

T = TypeVar("T", bound=TensorBase)


def backward(
    roots: Sequence[TensorBase],
    gradients_of_roots: Sequence[TensorBase | None],
    *,
    keep: bool = False,
    create: bool = False,
    only: Sequence[TensorBase] | None = None,
    into: Sequence[TensorBase] | None = None,
) -> Any:
    """Compute the gradients of `roots`, and add them to the `grad` of the leaves, or of the tensors `into` only.

    With `only`, return the gradients of the tensors `only` instead.  `gradients_of_roots` has None for a root of one element with gradient 1.0.
    `keep` retains the graph for another pass.  `create` records the gradient operations, for gradients of gradients.
    """
    here = state()
    pass_on = Running(here, None, create) if here.building is None else here.building.backward_pass(create)
    with scope.using(interpreter=pass_on, autocast=None), gradients(create):
        seeds = [_seed(root, gradient) for root, gradient in zip(roots, gradients_of_roots, strict=True)]
        sweep = (Sweep if here.building is None else here.building.sweep)(here, keep or create, only if into is None else into)
        results = sweep.run(roots, seeds)
        for x, gradient in zip(into or (), results, strict=False):
            if gradient is not None and not _retains(x):
                sweep.accumulate(x, gradient)
        return results


def _seed(root: TensorBase, gradient: TensorBase | None) -> TensorBase:
    if not root._needs_gradient:
        raise JobError(
            f"{_here()}: this {root.tensor_type} tensor does not require gradients; call requires_grad_() on an input, and compute the tensor "
            "outside no_grad() and nn.Graph; a graph differentiates only in build, and flow.compile also afterwards"
        )
    if gradient is None:
        if root.tensor_type.size != 1:
            size = f"{root.tensor_type.size} elements"
            raise JobError(
                f"{_here()}: a tensor of {size} needs an explicit gradient, because only a single element has the default 1.0; "
                f"pass a tensor of the same type"
            )
        _interpreter().placement = anchor_of(root)
        return apply(Constant(root.tensor_type.shape, root.tensor_type.dtype, 1.0))
    if not isinstance(gradient, TensorBase):
        raise ArgumentError(
            f"{_here()}: the gradient of a {root.tensor_type} tensor must be a tensor, or None for 1.0; got {type(gradient).__name__}"
        )
    if (gradient.layout and gradient.layout.placement) != (root.layout and root.layout.placement):
        raise PlacementError(
            f"{_here()}: the gradient {_described(gradient)} has another placement than the tensor {_described(root)}; convert it with to_global"
        )
    if gradient.tensor_type != root.tensor_type:
        raise ShapeError(f"{_here()}: the gradient {gradient.tensor_type} has another type than the tensor {root.tensor_type}; cast or reshape it")
    return gradient


def _here() -> str:
    return f"backward at {user_line()}"


def _interpreter() -> Any:
    """Return the interpreter of the backward pass: a `Running`, or the interpreter of the program being traced."""
    return scope.current().interpreter


class Sweep(Generic[T]):
    """One backward pass over the recorded operations, with the gradients that are not yet propagated."""

    def __init__(self, here: EagerState, keep: bool, only: Sequence[T] | None) -> None:
        self.here = here
        self.keep = keep
        self.targets = () if only is None else only
        self.only = None if only is None else {_gradient_key(x) for x in only}
        self.requested: dict[Any, T] = {}
        #: per reached node, the gradients of its outputs so far
        self.waiting: dict[TapeNode, list[T | None]] = {}
        self.queue: list[tuple[int, TapeNode]] = []
        #: per leaf, the number of pending readers, and the sum so far
        self.readers: dict[Any, int] = {}
        self.sums: dict[Any, Any] = {}
        #: leaves whose sum has memory that no other tensor uses
        self.own: set[Any] = set()
        #: edges whose gradient is zero by formula and not computed
        self.zero: list[Edge] = []

    def run(self, roots: Sequence[T], seeds: Sequence[T]) -> list[T | None]:
        edges: list[Edge] = [(root.node, root.index) if root.node is not None else root for root in roots]
        self.count(edges)
        for edge, seed in zip(edges, seeds, strict=True):
            self.pass_on(edge, seed)
        while self.queue:
            _, node = heapq.heappop(self.queue)
            self.through(node, self.waiting.pop(node))
        for x in list(self.sums):  # leaves for which some operations computed no gradient
            self.leaf(x)
        if self.zero:
            self.fill_zeros()
        while self.only is None and self.here.own.after_backward:
            self.here.own.after_backward.pop(0)()
        results = [self.requested.get(_gradient_key(x)) for x in self.targets]
        return [
            gradient if gradient is None or x.layout is None else in_layout_of(self.here, gradient, x)
            for gradient, x in zip(results, self.targets, strict=True)
        ]

    def count(self, edges: Sequence[Edge]) -> None:
        """Count the gradients that each leaf will receive: one per edge to the leaf, from the roots or from a node that the roots reach."""
        visited: set[TapeNode] = set()
        ahead = list(edges)
        while ahead:
            edge = ahead.pop()
            if isinstance(edge, TensorBase):
                self.readers[edge] = self.readers.get(edge, 0) + 1
            elif edge is not None and edge[0] not in visited:
                visited.add(edge[0])
                ahead.extend(edge[0].edges)

    def pass_on(self, edge: Edge, gradient: T | None, own: bool = False) -> None:
        """Add a gradient to the output of a node or to the leaf that `edge` denotes.

        None adds nothing, but a leaf counts it as received.  `own` means that no other tensor uses the memory of the gradient.
        """
        if isinstance(edge, TensorBase):
            self.readers[edge] -= 1
            if gradient is not None:
                so_far = self.sums.get(edge)
                self.sums[edge] = gradient if so_far is None else _sum(so_far, gradient)
                if so_far is not None or (own and owns_memory(gradient.array)):
                    self.own.add(edge)
            if not self.readers[edge] and edge in self.sums:
                self.leaf(edge)
        elif edge is not None and gradient is not None:
            node, index = edge
            if node not in self.waiting:
                self.waiting[node] = [None] * node.outputs
                heapq.heappush(self.queue, (-node.number, node))
            so_far = self.waiting[node][index]
            self.waiting[node][index] = gradient if so_far is None else _sum(so_far, gradient)

    def through(self, node: TapeNode, gradients: list[T | None]) -> None:
        """Propagate gradients from the outputs of a node to its inputs."""
        if node.hooks or node.retained or self.only is not None:
            for index, gradient in enumerate(gradients):
                if gradient is not None:
                    gradients[index] = self.shown(node, index, gradient)
        if node.backward is None:
            raise ReleasedError(
                f"{_here()}: the graph behind {node!r} was used by an earlier backward pass, which freed its saved values; "
                f"call backward(retain_graph=True) the first time"
            )
        results = self.results(node, node.backward, gradients)
        source = node.backward
        own = source.own(len(node.edges)) if isinstance(source, OpGradient) else (False,) * len(node.edges)
        if not self.keep:
            node.drop()
        for edge, result, alone in zip(node.edges, results, own, strict=True):
            if result is None and edge is not None and isinstance(source, OpGradient):
                self.zero.append(edge)
            self.pass_on(edge, result, alone)

    def fill_zeros(self) -> None:
        """Store zeros as the gradient of tensors whose gradient is zero by formula.

        A None that the gradient function of a user returns does not count as zero.
        """
        places = set()
        for edge in _behind(self.zero):
            if not isinstance(edge, TensorBase):
                places.add((id(edge[0]), edge[1]))
                tensor = edge[0].retaining(edge[1])
                if tensor is not None and tensor._gradient is None and self.only is None:
                    tensor._gradient = zeros(tensor)
            elif edge in self.readers:
                self.sums[edge] = self.zeros(edge)
                self.own.add(edge)
                self.leaf(edge)
        for x in self.targets:
            if _gradient_key(x) in places and _gradient_key(x) not in self.requested:
                self.requested[_gradient_key(x)] = self.zeros(x)

    def zeros(self, x: Any) -> T:
        """Return zeros with the type and layout of x."""
        return zeros(x)

    def results(self, node: TapeNode, backward: Callable[..., Gradients], gradients: list[T | None]) -> Gradients:
        """Return the gradients of a node's inputs, computed by `backward` from `gradients`, the gradients of its outputs.

        With anomaly detection, errors name the line of the forward operation.  NaN in a gradient raises JobError, unless `check_nan` is False.
        """
        if not anomalies.enabled:
            return backward(node.saved_tensors(_interpreter().records), gradients)
        try:
            results = backward(node.saved_tensors(_interpreter().records), gradients)
        except Exception as error:
            error.add_note(f"in the gradient of {node.operation} at {_line_of(node)}")
            raise
        for i, gradient in enumerate(results):
            if anomalies.check_nan and gradient is not None and node.edges[i] is not None and _has_nan(self.here, gradient):
                raise JobError(
                    f"{_here()}: NaN in the gradient of input {i}, {gradient.tensor_type}, of {node.operation} at {_line_of(node)}; "
                    f"the gradient of its output was {', '.join(map(_described, gradients))}"
                )
        return results

    def shown(self, node: TapeNode, index: int, gradient: T) -> T:
        """Run the hooks of output `index` of a node on its gradient, and return the result.

        The result is also stored if `retain_grad` of the output, or `only`, requests this gradient.
        """
        gradient = self.hooked(node.hooks.get(index), gradient)
        key = id(node), index
        if self.only is not None and key in self.only:
            self.requested[key] = gradient
        tensor = node.retaining(index)
        if tensor is not None and (self.only is None or any(_key(edge) in self.only for edge in _behind([(node, index)]))):
            self.accumulate(tensor, gradient)
        return gradient

    @property
    def hook_interpreter(self) -> Any:
        """The interpreter of operations that hooks call; None, because these operations run eagerly."""
        return None

    def hooked(self, hooks: dict[int, Hook] | None, gradient: T) -> T:
        if hooks:
            with scope.using(interpreter=self.hook_interpreter):
                for hook in tuple(hooks.values()):
                    changed = hook(gradient)
                    if changed is not None:
                        gradient = like(gradient, changed, "the return value of a tensor hook")
        return gradient

    def leaf(self, x: Any) -> None:
        """Run the hooks of a leaf on its complete gradient, and add the result to its `grad`.

        With `only`, the result is stored for the leaves in `only`, and dropped for other leaves.
        """
        gradient = self.hooked(x.hooks, self.sums.pop(x))
        del self.readers[x]
        if self.only is None:
            self.accumulate(x, gradient, x in self.own and not _may_keep(x.hooks))
        elif id(x) in self.only:
            self.requested[id(x)] = gradient

    def accumulate(self, x: T, gradient: T, own: bool = False) -> None:
        """Add `gradient` to the `grad` of x, in the layout of the existing `grad`, or else in the layout of x.

        The sum is a new tensor if it is recorded or x is not a leaf, as in PyTorch; otherwise the addition is in place.
        `own` means that no other tensor uses the memory of the gradient.
        """
        known = x._gradient
        target = x if known is None else known
        if target.layout is not None and gradient.layout != target.layout:
            before, gradient = gradient, in_layout_of(self.here, gradient, target)
            own = own or not may_share_memory(gradient.array, before.array)
        with scope.lock():  # several threads may reach the same leaf
            known = x._gradient
            if known is None:
                x._gradient = gradient if own or _interpreter().records else _copied(gradient)
            elif _interpreter().records or x.node is not None:
                x._gradient = _sum(known, gradient)
            else:
                add_into(self.here, known, gradient, "backward")


def like(gradient: TensorBase, replacement: Any, what: str) -> Any:
    """Return `replacement`, the result of a hook for `gradient`.

    Raises: ArgumentError unless it is a tensor; ShapeError if its type differs, or if one of the tensors is local and the other global.
    """
    if not isinstance(replacement, TensorBase):
        raise ArgumentError(f"{_here()}: {what} must be a tensor {gradient.tensor_type}, or None for no change; got {type(replacement).__name__}")
    if replacement.tensor_type != gradient.tensor_type or (replacement.layout is None) != (gradient.layout is None):
        raise ShapeError(f"{_here()}: {what} must match the gradient {_described(gradient)}; got {_described(replacement)}")
    return replacement


def _described(x: TensorBase | None) -> str:
    return "nothing" if x is None else f"{x.tensor_type} {'local' if x.layout is None else x.layout}"


def _line_of(node: TapeNode) -> str:
    return "an unknown line, recorded without anomaly detection" if node.line is None else str(node.line)


def _has_nan(here: EagerState, x: TensorBase) -> bool:
    """Return True if the gradient x has NaN on any rank of its placement; all these ranks return the same."""
    array = as_numpy(x.array)
    local_answer = bool(np.isnan(array.astype(np.float64) if array.dtype.kind == "V" else array).any())
    if x.layout is None or x.layout.placement.size == 1:
        return local_answer
    flag = np.array([local_answer], np.int32)
    where = [replace(x.layout, sbp=(sbp,) * len(x.layout.sbp)) for sbp in (Partial(MAX), B)]
    return bool(convert_array(here, flag, type_of(flag), where[0], where[1], "NaN detection").any())


def zeros(x: TensorBase) -> Any:
    """Return zeros with the type and layout of x."""
    return TensorBase.new(x.tensor_type, x.layout, zero_array(x.array, tuple(x.array.shape), x.tensor_type.dtype))


def _behind(edges: Sequence[Edge]) -> Iterator[tuple[TapeNode, int] | TensorBase]:
    """Iterate over `edges` and all edges that lead from them towards the leaves, each edge once."""
    visited: set[Any] = set()
    ahead = list(edges)
    while ahead:
        edge = ahead.pop()
        if edge is not None and edge not in visited:
            visited.add(edge)
            yield edge
            if not isinstance(edge, TensorBase) and edge[0] not in visited:
                visited.add(edge[0])
                ahead.extend(edge[0].edges)


def _may_keep(hooks: dict[int, Hook] | None) -> bool:
    """Return True if one of the `hooks` may have stored or replaced the gradient, that is, if it is not a `ReadyCallback`."""
    return bool(hooks) and not all(isinstance(hook, ReadyCallback) for hook in (hooks or {}).values())


def _copied(x: T) -> T:
    if isinstance(x.array, np.ndarray):
        copy = POOL.array(x.array.shape, x.array.dtype)
        np.copyto(copy, x.array)
    else:
        copy = duplicate(x.array)
    result = TensorBase.new(x.tensor_type, x.layout, copy)
    result._provenance, result._device = x._provenance, x._device
    return result


def _sum(a: T, b: T) -> T:
    return apply(Add(), a, b)


def _gradient_key(x: TensorBase) -> Any:
    return id(x) if x.node is None else (id(x.node), x.index)


def _key(edge: Edge) -> Any:
    return (id(edge[0]), edge[1]) if isinstance(edge, tuple) else id(edge)


def _retains(x: TensorBase) -> bool:
    return x.node is not None and x.node.retaining(x.index) is x


def in_layout_of(here: EagerState, gradient: T, like: Any) -> T:
    """Return a global gradient in the layout of the global tensor `like`."""
    assert like.layout is not None
    return redistributed_gradient(here, gradient, like.layout)


def redistributed_gradient(here: EagerState, gradient: T, layout: Layout) -> T:
    """Return a global gradient in another layout.

    The redistribution is recorded for gradients of gradients if the gradient requires gradients and recording is enabled.
    """
    if gradient.layout == layout:
        return gradient
    assert gradient.layout is not None
    if here.building is not None:
        return here.building.change(gradient, layout, None)
    one = gradient.layout.placement is layout.placement and layout.placement.size == 1
    array = gradient.array if one else convert(here, gradient, layout, "a gradient")  # on one rank all layouts are equal
    result = TensorBase.new(gradient.tensor_type, layout, array)
    if gradient._needs_gradient and here.grad_enabled:
        record("to_global", (gradient,), (result,), RedistributeGradient(here, gradient_layout(gradient.layout)))
    return result


@dataclass(frozen=True, slots=True)
class RedistributeGradient:
    """The gradient function of a redistribution: a redistribution to `target`, if set, and then to `source`."""

    here: EagerState
    source: Layout
    target: Layout | None = None

    def __call__(self, saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        assert gradient is not None
        if self.target is not None:
            gradient = redistributed_gradient(self.here, gradient, self.target)
        return (redistributed_gradient(self.here, gradient, self.source),)


def gradient_layout(layout: Any) -> Any:
    """Return the layout of the gradient of a tensor with this layout: B in place of P.

    Every rank needs the whole gradient of a sum over ranks.
    """
    return replace(layout, sbp=tuple(B if isinstance(sbp, Partial) else sbp for sbp in layout.sbp))
