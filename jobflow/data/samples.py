"""Samples by number or as a stream; a sample has one array per field."""

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

#: Split of a file: all samples, the training samples, or the validation samples.
Split: TypeAlias = Literal["all", "train", "validation"]


@dataclass(frozen=True)
class Field:
    """The shape and element type of a sample's array."""

    shape: tuple[int, ...]
    dtype: DType

    def batch(self, rows: int) -> TensorType:
        """Return the type of a batch of `rows` samples."""
        return TensorType((rows, *self.shape), self.dtype)

    def __str__(self) -> str:
        return str(TensorType(self.shape, self.dtype))


class Samples(ABC):
    """Samples with the numbers 0 to len - 1.

    Subclasses define `fields`, the number of samples, and `rows`. Reading is thread-safe, and repeated reads return equal samples: random
    choices are a function of (the reader's seed, epoch, number).
    """

    fields: Mapping[str, Field]
    #: name in messages
    what: str = ""
    #: True if a sample is read with all its fields, which may differ at each read: user code with random numbers
    whole: bool = False
    #: file name suffixes of this reader, if they are specific
    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, fields: Mapping[str, Field], count: int, keep: Keep | None = None) -> None:
        self.fields = dict(fields)
        self._keep = Keep("all", count) if keep is None else keep
        if len(self._keep) == 0:
            raise DataError(f"{self}: there are no samples{self._keep}; pass more samples")

    def __len__(self) -> int:
        return len(self._keep)

    def read(self, numbers: Any, epoch: int = 0, fields: Collection[str] | None = None) -> dict[str, Array]:
        """Return the rows of the samples `numbers` (int64[n]) in this order, for `fields` or all fields.

        Raises: ArgumentError for a number out of range; DataError that names the first sample that cannot be read.
        """
        indices = np.asarray(numbers, np.int64).reshape(-1)
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            wrong = next(int(i) for i in indices if not 0 <= i < len(self))
            raise ArgumentError(f"{self}: sample {wrong} is out of range; the number of samples is {len(self)}")
        names = list(self.fields) if fields is None else [checked_name(name, self.fields, f"{self}: field") for name in fields]
        try:
            return self.rows(self._keep.numbers(indices), epoch, names)
        except Exception as error:  # noqa: BLE001 - raised again, or replaced by the error of a single sample
            number, cause = self._first_unreadable(indices, epoch, names, error)
            if not isinstance(cause, JobflowError):
                raise DataError(f"{self.where(number)}: {type(cause).__name__}: {cause}") from cause
            if f"sample {number}" not in str(cause):
                cause.args = (f"{cause}; it is sample {number}", *cause.args[1:])
            raise cause from cause.__cause__

    def _first_unreadable(self, indices: Array, epoch: int, names: Sequence[str], error: Exception) -> tuple[int, Exception]:
        """Return the first sample that raises an error if read alone, and its error; if no sample does, the first sample and `error`."""
        for number in indices.tolist():
            try:
                self.rows(self._keep.numbers(np.array([number])), epoch, names)
            except Exception as own:  # noqa: BLE001 - raised by the caller
                return int(number), own
        return int(indices[0]) if indices.size else 0, error

    def where(self, number: int) -> str:
        """Describe a sample and its source for messages."""
        return f"{self}: sample {number}"

    def identities(self, indices: Array) -> dict[str, list[Any]]:
        """Return columns that identify samples in predictions, such as {"file": [...]}; {} if their order suffices."""
        return {}

    def number_in_file(self, number: int) -> int:
        """Return the number of a sample in the file, counted over all splits."""
        return int(self._keep.numbers(np.array([number]))[0])

    @abstractmethod
    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        """Return the fields `names` of the samples with these numbers in the file, stacked along axis 0; the caller may modify the arrays."""

    @property
    def facts(self) -> dict[str, Any]:
        """Reader arguments with properties of these samples, such as a vocabulary; readers of other samples should use the same values.

        Checkpoints store the facts as JSON, and `open_reader(..., facts=)` accepts them.
        """
        return {}

    @property
    def fingerprint(self) -> str:
        """A hash for comparison between clients, computed from the reader's class, the number of samples, the fields and the facts."""
        description = f"{type(self).__name__} {len(self)} {self.fields} {self.facts}"
        return hashlib.sha256(description.encode()).hexdigest()[:16]

    def __getitem__(self, number: int) -> dict[str, Array]:
        """Return sample `number` as arrays by field; negative numbers count from the end."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        return {name: row[0] for name, row in self.read([number % len(self)]).items()}

    def __str__(self) -> str:
        return self.what or type(self).__name__


class Stream(ABC):
    """A sequence of samples of unknown length. Positions count samples; a resumed run reads and skips the preceding samples."""

    fields: Mapping[str, Field]
    #: name in messages
    what: str = ""

    @abstractmethod
    def samples(self, epoch: int) -> Iterator[Mapping[str, Array]]:
        """Iterate over the samples of an epoch; repeated calls return equal samples."""

    @property
    def facts(self) -> dict[str, Any]:
        return {}

    def __str__(self) -> str:
        return self.what or type(self).__name__


@dataclass(frozen=True)
class Keep:
    """The selection of a split: "all", "train" or "validation" of `count` samples.

    Every `every`-th sample, from sample 0 on, is for validation. All other samples are for training.
    """

    split: Split
    count: int
    every: int = 10

    def __post_init__(self) -> None:
        legal = ("all", "train", "validation")
        if self.split not in legal:
            raise ArgumentError(f'split is "{self.split}"{did_you_mean(str(self.split), legal) or "."} Valid splits are {", ".join(legal)}.')
        if self.split != "all" and self.every < 2:
            raise ArgumentError(f"validation_every must be at least 2, not {self.every}; every N-th sample is held out for validation")

    def __len__(self) -> int:
        validation = -(-self.count // self.every)
        return {"all": self.count, "validation": validation, "train": self.count - validation}[self.split]

    def numbers(self, places: Array) -> Array:
        """Return the sample numbers in the file for these positions in the split."""
        if self.split == "all":
            return places
        if self.split == "validation":
            return places * self.every
        blocks, rest = np.divmod(places, self.every - 1)
        return blocks * self.every + rest + 1

    def __str__(self) -> str:
        return "" if self.split == "all" else f' in the split "{self.split}" of {self.count} samples (validation_every = {self.every})'


class Columns(Samples):
    """Samples from the rows of arrays in memory or in mapped files, whose elements `scale` multiplies and `dtypes` converts.

    `sources` names the file of a field in messages; the default is `what`.
    Raises: DataError for arrays of different lengths, or with elements other than numbers; ArgumentError for an unknown field or element type.
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
        targets = {checked_name(name, arrays, f"{what}: dtypes: field"): named_dtype(text, what) for name, text in (dtypes or {}).items()}
        lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{what}: the arrays have different numbers of samples: {', '.join(f'{k} {n}' for k, n in lengths.items())}")
        fields = {name: Field(a.shape[1:], targets.get(name) or self._dtype(name, a)) for name, a in arrays.items()}
        for name in (*targets, *self._scale):
            if not is_number(self._arrays[name].dtype):
                raise DataError(f'{self._source(name)}, field "{name}" contains {self._arrays[name].dtype}; convert the file to numbers')
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
        rows = self._arrays[name][which]
        if name in self._scale:
            rows = self._scaled(name, rows, target, numbers)
            if rows.dtype == target:
                return rows
        elif rows.dtype == target:
            return rows.astype(target, order="C", copy=isinstance(which, slice))
        return converted(rows, target, partial(self._place, name, numbers))

    def _scaled(self, name: str, rows: Array, target: np.dtype[Any], numbers: Array) -> Array:
        dtype = np.float64 if target == np.float64 else np.float32
        if rows.dtype.itemsize <= 2:
            return np.multiply(rows, self._scale[name], dtype=dtype)
        with np.errstate(over="ignore"):
            products = np.multiply(rows, self._scale[name], dtype=dtype)
        lost: Array = () if np.isfinite(products).all() else np.argwhere(~np.isfinite(products) & np.isfinite(rows))
        if len(lost):
            place, value = self._place(name, numbers, tuple(map(int, lost[0]))), rows[tuple(lost[0])]
            raise DataError(f"{place} is {value}, and its product with scale {self._scale[name]} exceeds {products.dtype}; set another scale")
        return products

    def _place(self, name: str, numbers: Array, index: tuple[int, ...]) -> str:
        inside = f" at {list(index[1:])}" if index[1:] else ""
        return f'{self._source(name)}: row {int(numbers[index[0]])}, field "{name}"{inside}'


class Subset(Samples):
    """The samples with the given numbers of other samples, in the order of these numbers."""

    def __init__(self, samples: Samples, numbers: Sequence[int] | Array) -> None:
        self._samples, self._numbers, self.what = samples, np.asarray(numbers, np.int64), f"a subset of {samples}"
        self.whole = samples.whole
        super().__init__(samples.fields, len(self._numbers))

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        return self._samples.read(self._numbers[numbers], epoch, names)

    def where(self, number: int) -> str:
        return self._samples.where(int(self._numbers[number]))

    def identities(self, indices: Array) -> dict[str, list[Any]]:
        return self._samples.identities(self._numbers[indices])

    @property
    def facts(self) -> dict[str, Any]:
        return self._samples.facts


def stretch(numbers: Array) -> Array | slice:
    """Return consecutive ascending numbers as a slice, and other numbers unchanged."""
    n = len(numbers)
    if n and numbers[-1] - numbers[0] == n - 1 and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[0]) + n)
    return numbers


def own_dtype(dtype: Any, what: str) -> DType:
    """Return the jobflow element type of a NumPy type; raise DataError if tensors do not support it."""
    try:
        return dtype_of(dtype)
    except (KeyError, TypeError):
        raise DataError(f"{what}: tensors do not support {np.dtype(dtype)}; convert it with dtypes, for example to int32 or float32") from None


def named_dtype(name: str, what: str) -> DType:
    """Return the element type `name`; raise ArgumentError if it is unknown."""
    names = [dtype.name for dtype in DTYPES]
    if name not in names:
        raise ArgumentError(f'{what}: unknown element type "{name}"{did_you_mean(name, names) or "."} There are {", ".join(names)}.')
    return dtype_named(name)


def checked_name(name: str, legal: Collection[str], what: str) -> str:
    """Return `name`; raise ArgumentError if it is not in `legal`."""
    if name not in legal:
        raise ArgumentError(f'{what} "{name}" does not exist{did_you_mean(name, legal) or "."} There are {", ".join(map(str, legal))}.')
    return name
