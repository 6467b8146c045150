"""A benchmark of writes to the working directory.

Prints a JSON object.  "free" is the free bytes of the disk, and "kind" the type of the file system.  "sync" is the time in seconds to write a small
file, and "rate" the bytes per second of a large file.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import psutil

SMALL, LARGE, TIMES = b"x" * 4096, b"x" * (8 << 20), 5


def seconds(folder: str, name: str, content: bytes) -> float:
    """Return the seconds for a durable write of a file: write, sync, rename, and a sync of the directory."""
    begun = time.perf_counter()
    with open(os.path.join(folder, "new"), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(file.name, os.path.join(folder, name))
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    return time.perf_counter() - begun


def kind(path: Path) -> str:
    """Return the type of the file system."""
    mounted = [(len(disk.mountpoint), disk.fstype) for disk in psutil.disk_partitions(all=True) if path.is_relative_to(disk.mountpoint)]
    return max(mounted, default=(0, "unknown file system"))[1]


here = Path.cwd()
with tempfile.TemporaryDirectory(prefix=".jobflow-doctor-", dir=here) as folder:
    sync = statistics.median(seconds(folder, f"{i}", SMALL) for i in range(TIMES))
    rate = len(LARGE) / seconds(folder, "large", LARGE)
print(json.dumps({"free": shutil.disk_usage(here).free, "kind": kind(here), "sync": sync, "rate": rate}))
