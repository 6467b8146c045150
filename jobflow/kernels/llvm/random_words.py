"""Random words as a compiled loop over lane indices: the tier "llvm" of CPUs.  The bits are those of the tier "numpy"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from jobflow.core.types import Array, int32, int64
from jobflow.expressions import language as f
from jobflow.expressions import philox
from jobflow.expressions.language import Expression
from jobflow.kernels import llvm
from jobflow.kernels.registry import implements
from jobflow.kernels.whole_numbers import random_words
from jobflow.ops.op import Binder, Call
from jobflow.ops.random_tensors import RandomSource

#: elements; for fewer, compiling costs more than many runs save
FEWEST = 4096


@cache
def _words() -> tuple[Expression, ...]:
    """Of the lane index that is input 0; the stream, the two words of the key and the plane are the others."""
    stream, first, second, plane = (f.number(k, int64) for k in range(1, 5))
    return tuple(f.cast(word, int32) for word in random_words(f.element(0, int64), stream, (first, second), plane))


class CompiledStream(philox.Stream):
    """Words by the loop."""

    def words(self, lanes: Array, plane: int) -> Array:
        numbers = [np.array(n, np.int64) for n in (self.stream, *self.key, plane)]
        found = np.empty((4, lanes.shape[0]), np.uint32)
        for call, arguments in llvm.bind(_words(), [lanes.view(np.int64), *numbers], list(found.view(np.int32))):
            call(*arguments)
        return found


def _refused(op: RandomSource, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    return None if outputs[0].size >= FEWEST else f"{outputs[0].size} elements; a loop is compiled for {FEWEST} and more"


@implements(RandomSource, tier="llvm", refuses=_refused)
def compiled_random_words(op: RandomSource, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(partial(op.fill, words=CompiledStream), (np, *inputs, *outputs))]
