"""The namespace `flow.utils.checkpoint`: functions whose intermediate results are computed again for the backward pass, to save memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, counted, user_line
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.container import Sequential
from jobflow.tensors import backward as passes
from jobflow.tensors.state import building_now, gradients, state
from jobflow.tensors.tape import Edge, Gradients, TapeNode, edge_of, next_number, note

__all__ = ["checkpoint", "checkpoint_sequential", "noop_context_fn"]

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
#: legal values of `determinism_check`
_CHECKS = ("default", "none")


def noop_context_fn() -> Contexts:
    """Return two contexts without effect, for the forward pass and for the second computation."""
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Return function(*args, **kwargs) without saving its intermediate results; the backward pass calls the function again.

    With `preserve_rng_state`, the second call samples the random numbers of the first.  `context_fn` returns contexts for the two calls.
    With `determinism_check="none"`, the second call may return tensors of other types.  Graphs and compiled functions recompute the
    operations of the function.  `use_reentrant`, `debug` and `early_stop` have no effect.
    Raises: ArgumentError for arguments of wrong types.
    """
    what = f"checkpoint at {user_line()}"
    if not callable(function):
        raise ArgumentError(f"{what}: function must be a function or module; got {function!r}")
    for name, value in (("use_reentrant", use_reentrant), ("preserve_rng_state", preserve_rng_state), ("debug", debug), ("early_stop", early_stop)):
        if value is not None and not isinstance(value, bool):
            raise ArgumentError(f"{what}: {name} must be True or False; got {value!r}")
    if determinism_check not in _CHECKS:
        raise ArgumentError(f'{what}: determinism_check must be "default" or "none"; got {determinism_check!r}')
    if not callable(context_fn):
        raise ArgumentError(f"{what}: context_fn must be a function that returns two contexts; got {context_fn!r}")
    if use_reentrant and context_fn is not noop_context_fn:
        raise ArgumentError(f"{what}: context_fn needs use_reentrant=False; pass use_reentrant=False")
    if building_now() is not None:
        with scope.config(checkpointing=True):
            return function(*args, **kwargs)
    forward, again = context_fn()
    call = _Call(function, args, kwargs, again, _generators() if preserve_rng_state else None, scope.current().autocast, determinism_check)
    first = next_number()
    with forward:
        result = function(*args, **kwargs)
    return result if not state().grad_enabled else call.detached(result, first)


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True) -> Any:
    """Apply a list of functions, or an `nn.Sequential`, to `input` in `segments` parts of nearly equal length; all but the last are checkpointed.

    Raises: ArgumentError unless `segments` is an integer from 1 to the number of functions.
    """
    what = f"checkpoint_sequential at {user_line()}"
    if not isinstance(functions, Sequential | list | tuple) or not all(map(callable, functions)):
        raise ArgumentError(f"{what}: functions must be a list of functions, or an nn.Sequential; got {type(functions).__name__}")
    steps = list(functions)
    if isinstance(segments, bool) or not isinstance(segments, int) or not 1 <= segments <= len(steps):
        raise ArgumentError(f"{what}: segments must be an integer from 1 to {len(steps)}, the number of functions; got {segments!r}")
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size):
        input = checkpoint(_Composition(steps[start : start + size]), input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return _Composition(steps[size * (segments - 1) :])(input)


@dataclass(frozen=True, slots=True)
class _Composition:
    """Functions of one argument, one after another."""

    functions: Sequence[Callable[[Any], Any]]

    def __call__(self, x: Any) -> Any:
        for function in self.functions:
            x = function(x)
        return x


def _generators() -> list[tuple[Any, int, int]]:
    """Return (generator, seed, counter) for the local and the global random generator."""
    here = state()
    return [(each, each.seed, each.draws) for each in (here.local_generator, here.global_generator)]


def _restore(generators: Iterable[tuple[Any, int, int]]) -> None:
    for generator, seed, draws in generators:
        generator.seed, generator.draws = seed, draws


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a checkpointed function, with the context, random generators and autocast mode that the second call restores."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: AbstractContextManager[Any]
    generators: list[tuple[Any, int, int]] | None
    autocast: Any
    check: str

    def detached(self, result: Any, first: int) -> Any:
        """Return the result with its outputs attached to one node of the tape, which replaces the nodes of the call, numbered from `first`."""
        outputs = _outputs(result, first)
        if not outputs:
            return result
        edges = _boundary([edge_of(y) for y in outputs], first)
        fresh = [y.detach() for y in outputs]
        versions = [(x, x.version) for x in _tensors((self.args, self.kwargs))]
        types = [(y.tensor_type, y.layout) for y in outputs]
        node = TapeNode("checkpoint", tuple(edges.values()), len(outputs), _Recomputation(self, list(edges), versions, types))
        note(node, fresh)
        replaced = {id(old): new for old, new in zip(outputs, fresh, strict=True)}
        return _mapped(result, lambda y: replaced.get(id(y), y))

    def repeated(self) -> Any:
        """Call the function again, with the random numbers of the first call."""
        now = _generators()
        try:
            if self.generators is not None:
                _restore(self.generators)
            with scope.using(interpreter=None, autocast=self.autocast), gradients(True), self.context:
                return self.function(*self.args, **self.kwargs)
        finally:
            if self.generators is not None:
                _restore(now)


@dataclass(frozen=True, slots=True)
class _Recomputation:
    """The gradient of a checkpointed call: the second call, and a backward pass through it."""

    call: _Call
    #: keys of the edges of the node
    keys: list[Any]
    versions: list[tuple[Tensor, int]]
    types: list[Any]

    def __call__(self, saved: Sequence[Any], received: Gradients) -> Gradients:
        what = f"backward at {user_line()}"
        interpreter: Any = scope.current().interpreter
        if interpreter.records:
            raise JobError(f"{what}: gradients of gradients through checkpoint are not supported; call the function without checkpoint")
        for x, version in self.versions:
            if x.version != version:
                raise JobError(f"{what}: an argument {x.tensor_type} of a checkpointed function was overwritten after the call; clone() it first")
        first = next_number()
        outputs = _outputs(self.call.repeated(), first)
        if len(outputs) != len(self.types):
            raise JobError(
                f"{what}: a checkpointed function returned {len(self.types)} tensors, but {len(outputs)} in the second call; return equally many"
            )
        for y, (type, layout) in zip(outputs, self.types, strict=True):
            if self.call.check != "none" and (y.tensor_type, y.layout) != (type, layout):
                before, now = (f"{t}" if where is None else f"{t} {where}" for t, where in ((type, layout), (y.tensor_type, y.layout)))
                raise JobError(f"{what}: a checkpointed function returned {before}, but {now} in the second call; return tensors of equal types")
        leaves = _cut(outputs, first, _known_edges(self.call))
        unknown = set(leaves) - set(self.keys)
        if unknown:
            read = f"the second call of a checkpointed function reads {counted(len(unknown), 'tensor')} that the first call did not read"
            raise JobError(f"{what}: {read}; pass all tensors as arguments, and read the same tensors in both calls")
        pairs = [(y, g) for y, g in zip(outputs, received, strict=True) if g is not None]
        targets = [leaves[key] for key in self.keys if key in leaves]
        results = iter(passes.backward([y for y, _ in pairs], [g for _, g in pairs], only=targets))
        return [next(results) if key in leaves else None for key in self.keys]


def _outputs(result: Any, first: int) -> list[Tensor]:
    """Return each tensor of a result that depends on a node numbered from `first`, only once."""
    outputs = {id(y): y for y in _tensors(result) if _is_inside(edge_of(y), first)}
    return list(outputs.values())


def _key(edge: Edge) -> Any:
    return (id(edge[0]), edge[1]) if isinstance(edge, tuple) else id(edge)


def _is_inside(edge: Edge, first: int) -> bool:
    return isinstance(edge, tuple) and edge[0].number >= first


def _boundary(roots: Sequence[Edge], first: int) -> dict[Any, Edge]:
    """Return the edges from nodes numbered from `first` to leaves and earlier nodes, as a dict by `_key`."""
    edges: dict[Any, Edge] = {}
    for node in _nodes(roots, first):
        edges.update((_key(edge), edge) for edge in node.edges if edge is not None and not _is_inside(edge, first))
    return edges


def _nodes(roots: Sequence[Edge], first: int) -> list[TapeNode]:
    """Return the nodes numbered from `first` that lead to the roots."""
    visited: dict[TapeNode, None] = {}
    ahead = [edge for edge in roots if _is_inside(edge, first)]
    while ahead:
        node = ahead.pop()[0]
        if node not in visited:
            visited[node] = None
            ahead.extend(edge for edge in node.edges if _is_inside(edge, first))
    return list(visited)


def _known_edges(call: _Call) -> dict[Any, Tensor]:
    """Return the argument tensors by the keys of their edges; they determine the types of gradients."""
    return {_key(edge): x for x in _tensors((call.args, call.kwargs)) if (edge := edge_of(x)) is not None}


def _cut(outputs: Sequence[Tensor], first: int, known: dict[Any, Tensor]) -> dict[Any, Tensor]:
    """Replace edges from new nodes to leaves and earlier nodes by edges to new leaves; return these by the keys of the old edges."""
    leaves: dict[Any, Tensor] = {}

    def leaf(edge: Edge) -> Tensor:
        key = _key(edge)
        if key not in leaves:
            x = edge if isinstance(edge, Tensor) else known.get(key)
            leaves[key] = _leaf_like(outputs[0] if x is None else x, exact=x is not None)
        return leaves[key]

    for node in _nodes([edge_of(y) for y in outputs], first):
        node.edges = tuple(edge if edge is None or _is_inside(edge, first) else leaf(edge) for edge in node.edges)
    return leaves


def _leaf_like(x: Tensor, exact: bool) -> Tensor:
    """Return a leaf with the type of x, whose gradient has the gradient layout of x if `exact`, else any layout."""
    layout = passes.gradient_layout(x.layout) if exact and x.layout is not None else None
    leaf: Tensor = Tensor(x.tensor_type, layout, x.array)
    leaf._needs_gradient = True
    return leaf


def _tensors(x: Any) -> list[Tensor]:
    """Return the tensors in lists, tuples and dicts."""
    tensors: list[Tensor] = []
    _mapped(x, tensors.append)
    return tensors


def _mapped(x: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a structure of lists, tuples and dicts with function(tensor) in place of each tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, dict):
        return {name: _mapped(each, function) for name, each in x.items()}
    if isinstance(x, list | tuple):
        parts = [_mapped(each, function) for each in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x
