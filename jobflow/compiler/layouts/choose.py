"""The choice of a signature for a node: the policy of layout inference.

It is the legacy system's greedy one: it never looks ahead, so a layout is explained by what comes before it.  Per mesh dimension

1. A signature is left out if it is not legal for so many ranks.  An op that writes over a variable takes it as it is stored, or
   whole if it has no such signature: nothing is communicated once variables are written.
2. What the user asked of an input (`Operand.wish`) leaves only the signatures that read it so.  Of wishes that need not be met
   (variables stored split, layouts that strategies ask for) as many as possible are.
3. The gradient of what the forward op read in pieces is made in these pieces, or partial, if a signature gives the pieces.
   Nothing else is made in pieces of what is whole.
4. Signatures that cut an axis into fewer elements than there are ranks are left out, unless only they meet a wish.

Then, on a mesh of one dimension, the signature with the most inputs that already lie so wins.  Among equals, the one that moves
fewer bytes: nothing for an input that already lies so, its size otherwise; making P out of something, and cutting up a B, come
last.  Among equals still, the order in which the rule lists them.

On a mesh of several dimensions the candidates are all combinations, the outermost dimension slowest.  One that finds every input
as it lies is taken at once.  Else the lowest price wins (`price`), in which cutting up a B is almost free; among equals the last.

Example, two ranks: x S(0), w B.  MatMul "mk,kn->mn" takes (S(0) B -> S(0)): both inputs lie so already.  Its gradient for w
is x' dy with both S(0): "km,kn->mn" split along k gives P, and the update, which only takes B B B, has it all_reduced.

Both orders are what the legacy system was measured to do; docs/internals/decisions lists where the results differ on purpose.
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

#: S/B/P per mesh dimension; None where there is none to speak of
Marks = tuple[Sbp | None, ...]


@dataclass(frozen=True)
class Operand:
    """One input of a node, as the policy sees it."""

    type: TensorType
    #: how it lies on the mesh of the node, or would if it came there as it is
    now: Marks
    #: it lies on a mesh of this shape already
    here: bool = True
    #: how it is to be read, and whether it must be
    wish: Marks = ()
    firm: bool = False

    def wished(self, dimension: int) -> Sbp | None:
        return self.wish[dimension] if self.wish else None


@dataclass(frozen=True)
class Case:
    """All that a choice depends on."""

    op: Op
    operands: tuple[Operand, ...]
    mesh: tuple[int, ...]
    #: per output how the forward pass held what it is the gradient of; () if it is none
    pieces: tuple[Marks, ...] = ()
    #: of tensors that are computed at once: inputs that all lie cut into fewer elements than there are ranks may stay so, and on a rank
    #: alone layouts follow from layouts as they do among several, though nothing moves
    at_once: bool = False

    def __str__(self) -> str:
        return f"{self.op} on a mesh of {'x'.join(map(str, self.mesh))}"


@dataclass(frozen=True)
class Choice:
    """One signature per mesh dimension."""

    signatures: tuple[Signature, ...]
    #: the first mesh dimension along which no signature reads the inputs as they must be read
    unmet: int | None = None
    #: large inputs that lie split along an axis that no signature keeps, and would be gathered, or were asked to lie so
    stuck: tuple[int, ...] = ()

    def input(self, index: int) -> tuple[Sbp, ...]:
        return tuple(s.inputs[index] for s in self.signatures)

    def output(self, index: int) -> tuple[Sbp, ...]:
        return tuple(s.outputs[index] for s in self.signatures)


def choose(case: Case) -> Choice:
    """The signatures that the policy takes."""
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
        asked = [s for s in legal if _meets(case, s, dimension)]
        if not asked and unmet is None:
            unmet = dimension
        options.append(_narrowed(case, asked or legal, dimension))
        wider.append(legal)
    if not any(_divides(case, signatures) for signatures in product(*options)):
        options = wider  # each may be met alone, but pieces of pieces are not what the op takes
    chosen = _nested(case, options) if sum(n > 1 for n in case.mesh) > 1 else _flat(case, options)
    return Choice(chosen, unmet, tuple(i for i in range(len(case.operands)) if _is_stuck(case, listed, chosen, i)))


def _all_whole(case: Case, legal: Sequence[Signature]) -> Signature:
    """Every rank holds everything; an op that cannot be run so has one signature only, which says how."""
    return next((s for s in legal if all(sbp == B for sbp in (*s.inputs, *s.outputs))), legal[-1])


# Constraints --------------------------------------------------------------------------------------------------------


def _meets(case: Case, signature: Signature, dimension: int) -> bool:
    """Whether inputs that must be read in some way are."""
    for operand, sbp in zip(case.operands, signature.inputs, strict=True):
        wish = operand.wished(dimension)
        if operand.firm and wish is not None and wish != sbp:
            return False
    return True


def _narrowed(case: Case, legal: list[Signature], dimension: int) -> list[Signature]:
    """What steps 1 to 3 leave; never nothing."""
    now = [operand.now[dimension] for operand in case.operands]
    written = sorted(set(case.op.alias.values()))
    if written:
        stored = [s for s in legal if all(s.inputs[i] == now[i] for i in written)]
        whole = [s for s in legal if all(s.inputs[i] == B for i in written) and all(sbp == B for sbp in s.outputs)]
        legal = stored or whole
    wishes = [(i, wish) for i, operand in enumerate(case.operands) if (wish := operand.wished(dimension)) is not None]
    if wishes:
        legal = _most(legal, lambda s: sum(s.inputs[i] == wish for i, wish in wishes))
    in_pieces = False
    for i, marks in enumerate(case.pieces):
        piece = marks[dimension] if marks else None
        if isinstance(piece, Split) and any(s.outputs[i] == piece for s in legal):
            in_pieces = True
            legal = [s for s in legal if s.outputs[i] == piece or isinstance(s.outputs[i], Partial)]
    return legal if in_pieces else [s for s in legal if not _makes_pieces(s)] or legal


def _makes_pieces(signature: Signature) -> bool:
    """Of whole inputs each rank makes a piece of an output, though it could make all of it as well."""
    return all(sbp == B for sbp in signature.inputs) and any(isinstance(sbp, Split) for sbp in signature.outputs)


def _most(signatures: list[Signature], count: Callable[[Signature], int]) -> list[Signature]:
    most = max(map(count, signatures))
    return [s for s in signatures if count(s) == most]


def _has_room(case: Case, signatures: Sequence[Signature]) -> bool:
    """No axis of an input is cut into pieces of fewer elements than the next mesh dimension has ranks."""
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
    """Where a signature needs a number of ranks that divides something, all mesh dimensions that cut this way count."""
    for signature in signatures:
        ranks = math.prod(n for other, n in zip(signatures, case.mesh, strict=True) if other.inputs == signature.inputs)
        if not signature.legal(ranks):
            return False
    return True


def _is_stuck(case: Case, listed: Sequence[Signature], chosen: Sequence[Signature], index: int) -> bool:
    operand = case.operands[index]
    if not operand.here or not (operand.firm or operand.type.size == max(o.type.size for o in case.operands)):
        return False  # what is small beside the others may move
    for dimension, signature in enumerate(chosen):
        now, read = operand.now[dimension], signature.inputs[index]
        if not isinstance(now, Split) or case.mesh[dimension] == 1 or any(s.inputs[index] == now for s in listed):
            continue
        if case.op.smaller_first or read == B or operand.wished(dimension) == now:
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
    """The legacy price of a change of layout on a mesh of several dimensions; `size` is that of the logical tensor in bytes.

    Neighbouring dimensions along which the same happens count as one.  If one is left, B -> S costs 1, S -> S size (n-1)/n,
    S -> B and P -> S size (n-1), P -> B twice that.  If more are left, it is 1 + the sum of these with n = all ranks, and
    size once more for each dimension that keeps its S(k) while one further out changes from or to the same S(k).
    """
    groups = _merged(have, want, shape, mesh)
    if all(a == b for a, b, _ in groups):
        return 0
    if len(groups) == 1:
        return _step(*groups[0], size)
    total = 1 + sum(_step(a, b, math.prod(mesh), size) for a, b, _ in groups)
    for i, (kept, same, _) in enumerate(groups):
        if kept == same and isinstance(kept, Split) and any(a != b and kept in (a, b) for a, b, _ in groups[:i]):
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
    """Whether pieces of pieces are the pieces among all n ranks."""
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
