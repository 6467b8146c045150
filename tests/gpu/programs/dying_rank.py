"""A training job of two processes with an imitated GPU each, of which rank 1 ends in its third all-reduce.

mpiexec -n 2 python dying_rank.py FOLDER raise|kill
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "kernels")]

import fake_cublas  # noqa: E402
import fake_cupy  # noqa: E402
import fake_nccl  # noqa: E402
import fake_nvrtc  # noqa: E402

sys.modules.update(fake_cupy.modules(2) | fake_cublas.modules() | fake_nvrtc.modules())
fake_nccl.install(Path(sys.argv[1]))

import numpy as np  # noqa: E402

import jobflow as flow  # noqa: E402
import jobflow.typing as tp  # noqa: E402
from jobflow.runtime.world.launched import launched  # noqa: E402


class Dying(fake_nccl.Communicator):
    """A communicator whose process ends in a call."""

    calls = 0

    def allReduce(self, *arguments: Any) -> None:
        Dying.calls += 1
        here = launched()
        if Dying.calls == 3 and here is not None and here.rank == 1:
            if sys.argv[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: no socket")
        super().allReduce(*arguments)


vars(sys.modules["cupy.cuda.nccl"])["NcclCommunicator"] = Dying
flow.config.gpu_device_num(2)


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((4, 3)), labels: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
    logits = flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer(), name="dense")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
    return loss


for _ in range(6):
    train(np.ones((4, 3), np.float32), np.zeros(4, np.int32))
