"""The choice of a signature for a node: the policy of layout inference.

The policy is greedy, as in the legacy system: it never looks ahead, so earlier nodes explain each layout.  These rules apply per mesh
dimension:

1. Signatures that are illegal for the number of ranks are excluded.  An op that updates a variable in place reads it as stored,
   or whole if no signature allows that, because variables are written after all communication.
2. The layout that the user requests for an input (`Operand.requested`) excludes signatures with another layout.  Optional requests
   (variables stored split, layouts of strategies) are satisfied as often as possible.
3. The gradient of an input that the forward op read in pieces is computed in these pieces, or partial, if a signature allows it.
   No other op splits whole inputs.
4. Signatures that cut an axis into fewer elements than ranks are excluded, unless only they satisfy a request.

On a mesh of one dimension, the signature with the most inputs in their present layout wins.  Ties go to the signature that moves
fewer bytes: an input in its present layout counts zero, any other input its size.  Signatures that build P or split a B come last.
The order of the rule resolves remaining ties.

On a mesh of several dimensions the candidates are all combinations, the outermost dimension slowest.  A candidate that reads
every input in its present layout wins immediately.  Otherwise the lowest `price` wins, in which splitting a B is almost free.
Ties go to the last candidate.

Example, two ranks: x S(0), w B.  MatMul "mk,kn->mn" takes (S(0) B -> S(0)), the present layout of both inputs.  Its gradient for w
is x' dy with both S(0): "km,kn->mn" split along k gives P.  The update accepts only B B B, so the gradient is all_reduced.

The orders of signatures and of candidates were measured on the legacy system; docs/internals/decisions lists the intended differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import B, Broadcast, Partial, Sbp, Signature, Split
from jobflow.core.types import TensorType
from jobflow.ops.op import Op

_LAST = 1 << 62
_LATE = 1 << 31

#: S/B/P per mesh dimension; None for any layout
Marks = tuple[Sbp | None, ...]


@dataclass(frozen=True)
class Operand:
    """An input of a node, with its present and its requested layout."""

    type: TensorType
    #: its layout on the mesh of the node, at present or after a move there
    now: Marks
    #: True if it has a mesh of this shape already
    here: bool = True
    #: the layout in which it should be read; `required` if no other layout is allowed
    requested: Marks = ()
    required: bool = False

    def requested_along(self, dimension: int) -> Sbp | None:
        return self.requested[dimension] if self.requested else None


@dataclass(frozen=True)
class Case:
    """The arguments of `choose`: an operation, its operands and the mesh."""

    op: Op
    operands: tuple[Operand, ...]
    mesh: tuple[int, ...]
    #: per output that is a gradient, the layout of the forward value; () for other outputs
    pieces: tuple[Marks, ...] = ()
    #: True for eager operations: inputs that are split into fewer elements than ranks may stay split, and a single rank
    #: propagates layouts as several ranks do, although no data moves
    at_once: bool = False

    def __str__(self) -> str:
        return f"{self.op} on a mesh of {'x'.join(map(str, self.mesh))}"


@dataclass(frozen=True)
class Choice:
    """The result of `choose`: one signature per mesh dimension, and the requests and splits that the signatures do not satisfy."""

    signatures: tuple[Signature, ...]
    #: the first mesh dimension along which no signature satisfies the required layouts
    unmet: int | None = None
    #: large inputs whose split axis no signature accepts, if they would be gathered or the split was requested
    stuck: tuple[int, ...] = ()

    def input(self, index: int) -> tuple[Sbp, ...]:
        return tuple(s.inputs[index] for s in self.signatures)

    def output(self, index: int) -> tuple[Sbp, ...]:
        return tuple(s.outputs[index] for s in self.signatures)


def choose(case: Case) -> Choice:
    """Return the choice of this module's policy: one signature per mesh dimension, and the unsatisfied requests and splits."""
    if case.at_once and math.prod(case.mesh) == 1:
        return replace(choose(replace(case, mesh=(2,) * len(case.mesh))), stuck=())
    listed = case.op.rule(*(operand.type for operand in case.operands)).signatures()
    unmet: int | None = None
    options: list[list[Signature]] = []
    wider: list[list[Signature]] = []
    for dimension, n in enumerate(case.mesh):
        legal = [s for s in listed if s.legal(n)]
        if n == 1 or not case.operands:
            options.append([_all_whole(case, legal)])
            wider.append(options[-1])
            continue
        requested = [s for s in legal if _meets(case, s, dimension)]
        if not requested and unmet is None:
            unmet = dimension
        options.append(_narrowed(case, requested or legal, dimension))
        wider.append(legal)
    if not any(_divides(case, signatures) for signatures in product(*options)):
        options = wider  # each request is possible alone, but the op does not accept nested pieces
    chosen = _nested(case, options) if sum(n > 1 for n in case.mesh) > 1 else _flat(case, options)
    return Choice(chosen, unmet, tuple(i for i in range(len(case.operands)) if _is_stuck(case, listed, chosen, i)))


def _all_whole(case: Case, legal: Sequence[Signature]) -> Signature:
    """Return the signature whose inputs and outputs are all B; if there is none, return the last legal signature."""
    return next((s for s in legal if all(sbp == B for sbp in (*s.inputs, *s.outputs))), legal[-1])


# Constraints --------------------------------------------------------------------------------------------------------


def _meets(case: Case, signature: Signature, dimension: int) -> bool:
    """Return True if the signature reads every input with a required layout in the required layout."""
    for operand, sbp in zip(case.operands, signature.inputs, strict=True):
        requested = operand.requested_along(dimension)
        if operand.required and requested is not None and requested != sbp:
            return False
    return True


def _narrowed(case: Case, legal: list[Signature], dimension: int) -> list[Signature]:
    """Return the signatures that satisfy rules 1 to 3 of the policy; at least one signature remains."""
    now = [operand.now[dimension] for operand in case.operands]
    written = sorted(set(case.op.alias.values()))
    if written:
        stored = [s for s in legal if all(s.inputs[i] == now[i] for i in written)]
        whole = [s for s in legal if all(s.inputs[i] == B for i in written) and all(sbp == B for sbp in s.outputs)]
        legal = stored or whole
    requests = [(i, requested) for i, operand in enumerate(case.operands) if (requested := operand.requested_along(dimension)) is not None]
    if requests:
        legal = _most(legal, lambda s: sum(s.inputs[i] == requested for i, requested in requests))
    split = False
    for i, marks in enumerate(case.pieces):
        piece = marks[dimension] if marks else None
        if isinstance(piece, Split) and any(s.outputs[i] == piece for s in legal):
            split = True
            legal = [s for s in legal if s.outputs[i] == piece or isinstance(s.outputs[i], Partial)]
    return legal if split else [s for s in legal if not _makes_pieces(s)] or legal


def _makes_pieces(signature: Signature) -> bool:
    """Return True if each rank has all inputs whole, but computes only a piece of an output."""
    return all(sbp == B for sbp in signature.inputs) and any(isinstance(sbp, Split) for sbp in signature.outputs)


def _most(signatures: list[Signature], count: Callable[[Signature], int]) -> list[Signature]:
    most = max(map(count, signatures))
    return [s for s in signatures if count(s) == most]


def _has_room(case: Case, signatures: Sequence[Signature]) -> bool:
    """Return True if every split axis of an input has at least one element per rank.

    For eager operations, return True also if all inputs already have the layouts that the signatures require.
    """
    if case.at_once and all(operand.here and operand.now == tuple(s.inputs[i] for s in signatures) for i, operand in enumerate(case.operands)):
        return True
    for i, operand in enumerate(case.operands):
        left = list(operand.type.shape)
        for signature, n in zip(signatures, case.mesh, strict=True):
            sbp = signature.inputs[i]
            if isinstance(sbp, Split) and n > 1:
                if left[sbp.axis] < n:
                    return False
                left[sbp.axis] //= n
    return True


def _divides(case: Case, signatures: Sequence[Signature]) -> bool:
    """Return True if each signature is legal for all ranks along the mesh dimensions that use it."""
    for signature in signatures:
        ranks = math.prod(n for other, n in zip(signatures, case.mesh, strict=True) if other.inputs == signature.inputs)
        if not signature.legal(ranks):
            return False
    return True


def _is_stuck(case: Case, listed: Sequence[Signature], chosen: Sequence[Signature], index: int) -> bool:
    operand = case.operands[index]
    if not operand.here or not (operand.required or operand.type.size == max(o.type.size for o in case.operands)):
        return False  # small inputs may move
    for dimension, signature in enumerate(chosen):
        now, read = operand.now[dimension], signature.inputs[index]
        if not isinstance(now, Split) or case.mesh[dimension] == 1 or any(s.inputs[index] == now for s in listed):
            continue
        if case.op.decompose_first or read == B or operand.requested_along(dimension) == now:
            return True
    return False


# One dimension ------------------------------------------------------------------------------------------------------


def _flat(case: Case, options: Sequence[list[Signature]]) -> tuple[Signature, ...]:
    dimension = next((d for d, n in enumerate(case.mesh) if n > 1), 0)
    whole = [signatures[0] for signatures in options]

    def all_of(signature: Signature) -> list[Signature]:
        return [*whole[:dimension], signature, *whole[dimension + 1 :]]

    roomy = [s for s in options[dimension] if _has_room(case, all_of(s))] or options[dimension]
    return tuple(all_of(min(roomy, key=lambda s: _preference(case, s, dimension))))


def _preference(case: Case, signature: Signature, dimension: int) -> tuple[int, int]:
    matches = cost = 0
    for operand, want in zip(case.operands, signature.inputs, strict=True):
        have = operand.now[dimension]
        if want == have:
            matches += operand.here
        elif isinstance(want, Partial):
            cost += _LAST
        else:
            cost += _LATE if have == B else operand.type.nbytes
    return -matches, cost


# Several dimensions -------------------------------------------------------------------------------------------------


def _nested(case: Case, options: Sequence[list[Signature]]) -> tuple[Signature, ...]:
    possible = [signatures for signatures in product(*options) if _divides(case, signatures)]
    candidates = [signatures for signatures in possible if _has_room(case, signatures)] or possible
    best, lowest = candidates[-1], math.inf
    for signatures in candidates:
        total = 0.0
        for i, operand in enumerate(case.operands):
            total += price(operand.now, tuple(s.inputs[i] for s in signatures), operand.type.shape, operand.type.nbytes, case.mesh)
        if not total:
            return signatures
        if total <= lowest:
            best, lowest = signatures, total
    return best


@lru_cache(maxsize=1 << 14)
def price(have: Marks, want: tuple[Sbp, ...], shape: tuple[int, ...], size: int, mesh: tuple[int, ...]) -> float:
    """Return the legacy price of a change of layout on a mesh of several dimensions; `size` is the size of the logical tensor in bytes.

    Neighbouring dimensions with the same change count as one.  A single change B -> S costs 1, S -> S size (n-1)/n,
    S -> B and P -> S size (n-1), P -> B twice as much.  Several changes cost 1 + the sum of these prices with n = all ranks.
    Each dimension that keeps its S(k) adds `size` if an outer dimension changes from or to the same S(k).
    """
    groups = _merged(have, want, shape, mesh)
    if all(a == b for a, b, _ in groups):
        return 0
    if len(groups) == 1:
        return _step(*groups[0], size)
    total = 1 + sum(_step(a, b, math.prod(mesh), size) for a, b, _ in groups)
    for i, (target, source, _) in enumerate(groups):
        if target == source and isinstance(target, Split) and any(a != b and target in (a, b) for a, b, _ in groups[:i]):
            total += size
    return total


def _merged(have: Marks, want: Marks, shape: tuple[int, ...], mesh: tuple[int, ...]) -> list[tuple[Sbp | None, Sbp | None, int]]:
    groups: list[tuple[Sbp | None, Sbp | None, int]] = []
    for a, b, n in zip(have, want, mesh, strict=True):
        if n == 1:
            continue
        if groups and groups[-1][:2] == (a, b) and all(_cuts_alike(sbp, shape, groups[-1][2] * n) for sbp in (a, b)):
            groups[-1] = (a, b, groups[-1][2] * n)
        else:
            groups.append((a, b, n))
    return groups


def _cuts_alike(sbp: Sbp | None, shape: tuple[int, ...], n: int) -> bool:
    """Return True if `sbp` is not a split, or if nested cuts of its axis yield the same pieces as one cut among n ranks."""
    return not isinstance(sbp, Split) or shape[sbp.axis] % n in (0, 1, n - 1)


def _step(have: Sbp | None, want: Sbp | None, n: int, size: int) -> float:
    if have == want:
        return 0
    if isinstance(want, Partial):
        return math.inf
    if isinstance(have, Broadcast):
        return 1
    if isinstance(have, Split) and isinstance(want, Split):
        return size * (n - 1) / n
    return size * (n - 1) * (2 if isinstance(want, Broadcast) and not isinstance(have, Split) else 1)
