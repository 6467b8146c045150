"""Samples: numbered, or one after another; each is one array per field."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError, JobflowError, did_you_mean
from jobflow.core.types import DTYPES, Array, DType, TensorType, dtype_named, dtype_of
from jobflow.data.conversion import converted, is_number

#: Which samples of a file that is not split itself: all, or those that are kept for validation, or the others.
Split: TypeAlias = Literal["all", "train", "validation"]


@dataclass(frozen=True)
class Field:
    """Shape and element type of one sample's array."""

    shape: tuple[int, ...]
    dtype: DType

    def batch(self, rows: int) -> TensorType:
        """The type of a batch of so many samples."""
        return TensorType((rows, *self.shape), self.dtype)

    def __str__(self) -> str:
        return str(TensorType(self.shape, self.dtype))


class Samples(ABC):
    """Samples 0 .. len - 1 by number.

    Subclasses give `fields` and the number of samples, and define `rows`.  Reading is thread safe, and a sample is the same
    whenever it is read: what is drawn at random for it is a function of (the reader's seed, epoch, number).
    """

    fields: Mapping[str, Field]
    #: for messages
    what: str = ""
    #: the ends of the names of files that it reads, if those tell
    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, fields: Mapping[str, Field], count: int, keep: Keep | None = None) -> None:
        self.fields = dict(fields)
        self._keep = Keep("all", count) if keep is None else keep
        if len(self._keep) == 0:
            raise DataError(f"{self}: there are no samples{self._keep}")

    def __len__(self) -> int:
        return len(self._keep)

    def read(self, numbers: Any, epoch: int = 0, fields: Collection[str] | None = None) -> dict[str, Array]:
        """The rows of samples with these numbers (int64[n]), in this order; of all fields, or of some."""
        asked = np.asarray(numbers, np.int64).reshape(-1)
        if asked.size and not (asked.min() >= 0 and asked.max() < len(self)):
            wrong = next(int(i) for i in asked if not 0 <= i < len(self))
            raise ArgumentError(f"{self}: there is no sample {wrong}; there are {len(self)}")
        names = list(self.fields) if fields is None else [checked_name(name, self.fields, f"{self}: field") for name in fields]
        try:
            return self.rows(self._keep.numbers(asked), epoch, names)
        except Exception as error:  # noqa: BLE001 - it is raised, or that of one sample in its place
            number, found = self._first_unreadable(asked, epoch, names, error)
            if not isinstance(found, JobflowError):
                raise DataError(f"{self.where(number)}: {type(found).__name__}: {found}") from found
            if f"sample {number}" not in str(found):
                found.args = (f"{found}; it is sample {number}", *found.args[1:])
            raise found from found.__cause__

    def _first_unreadable(self, asked: Array, epoch: int, names: Sequence[str], error: Exception) -> tuple[int, Exception]:
        """Of samples that cannot be read together the first that cannot be read alone, and why; the first of all if each can."""
        for number in asked.tolist():
            try:
                self.rows(self._keep.numbers(np.array([number])), epoch, names)
            except Exception as own:  # noqa: BLE001 - it is raised by who asks
                return int(number), own
        return int(asked[0]) if asked.size else 0, error

    def where(self, number: int) -> str:
        """For messages: which sample this is, and where it lies."""
        return f"{self}: sample {number}"

    def number_in_file(self, number: int) -> int:
        """The number that a sample has in the file, all parts of which are counted."""
        return int(self._keep.numbers(np.array([number]))[0])

    @abstractmethod
    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        """The rows of the samples that have these numbers in the file, of these fields; each array is the caller's own."""

    @property
    def facts(self) -> dict[str, Any]:
        """What was learned from these samples that others must be read with: arguments of the reader, such as a vocabulary.

        They go into checkpoints as JSON, and into `open_reader(..., facts=)`.
        """
        return {}

    @property
    def fingerprint(self) -> str:
        """What clients compare: equal where the same reader found as many samples with the same fields and facts."""
        found = f"{type(self).__name__} {len(self)} {self.fields} {self.facts}"
        return hashlib.sha256(found.encode()).hexdigest()[:16]

    def __getitem__(self, number: int) -> dict[str, Array]:
        """One sample."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        return {name: row[0] for name, row in self.read([number % len(self)]).items()}

    def __str__(self) -> str:
        return self.what or type(self).__name__


class Stream(ABC):
    """Samples one after another, for nobody knows how many.  Positions count them; to go on in the middle is to skip those before."""

    fields: Mapping[str, Field]
    #: for messages
    what: str = ""

    @abstractmethod
    def samples(self, epoch: int) -> Iterator[Mapping[str, Array]]:
        """Those of an epoch: the same at each call with the same epoch."""

    @property
    def facts(self) -> dict[str, Any]:
        return {}

    def __str__(self) -> str:
        return self.what or type(self).__name__


@dataclass(frozen=True)
class Keep:
    """Which samples of `count` are used: every `every`-th, from the first on, is for validation and the others for training."""

    split: Split
    count: int
    every: int = 10

    def __post_init__(self) -> None:
        legal = ("all", "train", "validation")
        if self.split not in legal:
            raise ArgumentError(f'split is "{self.split}"{did_you_mean(str(self.split), legal) or "."} It is one of {", ".join(legal)}.')
        if self.split != "all" and self.every < 2:
            raise ArgumentError(f"validation_every is {self.every}; it must be at least 2; each N-th sample is kept for validation")

    def __len__(self) -> int:
        kept = -(-self.count // self.every)
        return {"all": self.count, "validation": kept, "train": self.count - kept}[self.split]

    def numbers(self, places: Array) -> Array:
        """The numbers in the file of the samples at these places."""
        if self.split == "all":
            return places
        if self.split == "validation":
            return places * self.every
        blocks, rest = np.divmod(places, self.every - 1)
        return blocks * self.every + rest + 1

    def __str__(self) -> str:
        return "" if self.split == "all" else f" of {self.count} for {self.split}, if every {self.every}-th is kept for validation"


class Columns(Samples):
    """Sample i is the i-th row of each array; arrays in memory or mapped files.  `scale` multiplies, `dtypes` converts.

    `sources` names the file of a field in messages; by default `what`.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        dtypes: Mapping[str, str] | None = None,
        scale: Mapping[str, float] | None = None,
        keep: tuple[Split, int] = ("all", 10),
        what: str = "Columns",
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.what, self._sources, self._arrays = what, sources or {}, {name: np.asarray(array) for name, array in arrays.items()}
        self._scale = {checked_name(name, arrays, f"{what}: scale: field"): factor for name, factor in (scale or {}).items()}
        given = {checked_name(name, arrays, f"{what}: dtypes: field"): named_dtype(text, what) for name, text in (dtypes or {}).items()}
        lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{what}: the arrays have different numbers of samples: {', '.join(f'{k} {n}' for k, n in lengths.items())}")
        fields = {name: Field(a.shape[1:], given.get(name) or self._dtype(name, a)) for name, a in arrays.items()}
        for name in (*given, *self._scale):
            if not is_number(self._arrays[name].dtype):
                raise DataError(f'{self._source(name)}, field "{name}" holds {self._arrays[name].dtype}; convert the file to numbers')
        count = next(iter(lengths.values()), 0)
        super().__init__(fields, count, Keep(keep[0], count, keep[1]))

    def _dtype(self, name: str, array: Array) -> DType:
        return dtype_named("float32") if name in self._scale else own_dtype(array.dtype, f'{self._source(name)}: field "{name}"')

    def _source(self, name: str) -> str:
        return self._sources.get(name, self.what)

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        return {name: self._field(name, numbers) for name in names}

    def _field(self, name: str, numbers: Array) -> Array:
        which, target = stretch(numbers), self.fields[name].dtype.numpy
        taken = self._arrays[name][which]
        if name in self._scale:
            taken = self._scaled(name, taken, target, numbers)
            if taken.dtype == target:
                return taken
        elif taken.dtype == target:
            return taken.astype(target, order="C", copy=isinstance(which, slice))
        return converted(taken, target, partial(self._place, name, numbers))

    def _scaled(self, name: str, rows: Array, target: np.dtype[Any], numbers: Array) -> Array:
        dtype = np.float64 if target == np.float64 else np.float32
        if rows.dtype.itemsize <= 2:
            return np.multiply(rows, self._scale[name], dtype=dtype)
        with np.errstate(over="ignore"):
            found = np.multiply(rows, self._scale[name], dtype=dtype)
        lost: Array = () if np.isfinite(found).all() else np.argwhere(~np.isfinite(found) & np.isfinite(rows))
        if len(lost):
            place, value = self._place(name, numbers, tuple(map(int, lost[0]))), rows[tuple(lost[0])]
            raise DataError(f"{place} is {value}, which times {self._scale[name]} is beyond {found.dtype}; set another scale")
        return found

    def _place(self, name: str, numbers: Array, index: tuple[int, ...]) -> str:
        inside = f" at {list(index[1:])}" if index[1:] else ""
        return f'{self._source(name)}: row {int(numbers[index[0]])}, field "{name}"{inside}'


class Subset(Samples):
    """Those of some samples that have these numbers."""

    def __init__(self, samples: Samples, numbers: Sequence[int] | Array) -> None:
        self._samples, self._numbers, self.what = samples, np.asarray(numbers, np.int64), f"a subset of {samples}"
        super().__init__(samples.fields, len(self._numbers))

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        return self._samples.read(self._numbers[numbers], epoch, names)

    def where(self, number: int) -> str:
        return self._samples.where(int(self._numbers[number]))

    @property
    def facts(self) -> dict[str, Any]:
        return self._samples.facts


def stretch(numbers: Array) -> Array | slice:
    """The same numbers, as a slice where they follow each other."""
    n = len(numbers)
    if n and numbers[-1] - numbers[0] == n - 1 and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[0]) + n)
    return numbers


def own_dtype(dtype: Any, what: str) -> DType:
    """The element type of an array; DataError if tensors cannot have it."""
    try:
        return dtype_of(dtype)
    except (KeyError, TypeError):
        raise DataError(f"{what}: tensors cannot hold {np.dtype(dtype)}; convert it with dtypes, e.g. to int32 or float32") from None


def named_dtype(name: str, what: str) -> DType:
    """The element type of this name."""
    names = [dtype.name for dtype in DTYPES]
    if name not in names:
        raise ArgumentError(f'{what}: there is no element type "{name}"{did_you_mean(name, names) or "."} There are {", ".join(names)}.')
    return dtype_named(name)


def checked_name(name: str, legal: Collection[str], what: str) -> str:
    """`name`, which must be one of those that are legal."""
    if name not in legal:
        raise ArgumentError(f'{what} "{name}" is not there{did_you_mean(name, legal) or "."} There are {", ".join(map(str, legal))}.')
    return name
