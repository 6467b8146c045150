"""Child processes of one of several ranks, by fork and by spawn; afterwards the ranks continue. Print a line for each.

children.py devices|ranks
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import numpy as np

import jobflow as flow
import jobflow.typing as tp

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 says of every fork that threads may hang
if sys.argv[1] == "devices":
    flow.config.cpu_device_num(2)
    flow.env.client("single")
else:
    flow.env.client("multi")


def by_all() -> float:
    @flow.global_function()
    def total(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return flow.math.reduce_sum(x)

    total_value = float(total(np.ones(4, np.float32))[0])
    if sys.argv[1] == "ranks":
        P = flow.placement.all("cpu")
        total_value += flow.ones(4, placement=P, sbp=flow.sbp.split(0)).sum().item()
    return total_value


def in_a_child() -> str:
    """Return the output of a forked child about its rank, a tensor, a job, and a job in another session."""
    heard, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        texts = [f"rank {flow.env.get_rank()}", f"{flow.ones(3).sum().item():g}"]
        for act in (by_all, flow.clear_default_session, by_all):
            try:
                texts.append(str(act()))
            except flow.JobError as error:
                texts.append("forked" if "was forked" in str(error) and "children.py:" in str(error) else str(error))
        os.write(write_end, ", ".join(texts).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(heard, 1000).decode()


def anew() -> str:
    program = "import jobflow as flow; print('alone' if flow.env.get_world_size() == 1 else 'a rank', flow.ones(3).sum().item())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


by_all()
if flow.env.get_rank() == flow.env.get_world_size() - 1:
    print("\n".join([in_a_child(), anew(), str(by_all())]))
else:
    by_all()
