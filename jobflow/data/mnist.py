"""MNIST from the first available source: an archive, the four IDX files, a download, or the digits of the package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError, DataError, JobflowError, user_line
from jobflow.core.notices import notice
from jobflow.data.digits import like_mnist
from jobflow.data.idx import elements, published
from jobflow.storage.remote import AnyPath

Array: TypeAlias = np.ndarray[Any, Any]
Pair: TypeAlias = tuple[Array, Array]

URL = "https://oneflow-public.oss-cn-beijing.aliyuncs.com/datasets/mnist.npz"
SHA256 = "63d4344077849053dc3036b247fa012b2b381de53fd055a66b539dffd76cf08e"
ARCHIVE_NAMES = ("x_train", "y_train", "x_test", "y_test")


def load_mnist(
    train_batch_size: int = 100,
    test_batch_size: int = 100,
    data_format: str = "NCHW",
    url: str = URL,
    hash_check: str = SHA256,
    out_dir: str = ".",
) -> tuple[Pair, Pair]:
    """Return ((train images, train labels), (test images, test labels)), split into batches.

    Images are float32[batches, batch, 1, 28, 28] in 0..1 (``NHWC``: [batches, batch, 28, 28, 1]), labels int32[batches, batch].
    The sources, in order: ``mnist.npz`` in `out_dir`, whose SHA-256 must be `hash_check`; the four IDX files there, plain or gzip; a download
    of `url`. If all sources are missing, a notice is printed, and the digits of the package are expanded to MNIST's 60,000 and 10,000 images.

    Raises: ArgumentError for a batch size that does not divide the images or an unknown format; JobflowError for a damaged file.
    """
    if data_format not in ("NCHW", "NHWC"):
        raise ArgumentError(f'load_mnist at {user_line()}: data_format must be "NCHW" or "NHWC", not {data_format!r}')
    train, test = _find(Path(out_dir), url, hash_check)
    return _batches("train", *train, train_batch_size, data_format), _batches("test", *test, test_batch_size, data_format)


def _find(folder: Path, url: str, hash_check: str) -> tuple[Pair, Pair]:
    archive = folder / "mnist.npz"
    if not archive.exists():
        files = published(folder)
        if files:
            images, labels, test_images, test_labels = map(_pixels, files)
            return (images, labels), (test_images, test_labels)
        from jobflow.data.download import fetch  # here, because network modules take longer to import than NumPy

        folder.mkdir(parents=True, exist_ok=True)
        if not fetch(url, archive):
            notice(
                f"MNIST IS NOT HERE: no mnist.npz or IDX files in {folder.resolve()} and no download from {url}; "
                "using the UCI digits that come with jobflow, shifted to MNIST's shapes, instead"
            )
            return like_mnist()
    return _read_archive(archive, hash_check)


def _read_archive(path: Path, hash_check: str) -> tuple[Pair, Pair]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != hash_check:
        raise JobflowError(f"{path}: SHA-256 is {digest}, expected {hash_check}; remove the file to download it again, or pass its hash_check")
    with np.load(path) as archive:
        missing = [name for name in ARCHIVE_NAMES if name not in archive]
        if missing:
            raise JobflowError(f"{path}: the archive has no array {', '.join(missing)}; it contains {', '.join(archive.files)}")
        images, labels, test_images, test_labels = (archive[name] for name in ARCHIVE_NAMES)
    return (images, labels), (test_images, test_labels)


def _pixels(path: AnyPath) -> Array:
    """Return the uint8 array in an IDX file."""
    pixels: Array = elements(path)
    if pixels.dtype != np.uint8:
        raise DataError(f"{path} has elements of type {pixels.dtype}, but MNIST files have uint8; download the file again")
    return pixels


def _batches(what: str, images: Array, labels: Array, size: int, data_format: str) -> Pair:
    if not isinstance(size, int | np.integer) or size < 1 or len(images) % size:
        raise ArgumentError(f"load_mnist at {user_line()}: {what}_batch_size {size!r} does not divide the {len(images)} {what} images")
    axis = 2 if data_format == "NCHW" else 4
    cut = images.astype(np.float32).reshape(-1, size, *images.shape[1:])
    cut /= 255
    return np.expand_dims(cut, axis), labels.astype(np.int32).reshape(-1, size)
