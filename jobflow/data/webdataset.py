"""The reader "webdataset": samples from tar files, read in sequence; nothing is extracted, and no code of a file runs."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import chain, groupby, islice
from typing import Any, BinaryIO, Literal, NoReturn

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError, did_you_mean
from jobflow.core.types import Array
from jobflow.data.files import fault_of, files_at
from jobflow.data.image_decoder import decoder_of
from jobflow.data.samples import Stream
from jobflow.data.stacking import field_of
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.untrusted import RECORD, json_tree, open_regular

WHAT = 'reader "webdataset"'
fault = fault_of(WHAT)
#: endings of entries with a decoder, and endings of files that run code when they are read
DECODED, CODE = ("jpg", "jpeg", "png", "npy", "json", "txt", "cls"), ("pkl", "pickle", "pyd", "pth", "pt", "dill")
#: bytes of an extended header, which tarfile reads into memory
HEADER = 1 << 20
#: bytes of the two blocks of zeros that end a tar file
END = 2 * tarfile.BLOCKSIZE
#: a whole number in an entry .cls
_CLASS = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")
#: most entries of a sample that are looked at, and usual names of fields
MOST = 100
_FIELDS = {"jpg": "images", "jpeg": "images", "png": "images", "cls": "labels", "npy": "x", "txt": "text"}
_EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_SPARSE)


class WebDataset(Stream):
    """A stream of samples from tar files: one file, or all `.tar` files in a folder in the order of their names.

    Consecutive entries with the same name up to the first point are a sample. `fields` maps fields to the rest of the name, such as `{images: jpg,
    labels: cls}`. `jpg` and `png` become squares of `size` pixels in 0..1, as in the reader "images". `npy` becomes an array, without pickle. `cls`
    and `json` are a number or a list of numbers, and `json:box.width` one inside of the JSON. `txt` becomes int32[`length`]: bytes of UTF-8, then
    zeros.

    `shuffle` is the number of samples among which the next one is chosen. The choice and the order of files are a function of `seed` and the epoch.
    `resize`, `crop`, `flip`, `rotation`, `colour`, `rand_augment` and `magnitude` change images as in the reader "images". These changes are a
    function of `seed`, the epoch and the position of the sample in the epoch.
    """

    def __init__(
        self,
        path: str,
        fields: dict[str, str],
        size: int = 224,
        channels: Literal[1, 3] = 3,
        length: int = 256,
        shuffle: int = 0,
        seed: int = 0,
        resize: int | None = None,
        crop: Literal["center", "random"] = "center",
        flip: bool = False,
        rotation: float = 0.0,
        colour: float = 0.0,
        rand_augment: int = 0,
        magnitude: int = 9,
    ) -> None:
        self.what = f"{WHAT}: {path}"
        if length < 1 or shuffle < 0:
            raise ArgumentError(f"{WHAT}: length must be at least 1 and shuffle at least 0, not {length} and {shuffle}")
        if not isinstance(fields, Mapping) or not fields:
            raise ArgumentError(f"{WHAT}: fields must be a dict of endings by field, such as {{images: jpg, labels: cls}}, not {fields!r}")
        self._endings = {field: _ending(field, ending) for field, ending in fields.items()}
        self._decoder = decoder_of(
            WHAT,
            size=size,
            channels=channels,
            resize=resize,
            crop=crop,
            flip=flip,
            rotation=rotation,
            colour=colour,
            rand_augment=rand_augment,
            magnitude=magnitude,
            seed=seed,
        )
        self._length, self._shuffle, self._seed = length, shuffle, seed
        self._files = files_at(path_of(path), "*.tar", fault)
        first = next(self._samples_of(self._files, 0), None)
        if first is None:
            raise fault(f"{path} has no sample with {', '.join(sorted({ending for ending, _ in self._endings.values()}))}; correct path or fields")
        self.fields = {field: field_of(value, partial(self._first, field)) for field, value in first.items()}

    def _first(self, field: str, row: int) -> str:
        return f'{self}: sample {row}, field "{field}"'

    def samples(self, epoch: int) -> Iterator[Mapping[str, Array]]:
        if not self._shuffle:
            yield from self._samples_of(self._files, epoch)
            return
        random = np.random.default_rng([self._seed, epoch])
        waiting: list[Mapping[str, Array]] = []
        for sample in self._samples_of([self._files[i] for i in random.permutation(len(self._files))], epoch):
            waiting.append(sample)
            if len(waiting) > self._shuffle:
                yield _popped(waiting, random)
        while waiting:
            yield _popped(waiting, random)

    def _samples_of(self, files: list[AnyPath], epoch: int) -> Iterator[Mapping[str, Array]]:
        used = {ending for ending, _ in self._endings.values()}
        for number, (file, name, content) in enumerate(chain.from_iterable(_grouped(each, used) for each in files)):
            words = self._decoder.random_words(np.array([number]), epoch)
            yield self._decoded(file, name, content, None if words is None else words[:, 0])

    def _decoded(self, file: AnyPath, name: str, content: Mapping[str, bytes], random_words: Array | None) -> dict[str, Array]:
        sample: dict[str, Array] = {}
        for field, (ending, inside) in self._endings.items():
            where = f"{file}: {name}.{ending}"
            if ending not in content:
                raise fault(f'{file}: sample "{name}" has no entry {ending}, only {", ".join(content)}; complete or remove the sample')
            sample[field] = self._value(ending.rpartition(".")[2], content[ending], inside, where, random_words)
        return sample

    def _value(self, kind: str, content: bytes, inside: str, where: str, random_words: Array | None) -> Array:
        if kind == "npy":
            return _array(content, where)
        if kind not in ("txt", "cls", "json"):
            return self._decoder.square(io.BytesIO(content), where, fault, random_words)
        if kind == "txt":
            data = np.frombuffer(content[: self._length], np.uint8)
            return np.pad(data, (0, self._length - len(data))).astype(np.int32)
        if kind == "cls" and _CLASS.fullmatch(content):
            content = str(int(content)).encode()  # JSON has no leading zeros
        return _scalars(content, inside, where)


def _grouped(file: AnyPath, endings: Collection[str]) -> Iterator[tuple[AnyPath, str, dict[str, bytes]]]:
    """Yield the file, the name and the entries by ending of each sample in a tar file."""
    name, content = "", dict[str, bytes]()
    for entry in entries_of(file, endings):
        if entry.sample != name and content:
            yield file, name, content
            content = {}
        name = entry.sample
        if entry.ending in content:
            raise fault(f'{file}: sample "{name}" has two entries {entry.ending}; pack each sample once, with a name of its own')
        content[entry.ending] = entry.content
    if content:
        yield file, name, content


def suggested_fields(path: AnyPath) -> dict[str, str]:
    """Return the argument `fields` for the entries of the first sample of tar files that have a decoder; raise ArgumentError if it has none."""
    entries = islice(entries_of(files_at(path, "*.tar", fault)[0]), MOST)
    _, first = next(groupby(entries, lambda entry: entry.sample), ("", ()))
    endings = [ending for ending in dict.fromkeys(entry.ending for entry in first) if ending.rpartition(".")[2] in DECODED and "json" not in ending]
    if not endings:
        raise ArgumentError(f"{WHAT}: the first sample of {path} has no entry with one of the endings {', '.join(DECODED)}; pass fields for JSON")
    return {_FIELDS.get(ending, ending.replace(".", "_")): ending for ending in endings}


@dataclass(frozen=True)
class Entry:
    """One file in a tar file: the name of its sample, the rest of its name, and its bytes."""

    sample: str
    ending: str
    content: bytes


class _Info(tarfile.TarInfo):
    """A header that is refused if tarfile would read a long extension into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Info:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _EXTENDED and (info.size > HEADER or info.type == tarfile.GNUTYPE_SPARSE):
            raise DataError(f"an extended header of type {info.type!r} has {info.size:,} bytes; pack plain files with short names")
        return info


def entries_of(file: AnyPath, endings: Collection[str] | None = None) -> Iterator[Entry]:
    """Yield all entries, or those with these endings, in the order of the file; raise DataError for a damaged file, and for links and devices."""
    with open_regular(file, fault) as content:
        try:
            archive = tarfile.open(fileobj=content, mode="r|", tarinfo=_Info)  # noqa: SIM115 - the file is closed by its own block
            _check_last_blocks(file, content)
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # a stream needs no list of all entries
                if info.isdir():
                    continue
                if not info.isreg():
                    raise fault(f"{file}: {info.name:.200} is a link or a device; pack regular files")
                folder, _, base = info.name.rpartition("/")
                sample, _, ending = base.partition(".")
                if endings is None or ending.lower() in endings:
                    RECORD.check(info.size, f"{file}: {info.name:.200}", fault)
                    data = archive.extractfile(info)
                    yield Entry(f"{folder}/{sample}" if folder else sample, ending.lower(), b"" if data is None else data.read())
            _check_end(file, content, archive.offset)
        except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
            if isinstance(error, DataError):
                raise error if str(file) in str(error) else fault(f"{file}: {error}") from None
            raise fault(f"{file} is not a complete tar file: {error}; replace it, and unpack .tar.gz files to .tar") from error


def _check_last_blocks(file: AnyPath, content: BinaryIO) -> None:
    """Raise DataError unless a tar file ends with two blocks of zeros; detects a truncated file before its first sample is used."""
    size = os.fstat(content.fileno()).st_size
    if os.pread(content.fileno(), END, max(size - END, 0)) != bytes(END):
        raise fault(f"{file} is not a complete tar file: it ends at byte {size:,} without two blocks of zeros; copy or pack it again")


def _check_end(file: AnyPath, content: BinaryIO, end: int) -> None:
    """Raise DataError unless only zeros follow byte `end`, where the entries of a tar file end, and at least two blocks of them."""
    content.seek(end)
    start = end
    while piece := content.read(HEADER):
        if rest := piece.lstrip(b"\0"):
            first = start + len(piece) - len(rest)
            _raise_after_end(file, content, end, first)
        start += len(piece)
    if start < end + END:
        raise fault(f"{file} is not a complete tar file: it ends at byte {start:,} without two blocks of zeros; copy or pack it again")


def _raise_after_end(file: AnyPath, content: BinaryIO, end: int, first: int) -> NoReturn:
    """Raise DataError for a tar file with the end of its entries at byte `end` and other bytes from byte `first`."""
    if first < end + END:
        raise fault(f"{file} is damaged: there is no entry at byte {end:,}, but other bytes follow at byte {first:,}; copy or pack it again")
    content.seek(first)
    try:
        tarfile.TarInfo.frombuf(content.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        raise fault(f"{file} is damaged: its end is at byte {end:,}, but other bytes follow at byte {first:,}; copy or pack it again") from None
    raise fault(
        f"{file}: its end is at byte {end:,}, but an entry follows at byte {first:,}, as in concatenated tar files; keep the files separate, "
        "or copy a damaged file again"
    )


def _ending(field: str, ending: str) -> tuple[str, str]:
    """Return the ending of an entry in lower case, and the keys inside of its JSON; raise ArgumentError if no decoder reads it."""
    name, _, inside = str(ending).partition(":")
    kind = name.lower().rpartition(".")[2]
    if kind in CODE:
        raise ArgumentError(f'{WHAT}: field "{field}": files .{kind} can run code when they are read; save arrays as .npy')
    if kind not in DECODED or (inside and kind != "json"):
        raise ArgumentError(
            f'{WHAT}: field "{field}": there is no decoder for "{ending}"{did_you_mean(kind, DECODED) or ";"} there are {", ".join(DECODED)}'
        )
    return name.lower(), inside


def _popped(waiting: list[Mapping[str, Array]], random: np.random.Generator) -> Mapping[str, Array]:
    """Remove a random sample from a list, and return it."""
    index = int(random.integers(len(waiting)))
    waiting[index], waiting[-1] = waiting[-1], waiting[index]
    return waiting.pop()


def _array(content: bytes, where: str) -> Array:
    """Return the array of an .npy file; its size is checked before memory is allocated."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except Exception as error:  # noqa: BLE001 - a damaged header can raise any exception
        raise fault(f"{where} is not a complete .npy file: {error}; replace it") from None
    rest = memoryview(content)[file.tell() :]
    if dtype.hasobject or dtype.kind not in "biuf":
        raise fault(f"{where} contains {dtype}; save numbers without pickle")
    if dtype.itemsize * int(np.prod(shape, dtype=object)) != len(rest):
        raise fault(f"{where} has {len(rest):,} bytes for {dtype}{list(shape)}; replace it")
    array: Array = np.frombuffer(rest, dtype).reshape(shape, order="F" if by_columns else "C")
    return array


def _scalars(content: bytes, inside: str, where: str) -> Array:
    """Return the number or the list of numbers in a text or in JSON, where `inside` are keys with points."""
    at = f" at {inside}" if inside else ""
    try:
        value: Any = json_tree(content)
    except ValueError as error:
        raise fault(f"{where}: there is no number{at}: {error}; correct the entry") from None
    for key in filter(None, inside.split(".")):
        try:
            value = value[key] if isinstance(value, dict) else value[int(key)]
        except (ValueError, KeyError, IndexError, TypeError):
            raise fault(f'{where}: there is no number{at}: {value!r:.60} has no "{key}"; correct the entry') from None
    try:
        array = np.asarray(value)
    except ValueError:
        raise fault(f"{where}: there is no number{at}: the lists in {value!r:.60} have different lengths; correct the entry") from None
    if array.dtype.kind not in "biuf":
        raise fault(f"{where}{at} is {value!r:.60}, and no number of at most 64 bits; correct the entry")
    return array.astype(np.float32) if array.dtype.kind == "f" else array
