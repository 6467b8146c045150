"""What a target makes of operations side by side, and how it likes their operands stored: rows of tables that the compiler reads.

    Fold      a reader takes in the maker of one of its inputs, and both become one operation:  bias_add(matmul(a, b), c) -> product sum
    SkipZeros an operation that reads zeros above a diagonal becomes one that skips them:       batch matmul of causal weights
    Formats   which operations take or make values in which order of memory

Each fold and triangle has samples, which are its test: they hit this row and no other, and give what the operations give that it replaces.
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
    """A reader, which of its inputs the maker makes, of how many, and the inputs of both as they are after the fold."""

    reader: Op
    index: int
    maker: Op
    reads: int
    arrays: Callable[[], Sequence[Array]]


@dataclass(frozen=True)
class Fold:
    """`replacement(reader, index, maker, *types)`: the op that takes the maker's inputs in place of the reader's input `index`, or None; types are
    those of the reader's inputs."""

    name: str
    reader: type[Op]
    maker: type[Op]
    replacement: Callable[..., Op | None]
    samples: tuple[FoldSample, ...]

    def folded(self, reader: Op, index: int, maker: Op, types: Sequence[TensorType]) -> Op | None:
        if not isinstance(reader, self.reader) or not isinstance(maker, self.maker):
            return None
        return self.replacement(reader, index, maker, *types)


@dataclass(frozen=True)
class SkipZeros:
    """`replacement(op)`: what runs where input `index` of an op of this very class is known to be zero above the diagonal of its last two axes."""

    name: str
    reader: type[Op]
    index: int
    replacement: Callable[[Any], Op]
    sample: Op


@dataclass(frozen=True)
class Formats:
    """Orders of memory that operations of these classes take.

    strided         write into memory of other strides as fast as into dense memory, or nearly
    any_order       take matrices stored column by column as well as row by row
    columns         whether the output, a matrix, is made faster column by column: columns[class](op, *types)
    images          are fastest on values [n,c,*spatial] stored with n innermost
    fewest_samples  fewer are not stored so: vectors would be too short to pay
    """

    strided: tuple[type[Op], ...] = (Elementwise, ElementwiseGrad, Gelu, Product, BiasAdd)
    any_order: tuple[type[Op], ...] = ()
    columns: Mapping[type[Op], Callable[..., bool]] = field(default_factory=dict)
    images: tuple[type[Op], ...] = ()
    fewest_samples: int = 0

    def writes_strided(self, op: Op) -> bool:
        return _all_are(op, self.strided)

    def takes_any_order(self, op: Op) -> bool:
        return _all_are(op, self.any_order)

    def wants_columns(self, op: Op, types: Sequence[TensorType]) -> bool:
        found = self.columns.get(type(op))
        return found is not None and found(op, *types)


@dataclass(frozen=True)
class Patterns:
    """The tables of a target.  `lower[class](op, *known)`: whether the output is zero above its diagonal; `known` says which inputs are."""

    folds: tuple[Fold, ...] = ()
    triangles: tuple[SkipZeros, ...] = ()
    lower: Mapping[type[Op], Callable[..., bool]] = field(default_factory=dict)
    formats: Formats = Formats()


def _all_are(op: Op, classes: tuple[type[Op], ...]) -> bool:
    """Whether the op, or each member of a region, is of these classes."""
    return all(_all_are(member.op, classes) for member in op.members) if isinstance(op, Region) else isinstance(op, classes)


#: of a target that has no tables of its own
PATTERNS = Patterns()
