r"""Megatron's token files: concatenated documents in `<prefix>.bin` and their index in `<prefix>.idx`.

    idx   "MMIDIDX\0\0"  uint64 1  uint8 kind  uint64 n  uint64 m  |  int32[n] lengths  int64[n] byte offsets  int64[m] ignored

`kind` is the code of the token type, and n is the number of documents. Lengths are numbers of tokens.

For the sequence length s, sample k consists of s + 1 tokens from position k s on, in the concatenated documents of all epochs. The documents of
all epochs are shuffled together. If fewer than 80 % of the last epoch's samples are used, its documents are shuffled separately. Samples are
shuffled in the same groups.
"""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError
from jobflow.core.types import Array
from jobflow.data.files import fault_of
from jobflow.data.sample_order import Order
from jobflow.expressions import philox
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.untrusted import mapped

WHAT = "megatron_gpt_mmap_data_loader"
fault = fault_of(WHAT)
MAGIC, HEAD = b"MMIDIDX\0\0", 34
#: element types by their code in the index
KINDS = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
#: the last epoch is shuffled separately if fewer than this fraction of its samples are used
LAST = 0.8


@dataclass(frozen=True, eq=False)
class TokenFiles:
    """The token and index files with the path prefix `prefix`; `split` = (sizes, index) selects a part of the documents.

    A sample consists of `length` + 1 tokens; the data repeats after `samples` samples.
    """

    prefix: str
    length: int
    samples: int
    shuffle: bool = True
    seed: int = 0
    split: tuple[tuple[int, ...], int] = ((1,), 0)

    def _file(self, ending: str) -> AnyPath:
        path = path_of(self.prefix + ending)
        if not path.is_file():
            raise fault(f"no such file: {path.absolute()}")
        return path

    @cached_property
    def _index(self) -> tuple[str, Array, Array]:
        """The token type, the document lengths in tokens, and the document offsets in bytes."""
        path = self._file(".idx")
        content = mapped(path, fault)
        head = content[:HEAD].tobytes()
        version, kind, count, documents = (int.from_bytes(head[a:b], "little") for a, b in ((9, 17), (17, 18), (18, 26), (26, 34)))
        if len(head) < HEAD or head[:9] != MAGIC or version != 1 or kind not in KINDS:
            raise fault(f"{path} is not an index: it starts with {head[:18]!r}, not with {MAGIC!r}, 1 and the code of a token type")
        needed = HEAD + 12 * count + 8 * documents
        if len(content) != needed:
            raise fault(f"{path} is damaged: {count} lengths and {documents} documents require {needed} bytes, but the file has {len(content)}")
        lengths, places = (content[a:b].view(t) for a, b, t in ((0, 4, "<i4"), (4, 12, "<i8")) for a, b in [(HEAD + a * count, HEAD + b * count)])
        width, tokens = np.dtype(KINDS[kind]).itemsize, len(mapped(self._file(".bin"), fault))
        wrong = np.flatnonzero((lengths < 0) | (places < 0) | (places % width != 0) | (places > tokens - width * lengths.astype(np.int64)))
        if len(wrong):
            first = int(wrong[0])
            raise fault(
                f"{path} is damaged: document {first}, at byte {HEAD + 4 * first} and {HEAD + 4 * count + 8 * first}, has {lengths[first]} tokens "
                f"from byte {places[first]} on, and {self.prefix}.bin has {tokens} bytes"
            )
        return KINDS[kind], lengths, places

    @cached_property
    def _tokens(self) -> Array:
        content = mapped(self._file(".bin"), fault)
        kind = np.dtype(self._index[0])
        return content[: len(content) // kind.itemsize * kind.itemsize].view(kind)

    @property
    def _documents(self) -> tuple[int, int]:
        """The range (start, stop) of the documents that `split` selects."""
        sizes, which = self.split
        total, count = sum(sizes), len(self._index[1])
        stops = [0]
        for size in sizes:
            stops.append(stops[-1] + round(size / total * count))
        over = stops[-1] - count
        stops[1:] = [max(stop - over, 0) for stop in stops[1:]]
        return stops[which], stops[which + 1]

    @cached_property
    def _plan(self) -> tuple[Array, Array, int, int]:
        """The shuffled documents of all epochs, their end positions in tokens, and two numbers of samples.

        The first number covers the epochs that are shuffled together, and the second all epochs.
        """
        first, behind = self._documents
        count, lengths = behind - first, self._index[1]
        each = int(lengths[first:behind].sum(dtype=np.int64)) if count > 0 else 0
        if each < self.length + 1:
            raise fault(f"{self.prefix}: the documents [{first}, {behind}) of the split have {each} tokens, but a sample requires {self.length + 1}")
        epochs = -(-(self.samples * self.length + 1) // each)
        within = (epochs - 1) * each
        last = self.samples - max(within - 1, 0) // self.length
        complete = epochs - 1 if epochs > 1 and last < LAST * ((each - 1) // self.length) else epochs
        order = partial(self._order, "documents")
        sampled = np.concatenate([order(0, complete * count), order(1, (epochs - complete) * count)]) % count + first
        ends = np.cumsum(lengths[sampled], dtype=np.int64)
        return sampled, ends, (complete * each - 1) // self.length, (epochs * each - 1) // self.length

    def _order(self, what: str, which: int, count: int) -> Array:
        return Order(philox.key_of(self.seed, what)[0], count, self.shuffle).indices(which, 0, count)

    @cached_property
    def _shuffled(self) -> Array:
        _, _, whole, samples = self._plan
        return np.concatenate([self._order("samples", 0, whole), whole + self._order("samples", 1, samples - whole)])

    def check(self) -> None:
        """Raise ArgumentError if `split` is invalid, and DataError if a file is missing or damaged, or the documents are too short for a sample."""
        sizes, which = self.split
        if not sizes or min(sizes) < 0 or not sum(sizes) or not 0 <= which < len(sizes):
            raise ArgumentError(f"{WHAT}: split_index {which} must be an index of split_sizes {list(sizes)}, which must have a positive sum")
        assert self._tokens.size and len(self._shuffled)

    def sample(self, index: int) -> Array:
        """Return the tokens of sample `index` in the token type of the file."""
        documents, ends, _, _ = self._plan
        _, lengths, places = self._index
        at = int(self._shuffled[index]) * self.length
        target, result = self.length + 1, []
        which = int(np.searchsorted(ends, at, side="right"))
        while target:
            document = int(documents[which])
            start = int(places[document]) // self._tokens.itemsize
            skipped = at - int(ends[which] - lengths[document])
            piece = self._tokens[start + skipped : start + int(lengths[document])][:target]
            result.append(piece)
            target, at, which = target - len(piece), at + len(piece), which + 1
        return np.concatenate(result)


def as_tokens(tokens: Array, kind: np.dtype[np.generic]) -> Array:
    """Convert tokens to the type `kind`; raise DataError if a token is out of the range of `kind`."""
    result = tokens.astype(kind)
    if not np.array_equal(result, tokens):
        raise DataError(f"{WHAT}: token {tokens[result != tokens][0]} is out of the range of {kind}")
    return result
