"""Input files of readers: search, detection of the format, and decompression."""

from __future__ import annotations

import gzip
import zlib

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.types import Array
from jobflow.storage.remote import AnyPath, RemotePath
from jobflow.storage.untrusted import MEMORY, Fault, mapped, open_regular, read_at_most

#: Folders and files of operating systems and tools, in lower case. Names that start with a dot are hidden, too.
SYSTEM = frozenset(
    [
        *["__macosx", "__pycache__", "_temporary", "thumbs.db", "ehthumbs.db", "desktop.ini"],
        *["$recycle.bin", "system volume information", "@eadir", "lost+found"],
    ]
)
#: number of first bytes of a text file that show its encoding
HEAD = 4096
GZIP, UTF8_MARK = b"\x1f\x8b", b"\xef\xbb\xbf"
#: First bytes of files that are not UTF-8 text, and advice for messages.
_OTHER = {
    b"\xff\xfe\x00\x00": "UTF-32 text; convert it to UTF-8",
    b"\x00\x00\xfe\xff": "UTF-32 text; convert it to UTF-8",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save it as CSV",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet; save it as CSV",
    b"BZh": "packed with bzip2; unpack it",
    b"\xfd7zXZ": "packed with xz; unpack it",
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it",
    b"PAR1": 'a Parquet file; use the reader "parquet"',
}


def fault_of(what: str) -> Fault:
    """Return a function that creates the error of the reader `what` for a message."""
    return lambda text: DataError(f"{what}: {text}")


def files_at(path: AnyPath, pattern: str, fault: Fault) -> list[AnyPath]:
    """Return the file `path`, or the files below a folder that match `pattern`, sorted by path.

    Raises: the error of `fault` if the path does not exist or no file matches.
    """
    if not path.exists():
        raise fault(f"there is no file or folder {path.absolute()}; set path to an existing one")
    if not path.is_dir():
        return [path]
    files = files_below(path, pattern)
    if not files:
        raise fault(f"no file in {path.absolute()} matches {pattern!r}; hidden and system files are not read")
    return files


def files_below(folder: AnyPath, pattern: str = "*") -> list[AnyPath]:
    """Return the files below a folder that match `pattern`, sorted by path, without hidden and system files."""
    steps = len(str(folder).rstrip("/")) + 1
    files = [file for file in folder.rglob(pattern) if isinstance(file, RemotePath) or not file.is_dir()]  # object stores have no folders
    return sorted((file for file in files if not any(map(is_hidden, str(file)[steps:].split("/")))), key=str)


def entries_of(folder: AnyPath) -> list[AnyPath]:
    """Return the files and folders in a folder, sorted by name, without hidden and system files."""
    return sorted((entry for entry in folder.iterdir() if not is_hidden(entry.name)), key=str)


def is_hidden(name: str) -> bool:
    """Return True for the name of a hidden file, or of a file or folder that systems or tools create next to data."""
    return name.startswith(".") or name.lower() in SYSTEM


def text_of(path: AnyPath, fault: Fault) -> tuple[Array, int]:
    """Return the bytes of a text file, decompressed if it is gzip, and the offset after its byte-order mark.

    Raises: the error of `fault` for a file in another format.
    """
    content = content_of(path, fault)
    head = content[:8].tobytes()
    for first, what in _OTHER.items():
        if head.startswith(first):
            raise fault(f"{path} is {what}")
    start = content[:HEAD]
    zeros = start.size - int(np.count_nonzero(start))
    if 16 * zeros > start.size:
        kind = "UTF-32" if 2 * zeros > start.size else "UTF-16"
        raise fault(f"{path} has {zeros} zero bytes among the first {start.size}, as {kind} text without a byte-order mark; convert it to UTF-8")
    return content, len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0


def content_of(path: AnyPath, fault: Fault) -> Array:
    """Return the bytes of a file, decompressed if it is gzip."""
    content = mapped(path, fault)
    return unpacked(path, fault) if content[:2].tobytes() == GZIP else content


def unpacked(path: AnyPath, fault: Fault) -> Array:
    """Return the decompressed content of a gzip file; raise the error of `fault` if the file is damaged."""
    try:
        with open_regular(path, fault) as packed, gzip.open(packed) as file:
            return np.frombuffer(read_at_most(file, MEMORY, f"{path}, unpacked", fault), np.uint8)
    except (EOFError, OSError, zlib.error) as error:
        raise fault(f"{path} cannot be unpacked: {error}; replace the file") from None
