"""The reader "idx", for IDX files, the format of MNIST."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from jobflow.core.errors import ArgumentError
from jobflow.core.types import Array
from jobflow.data.files import fault_of, unpacked
from jobflow.data.samples import Columns, Split
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.untrusted import AXES, mapped

WHAT = 'reader "idx"'
fault = fault_of(WHAT)
#: published file names, and variants after downloads by browsers and scripts
IDX_NAMES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    ("train-images.idx3-ubyte", "train-labels.idx1-ubyte", "t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"),
)
#: slices of these names: images and labels of a split
TRAIN, TEST = slice(0, 2), slice(2, 4)
#: element types by the third byte of a file
ELEMENTS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class Idx(Columns):
    """The reader "idx": images float32[1, height, width] in 0..1 and labels int32 from two IDX files, plain or gzip.

    `path` is a folder with MNIST's files. `images` and `labels` name other files in this folder; labels may be omitted. Every `validation_every`-th
    image of the training files is for validation; "all" selects all training images. Plain files are memory-mapped, gzip files are decompressed
    into memory.
    """

    def __init__(
        self,
        path: str = ".",
        split: Literal["all", "train", "validation", "test"] = "train",
        images: str | None = None,
        labels: str | None = None,
        validation_every: int = 10,
    ) -> None:
        folder = path_of(path)
        if images is not None:
            files = [folder / images] + ([folder / labels] if labels is not None else [])
        elif labels is not None:
            raise ArgumentError(f"{WHAT}: labels requires images; pass both")
        else:
            which = TEST if split == "test" else TRAIN
            files = published(folder, which)
            if not files:
                names = " and ".join(IDX_NAMES[0][which])
                raise fault(f"{folder.absolute()} contains no {names}, plain or gzip; name other files with images and labels")
        arrays = dict(zip(("images", "labels"), map(elements, files), strict=False))
        if arrays["images"].ndim != 3:
            raise fault(f"{files[0]} contains an array of shape {list(arrays['images'].shape)}; images must be [count, height, width]")
        whole = arrays["images"].dtype.kind in "ui"
        scale = {"images": 1 / np.iinfo(arrays["images"].dtype).max if whole else 1.0}
        arrays["images"] = arrays["images"][:, None]
        keep: Split = "all" if split == "test" else split
        sources = {name: f"{WHAT}: {file}" for name, file in zip(arrays, files, strict=True)}
        dtypes = {"labels": "int32"} if "labels" in arrays else None
        super().__init__(arrays, dtypes, scale, (keep, validation_every), f"{WHAT}: {files[0]}", sources)


def published(folder: AnyPath, which: slice = slice(None)) -> list[AnyPath]:
    """Return the files of MNIST in a folder, plain or gzip, for the names in the slice `which`; return [] if a file is missing."""
    for names in IDX_NAMES:
        paths = [next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None) for name in names[which]]
        if all(paths):
            return [p for p in paths if p is not None]
    return []


def elements(path: AnyPath) -> Array:
    """Return the array in an IDX file.

    The header is 0, 0, type, number of axes, then the sizes as big-endian int32. The elements follow.
    """
    if not path.is_file():
        raise fault(f"there is no file {path.absolute()}; correct path, images or labels")
    content = unpacked(path, fault) if path.suffix == ".gz" else mapped(path, fault)
    head = content[:4].tolist()
    if len(head) < 4 or head[:2] != [0, 0] or head[2] not in ELEMENTS or head[3] > AXES:
        raise fault(f"{path} is not an IDX file: it starts with {bytes(content[:4])!r}; replace the file")
    dtype, start = np.dtype(ELEMENTS[head[2]]), 4 + 4 * head[3]
    if len(content) < start:
        raise fault(f"{path} ends at byte {len(content)}, within its header of {start} bytes; replace the file")
    shape = tuple(content[4:start].view(">i4").tolist())
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or len(content) - start != needed:
        raise fault(
            f"{path} is damaged: {dtype}{list(shape)} requires {needed} bytes, but {len(content) - start} bytes follow the header; replace the file"
        )
    return content[start:].view(dtype).reshape(shape)
