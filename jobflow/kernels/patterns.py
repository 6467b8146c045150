"""Tables of graph patterns per target, read by the compiler: operations to merge, and storage formats of their operands.

    Fold      merges a reader with the producer of one of its inputs:           bias_add(matmul(a, b), c) -> product sum
    SkipZeros replaces an operation that reads zeros above a diagonal:          batch matmul of causal weights
    Formats   lists the memory orders that operations accept or produce

Each Fold and SkipZeros pattern is tested with its samples.  A sample matches its pattern and no other, and has the same result as the
replaced operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType
from jobflow.kernels.region import Region
from jobflow.ops.activation import Gelu
from jobflow.ops.matmul import BiasAdd, Product
from jobflow.ops.op import Op
from jobflow.ops.pointwise import Elementwise, ElementwiseGrad


@dataclass(frozen=True)
class FoldSample:
    """A sample of a fold: a reader, the producer of its input `index`, and a function that returns arrays for the merged operation.

    `reads` is the number of the producer's inputs.
    """

    reader: Op
    index: int
    producer: Op
    reads: int
    arrays: Callable[[], Sequence[Array]]


@dataclass(frozen=True)
class Fold:
    """A pattern that merges a reader with the producer of its input `index`.

    `replacement(reader, index, producer, *types)` returns the merged operation, or None if the pattern does not apply.  The merged operation reads
    the producer's inputs in place of the reader's input `index`.  `types` are the types of the reader's inputs.
    """

    name: str
    reader: type[Op]
    producer: type[Op]
    replacement: Callable[..., Op | None]
    samples: tuple[FoldSample, ...]

    def folded(self, reader: Op, index: int, producer: Op, types: Sequence[TensorType]) -> Op | None:
        if not isinstance(reader, self.reader) or not isinstance(producer, self.producer):
            return None
        return self.replacement(reader, index, producer, *types)


@dataclass(frozen=True)
class Epilogues:
    """Functions that merge a product with the operations around it; the compiler applies them before all other patterns.

    after     after(product, reader, index, types, keeps): the product with the reader of its result, which is the reader's input `index`.
              `types` are the types of the reader's inputs.  With `keeps`, others read the result too, and it is the second output.
    sums      sums(product, index, reader, type): the product with a sum of its factor number `index`, or of its result for index -1, as
              the last output; `type` is the type of the summed matrix

    Both return None if the operations cannot be merged.  A merged operation reads the inputs of the product, then the other inputs of the reader.
    Inputs from the third on have the element type of the result.
    """

    after: Callable[[Op, Op, int, Sequence[TensorType], bool], Op | None]
    sums: Callable[[Op, int, Op, TensorType], Op | None]


@dataclass(frozen=True)
class SkipZeros:
    """A pattern for operations of exactly this class whose input `index` is zero above the diagonal of its last two axes.

    `replacement(op)` returns the operation that runs instead.
    """

    name: str
    reader: type[Op]
    index: int
    replacement: Callable[[Any], Op]
    sample: Op


@dataclass(frozen=True)
class Formats:
    """Memory orders that operations of these classes accept.

    strided         write into strided memory about as fast as into dense memory
    any_order       accept matrices in column-major order as well as in row-major order
    columns         predicates: columns[class](op, *types) is True if a matrix output is computed faster in column-major order
    images          are fastest on values [n,c,*spatial] stored with n innermost, or with c innermost if `channels_last`
    channels_last   images are stored in the order n, *spatial, c, and filters [o,c,*kernel] in the order o, *kernel, c
    fewest_samples  smallest n to store with n innermost; with fewer samples, vectors are not full
    products        have operands whose rows are padded
    rows            pairs (length, multiple): rows of at least this length are padded to the multiple; the first pair that fits applies
    """

    strided: tuple[type[Op], ...] = (Elementwise, ElementwiseGrad, Gelu, Product, BiasAdd)
    any_order: tuple[type[Op], ...] = ()
    columns: Mapping[type[Op], Callable[..., bool]] = field(default_factory=dict)
    images: tuple[type[Op], ...] = ()
    channels_last: bool = False
    fewest_samples: int = 0
    products: tuple[type[Op], ...] = ()
    rows: tuple[tuple[int, int], ...] = ()

    def writes_strided(self, op: Op) -> bool:
        return _all_are(op, self.strided)

    def accepts_any_order(self, op: Op) -> bool:
        return _all_are(op, self.any_order)

    def prefers_columns(self, op: Op, types: Sequence[TensorType]) -> bool:
        predicate = self.columns.get(type(op))
        return predicate is not None and predicate(op, *types)


@dataclass(frozen=True)
class Patterns:
    """The tables of a target.

    `lower[class](op, *known)` returns True if the output is zero above its diagonal; `known` contains the same fact for each input.
    """

    folds: tuple[Fold, ...] = ()
    triangles: tuple[SkipZeros, ...] = ()
    lower: Mapping[type[Op], Callable[..., bool]] = field(default_factory=dict)
    formats: Formats = Formats()
    epilogues: Epilogues | None = None


def _all_are(op: Op, classes: tuple[type[Op], ...]) -> bool:
    """Return True if the operation is of one of these classes; for a region, return True if all of its members are."""
    return all(_all_are(member.op, classes) for member in op.members) if isinstance(op, Region) else isinstance(op, classes)


#: tables of targets without patterns
PATTERNS = Patterns()
