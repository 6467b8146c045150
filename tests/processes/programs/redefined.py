"""A job that is declared again under its name and called repeatedly, like the cell of a notebook.  Print by how many MiB each rank grew.

redefined.py FOLDER DEVICES, or under mpiexec with "single" or "multi" as DEVICES.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

folder, devices = Path(sys.argv[1]), sys.argv[2]
(folder / f"{os.getpid()}.pid").touch()
if devices == "multi":
    flow.env.client("multi")
elif devices != "single":
    flow.config.cpu_device_num(int(devices))

MIB = 1 << 20
ROWS = 512  # 2 MiB for each of the job's tensors


def cell(number: int, width: int = 1024) -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((ROWS, width))) -> tp.Numpy:
        w = flow.get_variable("w", shape=(width, width), initializer=flow.ones_initializer())
        y = flow.matmul(x, w) + float(number)
        return flow.matmul(y, flow.transpose(w, perm=(1, 0)))

    return job


def sizes() -> dict[int, int]:
    """Return the bytes of memory of each rank."""
    sizes_by_number = {}
    for file in folder.glob("*.pid"):
        resident = Path(f"/proc/{file.stem}/statm").read_text().split()[1]
        sizes_by_number[int(file.stem)] = int(resident) * os.sysconf("SC_PAGE_SIZE")
    return sizes_by_number


def run(cells: range) -> None:
    for number in cells:
        result = cell(number)(np.ones((ROWS, 1024), np.float32))
        assert result.min() == result.max() == 1024.0 * (1024.0 + number)


if __name__ == "__main__":
    first_job = cell(1)
    run(range(4))
    before = sizes()
    run(range(4, 34))
    after = sizes()
    # the first job can still be called
    assert first_job(np.ones((ROWS, 1024), np.float32)).max() == 1024.0 * 1025.0
    # variables of another shape replace the earlier ones
    for width in (768, 512):
        assert cell(1, width)(np.ones((ROWS, width), np.float32)).max() == width * (width + 1.0)
        assert {name: variable.shape for name, variable in flow.get_all_variables().items()} == {"w": (width, width)}
    if flow.env.get_rank() == 0:
        print(*(round((after[pid] - before[pid]) / MIB) for pid in before))
