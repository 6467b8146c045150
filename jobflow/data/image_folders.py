"""The reader "images", for image folders, based on Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jobflow.core.errors import ArgumentError
from jobflow.core.types import Array, float32, int32
from jobflow.data.files import entries_of, fault_of, files_below
from jobflow.data.image_decoder import decoder_of, pillow
from jobflow.data.samples import Field, Keep, Samples, Split
from jobflow.data.waiting import one_by_one
from jobflow.storage.remote import AnyPath, RemotePath, local_copy, path_of
from jobflow.storage.untrusted import open_regular

WHAT = 'reader "images"'
fault = fault_of(WHAT)
ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageFolders(Samples):
    """Images float32[channels, size, size] with int32 labels: the index of the image's folder among the folders of `path`.

    The shorter side of an image is scaled to `resize` pixels, by default `size`. A square of `size` is cropped from the centre, or at random
    if `crop` is "random". `flip` mirrors half of the images. `rotation` is the largest angle in degrees and `colour` the largest change of
    brightness, contrast and saturation (0.4 is up to 40 %). `rand_augment` is the number of random operations of RandAugment, with a `magnitude` up
    to 30. Random choices are a function of (`seed`, epoch, number of the image). Pixels are in 0..1. With `mean` and `deviation`, one number per
    channel, they become (x - mean) / deviation.

    `classes` names the folders and their order; the default is all folders, sorted by name. Without `labels` all images below `path` are read
    as one field. Hidden and system files and folders are omitted. Images are rotated by their EXIF orientation unless `orientation` is false.
    Grey images of 16 bits are scaled by their depth. Every `validation_every`-th image is for validation.
    """

    def __init__(
        self,
        path: str,
        size: int = 224,
        channels: Literal[1, 3] = 3,
        resize: int | None = None,
        crop: Literal["center", "random"] = "center",
        flip: bool = False,
        seed: int = 0,
        mean: list[float] | None = None,
        deviation: list[float] | None = None,
        classes: list[str] | None = None,
        labels: bool = True,
        split: Split = "all",
        validation_every: int = 10,
        orientation: bool = True,
        rotation: float = 0.0,
        colour: float = 0.0,
        rand_augment: int = 0,
        magnitude: int = 9,
    ) -> None:
        pillow()  # a missing package is reported when the reader is opened
        self._copies = dict[RemotePath, Path]()
        self._folder, self._size, self._channels, self.what = path_of(path), size, channels, f"{WHAT}: {path_of(path)}"
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
            orientation=orientation,
        )
        self._check(mean, deviation)
        self._mean, self._deviation = _per_channel(mean or [0.0] * channels), _per_channel(deviation or [1.0] * channels)
        if not self._folder.is_dir():
            raise fault(f"there is no folder {self._folder.absolute()}; set path to a folder of images")
        self.classes = (_folders(self._folder) if classes is None else list(classes)) if labels else []
        if len(set(self.classes)) < len(self.classes):
            raise ArgumentError(f"{WHAT}: classes contains a folder twice: {', '.join(self.classes)}; list each folder once")
        groups = [_images(self._folder / name, f'class "{name}"') for name in self.classes] if labels else [_images(self._folder, "it")]
        self._files = [file for group in groups for file in group]
        self._labels = np.repeat(np.arange(len(groups), dtype=np.int32), [len(group) for group in groups])
        fields = {"images": Field((channels, size, size), float32)} | ({"labels": Field((), int32)} if labels else {})
        super().__init__(fields, len(self._files), Keep(split, len(self._files), validation_every))

    def _check(self, mean: list[float] | None, deviation: list[float] | None) -> None:
        for what, factors in (("mean", mean), ("deviation", deviation)):
            if factors is not None and (len(factors) != self._channels or (what == "deviation" and min(factors) <= 0)):
                raise ArgumentError(f"{WHAT}: {what} must have a number for each of {self._channels} channels, not {factors}")
            if factors is not None and not np.isfinite(factors).all():
                raise ArgumentError(f"{WHAT}: {what} must contain finite numbers, not {factors}")

    @property
    def facts(self) -> dict[str, Any]:
        return {"classes": self.classes} if self.classes else {}

    def where(self, number: int) -> str:
        return f"{WHAT}: {self._files[self.number_in_file(number)]}: sample {number}"

    def identities(self, indices: Array) -> dict[str, list[Any]]:
        start = len(str(self._folder).rstrip("/")) + 1
        return {"file": [str(self._files[number])[start:] for number in self._keep.numbers(indices).tolist()]}

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        if "images" in names:
            random_words = self._decoder.random_words(numbers, epoch)
            images = np.empty((len(numbers), self._channels, self._size, self._size), np.float32)
            for row, number in one_by_one(numbers.tolist(), lambda number: str(self._files[number])):
                images[row] = self._image(self._files[number], None if random_words is None else random_words[:, row])
            arrays["images"] = np.divide(np.subtract(images, self._mean, out=images), self._deviation, out=images)
        if "labels" in names:
            arrays["labels"] = self._labels[numbers]
        return arrays

    def _near(self, file: AnyPath) -> Path:
        """Return a local file unchanged, or the local copy of a remote object, which is downloaded once."""
        if isinstance(file, Path):
            return file
        if file not in self._copies:
            self._copies[file] = local_copy(file)
        return self._copies[file]

    def _image(self, file: AnyPath, random_words: Array | None) -> Array:
        """Return the cropped square of an image as float32[channels, size, size] in 0..1.

        `random_words` determine a random crop and flip; with None, the square is in the centre and not mirrored.
        """
        with open_regular(self._near(file), fault) as content:
            return self._decoder.square(content, str(file), fault, random_words)


def _per_channel(numbers: list[float]) -> Array:
    return np.array(numbers, np.float32)[:, None, None]


def _folders(path: AnyPath) -> list[str]:
    folders = [folder.name for folder in entries_of(path) if folder.is_dir()]
    if not folders:
        raise fault(f"there are no folders in {path.absolute()}; create one per class, or set labels: false")
    return folders


def _images(folder: AnyPath, what: str) -> list[AnyPath]:
    if not folder.is_dir():
        raise fault(f"there is no folder {folder.absolute()} for {what}; correct classes")
    files = [file for file in files_below(folder) if file.suffix.lower() in ENDINGS]
    if not files:
        raise fault(f"{folder.absolute()} contains no image for {what}; add files with one of the suffixes {', '.join(sorted(ENDINGS))}")
    return files
