"""Loads of states that match no variable, some or all.  Print the errors, and the values of the variables after each load.

loads.py FOLDER DEVICES, or under mpiexec with "single" or "multi" as DEVICES.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

folder, devices = Path(sys.argv[1]), sys.argv[2]
if devices == "multi":
    flow.env.client("multi")
elif devices != "single":
    flow.config.cpu_device_num(int(devices))


@flow.global_function()
def job() -> tp.Numpy:
    a = flow.get_variable("a", shape=(2,), initializer=flow.zeros_initializer())
    return a + flow.get_variable("b", shape=(2,), initializer=flow.zeros_initializer())


def values() -> dict[str, float]:
    return {name: float(variable.numpy()[0]) for name, variable in flow.get_all_variables().items()}


def refused(what: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except flow.errors.CheckpointError as error:
        print(what, "refused", values(), "|", str(error).replace(str(folder), "FOLDER").splitlines()[0])
    else:
        print(what, "loaded", values())


def twos(*names: str) -> dict[str, Any]:
    return {name: np.full(2, 2, np.float32) for name in names}


def saved(name: str, *names: str) -> str:
    """Save a checkpoint with these variables, all 3."""
    path = folder / name
    flow.checkpoint.save(str(path), {each: np.full(2, 3, np.float32) for each in names})
    return str(path)


def legacy(name: str, *names: str) -> str:
    """Save the same in the format of old releases, without types."""
    if flow.env.get_rank() == 0:
        for each in names:
            (folder / name / each).mkdir(parents=True)
            np.full(2, 4, "<f4").tofile(folder / name / each / "out")
    return str(folder / name)


if __name__ == "__main__":
    job()
    if flow.env.get_rank() == 0:
        (folder / "foreign" / "photos").mkdir(parents=True)
        (folder / "foreign" / "notes.txt").write_text("no checkpoint")
    load = flow.train.CheckPoint().load
    refused("foreign", lambda: load(str(folder / "foreign")))
    refused("missing", lambda: load(str(folder / "missing")))
    refused("another model", lambda: load(saved("another", "conv-weight", "conv-bias")))
    refused("another legacy model", lambda: load(legacy("another legacy", "conv-weight")))
    refused("one unknown name of two", lambda: flow.load_variables(twos("a", "c"), ignore_mismatch=False))
    refused("another shape", lambda: flow.load_variables(twos("a") | {"b": np.zeros(3, np.float32)}))
    refused("unknown names", lambda: flow.load_variables(twos("c", "d")))
    refused("nothing", lambda: flow.load_variables({}))
    refused("some names", lambda: flow.load_variables(twos("a", "c")))
    refused("some of a checkpoint", lambda: load(saved("some", "b", "c")))
    refused("some of a legacy checkpoint", lambda: load(legacy("some legacy", "a", "c")))
    refused("all", lambda: load(saved("all", "a", "b")))
