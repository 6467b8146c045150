"""load_mnist: every source it knows, and what it says about broken ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.core import notices
from jobflow.core.errors import ArgumentError, JobflowError
from jobflow.data import download, load_mnist
from jobflow.data.digits import EDGE, TEST_SIZE, TRAIN_SIZE, like_mnist, originals, scaled, weights
from jobflow.data.download import fetch
from jobflow.data.idx import IDX_NAMES

Array = np.ndarray[Any, Any]
STAND_IN = "2f598579d040f58931fe38c67882b8df66aad7ed2bc79799f1a3addf425a6b7d"


def tiny(seed: int = 0) -> dict[str, Array]:
    random = np.random.RandomState(seed)
    return {
        "x_train": random.randint(0, 256, (12, 28, 28), np.uint8),
        "y_train": random.randint(0, 10, 12, np.uint8),
        "x_test": random.randint(0, 256, (6, 28, 28), np.uint8),
        "y_test": random.randint(0, 10, 6, np.uint8),
    }


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "mnist.npz"
    np.savez(path, **tiny())
    return path


@pytest.fixture(autouse=True)
def notices_anew() -> Iterator[None]:
    notices.forget()
    yield
    notices.forget()


@pytest.fixture
def refused() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/mnist.npz"


def write_idx(path: Path, array: Array) -> None:
    content = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def check_tiny(loaded: Any) -> None:
    (images, labels), (test_images, test_labels) = loaded
    expected = tiny()
    assert images.shape == (3, 4, 1, 28, 28) and images.dtype == np.float32
    assert test_images.shape == (2, 3, 1, 28, 28) and labels.shape == (3, 4) and labels.dtype == test_labels.dtype == np.int32
    np.testing.assert_array_equal(images.reshape(12, 28, 28), expected["x_train"].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(test_labels.reshape(-1), expected["y_test"])


def test_archive(archive: Path) -> None:
    check_tiny(load_mnist(4, 3, hash_check=sha(archive), out_dir=str(archive.parent)))


def test_archive_with_another_hash(archive: Path) -> None:
    with pytest.raises(JobflowError, match="remove the file"):
        load_mnist(4, 3, out_dir=str(archive.parent))


def test_archive_without_its_arrays(archive: Path) -> None:
    np.savez(archive, x_train=np.zeros(3))
    with pytest.raises(JobflowError, match="no array y_train, x_test, y_test"):
        load_mnist(4, 3, hash_check=sha(archive), out_dir=str(archive.parent))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("names", IDX_NAMES)
def test_idx_files(tmp_path: Path, names: tuple[str, ...], suffix: str) -> None:
    for name, array in zip(names, tiny().values(), strict=True):
        write_idx(tmp_path / (name + suffix), array)
    check_tiny(load_mnist(4, 3, out_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x1f\x8b\x08\x00", "not an IDX file"), (b"\0\0\x08\x01\0\0\0\x05abc", "requires 5 bytes, but 3 bytes follow the header")],
)
def test_damaged_idx_file(tmp_path: Path, content: bytes, message: str) -> None:
    for name, array in zip(IDX_NAMES[0], tiny().values(), strict=True):
        write_idx(tmp_path / name, array)
    (tmp_path / IDX_NAMES[0][1]).write_bytes(content)
    with pytest.raises(JobflowError, match=message):
        load_mnist(4, 3, out_dir=str(tmp_path))


def test_download(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    check_tiny(load_mnist(4, 3, url=archive.as_uri(), hash_check=sha(archive), out_dir=str(folder)))
    assert [path.name for path in folder.iterdir()] == ["mnist.npz"]


@pytest.mark.parametrize(("sizes", "named"), [((7, 3), "train_batch_size 7"), ((4, 5), "test_batch_size 5"), ((0, 3), "train_batch_size 0")])
def test_batch_size_must_divide(archive: Path, sizes: tuple[int, int], named: str) -> None:
    with pytest.raises(ValueError, match=named + " does not divide the") as caught:
        load_mnist(*sizes, hash_check=sha(archive), out_dir=str(archive.parent))
    assert Path(__file__).name in str(caught.value)


def test_unknown_format(archive: Path) -> None:
    with pytest.raises(ArgumentError, match='"NCHW" or "NHWC"'):
        load_mnist(4, 3, data_format="CHWN", hash_check=sha(archive), out_dir=str(archive.parent))


def test_channels_last(archive: Path) -> None:
    last, first = (load_mnist(4, 3, form, hash_check=sha(archive), out_dir=str(archive.parent))[0][0] for form in ("NHWC", "NCHW"))
    assert last.shape == (3, 4, 28, 28, 1)
    np.testing.assert_array_equal(np.moveaxis(last, 4, 2), first)


def test_digits_replace_missing_files(tmp_path: Path, refused: str, capsys: pytest.CaptureFixture[str]) -> None:
    (images, labels), (test_images, test_labels) = load_mnist(url=refused, out_dir=str(tmp_path))
    assert images.shape == (600, 100, 1, 28, 28) and test_images.shape == (100, 100, 1, 28, 28)
    assert labels.shape == (600, 100) and test_labels.shape == (100, 100)
    assert images.min() == 0 and images.max() == 1 and set(np.unique(labels)) == set(range(10))
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and "UCI digits" in output.err and str(tmp_path) in output.err and not output.out
    assert list(tmp_path.iterdir()) == []


def test_stand_in_is_the_same_every_time() -> None:
    (images, _), (test_images, _) = like_mnist()
    assert (len(images), len(test_images)) == (TRAIN_SIZE, TEST_SIZE)
    digest = hashlib.sha256(images.tobytes() + test_images.tobytes()).hexdigest()
    assert digest == STAND_IN


def test_no_test_digit_is_a_shifted_train_digit() -> None:
    """Cropped to its ink, an image is the same under any shift."""

    def inks(images: Array) -> set[bytes]:
        result = set()
        for image in images:
            rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
            result.add(image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].tobytes())
        return result

    (train, _), (test, _) = like_mnist()
    assert len(inks(train[:15000])) > 1000 and inks(train[:15000]).isdisjoint(inks(test[:3000]))


def test_scaling_keeps_flat_images_flat_and_corners_in_place() -> None:
    np.testing.assert_array_equal(weights(8, EDGE).sum(1), 2 * EDGE)
    assert np.unique(scaled(np.full((1, 8, 8), 16, np.uint8), EDGE)).tolist() == [255]
    images, labels = originals()
    assert images.shape == (1797, 8, 8) and images.max() == 16 and len(labels) == 1797
    big = scaled(images[:5], EDGE)
    np.testing.assert_array_equal(big[:, 0, 0], (images[:5, 0, 0].astype(np.int64) * 255 + 8) // 16)


def test_fetch_happens_once_for_many(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, original = [], download._download
    monkeypatch.setattr(download, "_download", lambda *args: (opened.append(args), time.sleep(0.2), original(*args))[-1])
    target, results = tmp_path / "copy.npz", []
    threads = [threading.Thread(target=lambda: results.append(fetch(archive.as_uri(), target))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4 and len(opened) == 1 and target.read_bytes() == archive.read_bytes()


def test_a_failed_attempt_is_not_repeated_by_those_who_waited(tmp_path: Path, refused: str) -> None:
    target = tmp_path / "file"
    lock = tmp_path / "file.lock"
    lock.touch()
    threading.Timer(0.3, lock.unlink).start()
    start = time.monotonic()
    assert fetch("http://never.invalid/", target) is False
    assert time.monotonic() - start < 2.5, "it asked again"


def test_a_dead_lock_is_ignored(tmp_path: Path, archive: Path) -> None:
    lock = tmp_path / "file.lock"
    lock.touch()
    os.utime(lock, (1, 1))
    assert fetch(archive.as_uri(), tmp_path / "file") is False
    assert not lock.exists()
    assert fetch(archive.as_uri(), tmp_path / "file") is True


def test_a_silent_server_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        start = time.monotonic()
        assert fetch(f"http://127.0.0.1:{server.getsockname()[1]}/x", tmp_path / "x", patience=0.3) is False
        assert time.monotonic() - start < 2
    assert list(tmp_path.iterdir()) == []


def test_a_transfer_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\nabc")

        thread = threading.Thread(target=serve)
        thread.start()
        assert fetch(f"http://127.0.0.1:{server.getsockname()[1]}/x", tmp_path / "x", patience=1) is False
        thread.join()
    assert list(tmp_path.iterdir()) == []
