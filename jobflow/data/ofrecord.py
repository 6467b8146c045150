"""The reader "ofrecord", for OFRecord files, the record files of OneFlow.

A file is a sequence of records: the number of bytes as a little-endian int64, then a message

    OFRecord {1: map<text, Feature>}        Feature: one of {1: bytes, 2: float, 3: double, 4: int32, 5: int64}, each {1: repeated}
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DataError, counted, did_you_mean
from jobflow.core.extras import optional
from jobflow.core.types import Array
from jobflow.data.conversion import converted
from jobflow.data.files import entries_of, fault_of
from jobflow.data.samples import Field, Keep, Samples, Split, checked_name, named_dtype, own_dtype
from jobflow.data.waiting import one_by_one
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.untrusted import RECORD, Fault, mapped

WHAT = 'reader "ofrecord"'
fault = fault_of(WHAT)
HEAD = 8
#: element types of the alternatives of a feature, numbered from 1
LISTS = {"bytes_list": np.uint8, "float_list": np.float32, "double_list": np.float64, "int32_list": np.int32, "int64_list": np.int64}


class OfRecord(Samples):
    """The records of a file, or of the files in a folder whose names start with `prefix`, sorted by number.

    `features` maps each feature to its shape (`{images: [28, 28], labels: []}`). By default all features of the first record are read, with
    shape [n], or [] for a single number. `fields` renames features (`{images: encoded}` reads the field images from the feature encoded).
    Numbers keep their type unless `dtypes` sets another one; bytes are uint8. Files are memory-mapped, and the record offsets are kept in memory.
    Every `validation_every`-th record is for validation.
    """

    suffixes = (".ofrecord",)

    def __init__(
        self,
        path: str,
        features: dict[str, list[int]] | None = None,
        fields: dict[str, str] | None = None,
        dtypes: dict[str, str] | None = None,
        prefix: str = "part-",
        split: Split = "all",
        validation_every: int = 10,
    ) -> None:
        self._files = [(file, content, _records(file, content)) for file in _files(path_of(path), prefix) for content in [mapped(file, fault)]]
        self._stops = [0, *accumulate(len(starts) for _, _, starts in self._files)]
        self.what = f"{WHAT}: {path}"
        first = self._record(0)
        shapes = features or {name: [] if len(values) == 1 else [len(values)] for name, values in first.items()}
        self._features = fields or {name: name for name in shapes}
        for name in self._features.values():
            checked_name(name, first, f"{self._place(0)}: feature")
            if name not in shapes:
                raise ArgumentError(f'{WHAT}: fields uses the feature "{name}"; add its shape to features')
        kinds = {checked_name(field, self._features, f"{WHAT}: dtypes: field"): named_dtype(text, WHAT) for field, text in (dtypes or {}).items()}
        sample_fields = {
            field: Field(tuple(shapes[name]), kinds.get(field) or own_dtype(first[name].dtype, f'{WHAT}: feature "{name}"'))
            for field, name in self._features.items()
        }
        super().__init__(sample_fields, self._stops[-1], Keep(split, self._stops[-1], validation_every))

    def where(self, number: int) -> str:
        return f"{self._place(self.number_in_file(number))}: sample {number}"

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        arrays = {name: np.empty((len(numbers), *self.fields[name].shape), self.fields[name].dtype.numpy) for name in names}
        for row, number in one_by_one(numbers.tolist(), self._place):
            record = self._record(number)
            for name in names:
                feature, shape = self._features[name], self.fields[name].shape
                if feature not in record:
                    raise DataError(f'{self._place(number)}: there is no feature "{feature}"{did_you_mean(feature, record) or "."}')
                values = record[feature]
                if values.size != math.prod(shape):
                    message = f'feature "{feature}" has {values.size} values, but its shape is {list(shape)}; correct features'
                    raise DataError(f"{self._place(number)}: {message}")
                if values.dtype != arrays[name].dtype:
                    values = converted(values, arrays[name].dtype, partial(self._value_place, number, name))
                arrays[name][row] = values.reshape(shape)
        return arrays

    def _value_place(self, number: int, name: str, index: tuple[int, ...]) -> str:
        feature = self._features[name]
        renamed = "" if feature == name else f', feature "{feature}"'
        return f'{self._place(number)}: field "{name}"{renamed}, value {index[0]}'

    def _at(self, number: int) -> tuple[AnyPath, Array, int, int]:
        """Return the file of a record, its content, and the start and end of the record."""
        which = bisect_right(self._stops, number) - 1
        file, content, starts = self._files[which]
        start = int(starts[number - self._stops[which]])
        return file, content, start + HEAD, start + HEAD + int(content[start : start + HEAD].view("<i8")[0])

    def _record(self, number: int) -> dict[str, Array]:
        _, content, start, stop = self._at(number)
        try:
            return features_of(content[start:stop].tobytes())
        except (optional("google.protobuf.message", WHAT).DecodeError, ValueError):
            raise DataError(
                f"{self._place(number)} is damaged: the {counted(stop - start, 'byte')} from byte {start} on are not an OFRecord message; "
                f"replace the file"
            ) from None

    def _place(self, number: int) -> str:
        file, _, start, _ = self._at(number)
        return f"{WHAT}: {file}, record at byte {start - HEAD}"


def _has_records(file: AnyPath) -> bool:
    """Return False for folders and empty files, and True for other paths, whose errors occur at opening."""
    return bool(file.stat().st_size) if file.is_file() else not file.is_dir()


def _files(path: AnyPath, prefix: str) -> list[AnyPath]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise fault(f"there is no file or folder {path.absolute()}; set path to an existing one")
    files = [file for file in entries_of(path) if file.name.startswith(prefix) and _has_records(file)]
    if not files:
        raise fault(f'no file with records in {path.absolute()} has a name that starts with "{prefix}"; correct path or prefix')
    return sorted(files, key=lambda file: (int(number) if (number := file.name[len(prefix) :]).isdecimal() else -1, file.name))


def _records(file: AnyPath, content: Array) -> Array:
    """Return the offsets of the records of a file."""
    if not len(content):
        raise fault(f"{file} is empty")
    return np.array(array("q", (start - HEAD for start, _ in spans_of(file, content, fault))), np.int64)


def spans_of(file: AnyPath, content: Array, fault: Fault) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each record of a file, without its length field."""
    at, size = 0, len(content)
    while at < size:
        if size - at < HEAD:
            raise fault(f"{file} is damaged: it ends within the length of the record at byte {at}; replace the file")
        length = int.from_bytes(content[at : at + HEAD].tobytes(), "little", signed=True)
        if not 0 <= length <= size - at - HEAD:
            raise fault(f"{file} is damaged: the record at byte {at} declares {length} bytes, but the file has only {size - at - HEAD} more bytes")
        RECORD.check(length, f"{file}: the record at byte {at}", fault)
        at += HEAD + length
        yield at - length, at


def features_of(record: bytes) -> dict[str, Array]:
    """Return the flat features of a record by name, in the order of the record.

    Raises: ValueError for an unknown field.
    """
    features: dict[str, Array] = {}
    message = record_classes(maps=False)["OFRecord"].FromString(record)
    size = message.ByteSize()
    message.DiscardUnknownFields()  # protobuf preserves unknown fields, which only damaged records contain
    if message.ByteSize() != size:
        raise ValueError("the record has an unknown field")
    for entry in message.feature:
        kind = entry.value.WhichOneof("kind") or "bytes_list"
        values = getattr(entry.value, kind).value
        features[entry.key] = np.frombuffer(b"".join(values), np.uint8) if kind == "bytes_list" else np.array(values, LISTS[kind])
    return features


@cache
def record_classes(maps: bool = True) -> dict[str, Any]:
    """Return the protobuf message classes by name, built at run time because code generated by protoc requires one version of protobuf.

    Without `maps` the features are a list of entries, as in the file, because protobuf's maps do not preserve their order.
    """
    descriptors, pools, factory = (optional(f"google.protobuf.{name}", WHAT) for name in ("descriptor_pb2", "descriptor_pool", "message_factory"))
    kinds = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="ofrecord.proto", package="jobflow", syntax="proto3")

    def message(descriptor: Any, label: int, fields: Iterable[tuple[str, str]], **more: Any) -> Any:
        for number, (field, kind) in enumerate(fields, 1):
            scalar = getattr(kinds, f"TYPE_{kind.upper()}", None)
            type_of = {"type_name": f".jobflow.{kind}"} if scalar is None else {"type": scalar}
            descriptor.field.add(name=field, number=number, label=label, **type_of, **more)
        return descriptor

    names = {name: name.title().replace("_", "") for name in LISTS}
    for name, title in names.items():
        message(file.message_type.add(name=title), kinds.LABEL_REPEATED, [("value", name.removesuffix("_list"))])
    feature = file.message_type.add(name="Feature")
    message(feature, kinds.LABEL_OPTIONAL, names.items(), oneof_index=0).oneof_decl.add(name="kind")
    record = file.message_type.add(name="OFRecord")
    entry = message(record.nested_type.add(name="FeatureEntry"), kinds.LABEL_OPTIONAL, [("key", "string"), ("value", "Feature")])
    entry.options.map_entry = maps
    message(record, kinds.LABEL_REPEATED, [("feature", "OFRecord.FeatureEntry")])
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: factory.GetMessageClass(pool.FindMessageTypeByName(f"jobflow.{name}")) for name in (*names.values(), "Feature", "OFRecord")}
