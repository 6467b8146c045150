"""Comparison of the versions of jobflow, NumPy and Python on all ranks.

Ranks with different sources compute different formulas and still exchange tensors without an error.  So ranks compare a hash of the package and the
versions of NumPy and Python when MPI has started.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.cache_folder import cache_folder
from jobflow.core.errors import JobError
from jobflow.core.notices import notice
from jobflow.core.version import __version__
from jobflow.runtime.comm.waits import listed

#: the environment variable that accepts ranks of different versions
ACCEPT = "JOBFLOW_ACCEPT_VERSIONS"
PACKAGE = Path(__file__).parents[2]


#: host, versions and acceptance of one rank, in types that every version of jobflow can unpickle
Versions: TypeAlias = Mapping[str, Any]


def own_versions() -> Versions:
    """Return the host, the versions of jobflow, NumPy and Python, and True as "accepts" if this process accepts other versions."""
    return {
        "host": socket.gethostname(),
        "jobflow": f"{__version__} (sources {source_hash(PACKAGE)})",
        "numpy": np.__version__,
        "python": platform.python_version(),
        "accepts": os.environ.get(ACCEPT, "").strip() not in ("", "0"),
    }


class VersionError(JobError):
    """Different versions of jobflow, NumPy or Python on the ranks."""

    of_environment = True


def compare(ranks: Sequence[Versions], rank: int) -> None:
    """Raise JobError on all ranks unless they run the same jobflow and the same minor versions of NumPy and Python.

    Rank 0 prints one notice for other patch versions, and for differences that all ranks accept.
    """
    strict = _differences(ranks, minor=True)
    accepted = all(row["accepts"] for row in ranks)
    if strict and not accepted:
        advice = f"install the same versions on all hosts, or set {ACCEPT}=1 on all ranks to accept the difference"
        raise VersionError(f"start of {len(ranks)} ranks: their versions differ, so they would compute different numbers; {advice}\n{strict}")
    differences = strict or _differences(ranks, minor=False)
    if differences and rank == 0:
        notice(f"the versions of the ranks differ{f', which {ACCEPT} accepts' * bool(strict)}\n{differences}")


def _differences(ranks: Sequence[Versions], minor: bool) -> str:
    """Return one line per version that differs, with its ranks and hosts; "" if all versions are equal.

    `minor` ignores the patch versions of NumPy and Python.
    """
    lines: list[str] = []
    for name in ("jobflow", "numpy", "python"):
        shown = [str(rank[name]) for rank in ranks]
        compared = [_minor(version) for version in shown] if minor and name != "jobflow" else shown
        if len(set(compared)) > 1:
            where = [(rank["host"], version) for rank, version in zip(ranks, shown, strict=True)]
            lines += [f"  {listed([i for i, at in enumerate(where) if at == one])} on {one[0]}: {name} {one[1]}" for one in dict.fromkeys(where)]
    return "\n".join(lines)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# ---------------------------------------------------------------- the hash of the package


def source_hash(package: Path) -> str:
    """Return a hash of the package's Python files, which is cached while the files do not change."""
    files = sorted(_files(str(package)))
    entry = cache_folder("sources") / _digest([str(package).encode(), repr(files).encode()])
    with suppress(OSError, UnicodeDecodeError):
        if len(digest := entry.read_text(encoding="ascii")) == 2 * _BYTES:
            return digest
    digest = _digest(part for name, *_ in files for part in (name.encode(), (package / name).read_bytes()))
    _store(entry, digest)
    return digest


#: bytes of a hash
_BYTES = 8


def _digest(parts: Sequence[bytes] | Iterator[bytes]) -> str:
    total = blake2b(digest_size=_BYTES)
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def _files(root: str, folder: str = "") -> Iterator[tuple[str, int, int, int, int]]:
    """Yield name, size, times and inode of each Python file; an edit changes one of these even if it restores the modification time."""
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            name = f"{folder}{entry.name}"
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _files(root, f"{name}/")


def _store(entry: Path, text: str) -> None:
    """Write a cache entry atomically, so that no rank reads half of it; errors are ignored, because the cache only saves time."""
    draft = entry.with_name(f"{entry.name}.{os.getpid()}")
    with suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="ascii")
        draft.replace(entry)
