"""The loss curves of training programs on a machine with GPUS simulated GPUs; "real" for the existing ones,
"first" for one that only rank 0 has.

    python pretended.py OUT GPUS DEVICES PROGRAM...            on devices of this process; they share GPUs if there are fewer
    mpiexec -n N python pretended.py OUT GPUS N PROGRAM...     on ranks that are processes

OUT gets {program: curve}, and under "world" the devices and communicators of the ranks in the writing process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "jobs" / "programs")]

sys.path.insert(0, str(HERE.parents[1] / "kernels"))

import fake_cublas  # noqa: E402
import fake_cupy  # noqa: E402
import fake_nccl  # noqa: E402
import fake_nvrtc  # noqa: E402

#: of each program
STEPS = 6


def devices_and_communicators() -> dict[str, object]:
    """Return the devices and communicators of this session's ranks, from the running world."""
    from jobflow.engine.session import current_session

    world = current_session().world
    assert world is not None
    return {"tags": [rank.device.tag for rank in world.ranks], "comms": [type(rank.comm).__name__ for rank in world.ranks]}


def main(out: str, gpus: str, devices: str, *programs: str) -> None:
    if gpus != "real":
        from jobflow.runtime.world.launched import launched

        here = launched()
        sys.modules.update(fake_cupy.modules(int(gpus) if gpus != "first" else int(here is None or here.rank == 0)))
        sys.modules.update(fake_cublas.modules() | fake_nvrtc.modules())
        fake_nccl.install(Path(out).parent)
    import curves

    import jobflow as flow

    curves.STEPS = STEPS
    results: dict[str, object] = {}
    for program in programs:
        flow.clear_default_session()
        flow.config.gpu_device_num(int(devices))
        results[program] = curves.PROGRAMS[program](int(devices))
        results["world"] = devices_and_communicators()
    flow.clear_default_session()
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
