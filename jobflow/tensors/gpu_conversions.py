"""Changes of layout of eager tensors between GPUs by NCCL, as plans of jobs.

A plan is compared once per type and pair of layouts.  Each call allocates memory for it, and launches its instructions in the order of the schedule.
No host waits.  After every communication the kernels wait for its end, so memory is never freed before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jobflow.core.layout import Layout
from jobflow.core.types import Array, TensorType
from jobflow.ops.op import Op
from jobflow.plan.plan import Collective, Completion, Compute, Instruction, Plan, Slot, Transfer, Wait
from jobflow.plan.plan_checks import compare_plans, summary
from jobflow.program.program import Program, StorageChoice
from jobflow.program.rank_group import RankGroup
from jobflow.runtime.comm.communicator import Binding
from jobflow.runtime.comm.nccl_calls import reduces
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.posts import in_schedule_order
from jobflow.runtime.variable_buffers import window
from jobflow.tensors.conversions import Conversion, physical
from jobflow.tensors.eager_gpu import EagerGpu, GpuCalls
from jobflow.tensors.gpu_collectives import nccl_group
from jobflow.tensors.gpus import duplicate, gpu_of_layout, write
from jobflow.tensors.state import EagerState


def nccl_between(here: EagerState, ranks: tuple[int, ...], type: TensorType, source: Layout, target: Layout, what: str) -> NcclCommunicator | None:
    """Return the communicator of a change of layout between GPUs; None if it uses the hosts.  Collective over `ranks`."""
    if source.is_partial and not reduces(type.dtype.numpy):
        return None
    return nccl_group(here, what, ranks, gpu_of_layout(here, source) or gpu_of_layout(here, target))


def bound(here: EagerState, comm: NcclCommunicator, ranks: tuple[int, ...], type: TensorType, source: Layout, target: Layout) -> Conversion:
    """Return the conversion from the layout `source` to `target` on the GPU of this rank.  Collective over `ranks`."""
    gpu: EagerGpu = here.gpus[comm.device.index]
    index, group = ranks.index(here.rank.index), RankGroup((source.placement, target.placement))
    at = [group.layout(source), group.layout(target)]
    plan = Program(physical(type, *at), StorageChoice(copies=True), gpu.target).plan(index, len(ranks))
    compare_plans(plan.job, comm.exchange(summary(plan)))
    own = {tuple(i.ranks) for i in plan.body if isinstance(i, Collective) and len(i.ranks) > 1}
    gpu.activate()
    comm.prepare(sorted({ranks for each in comm.exchange(own) for ranks in each}))
    return Conversion(GpuPlan(gpu, comm, plan), bool(plan.schedule), index in at[1].placement.ranks)


class GpuPlan:
    """The execution of a change of layout on the GPU of a rank, in new memory."""

    def __init__(self, gpu: EagerGpu, comm: NcclCommunicator, plan: Plan) -> None:
        self._gpu, self._comm, self._plan = gpu, comm, plan
        self._steps = [self._step(instruction) for instruction in in_schedule_order(plan.body)]

    def __call__(self, array: Array) -> Array | None:
        self._gpu.activate()
        buffers = {name: self._gpu.empty((max(nbytes, 1),), np.uint8) for name, nbytes in self._plan.buffers.items()}
        for feed in self._plan.feeds:
            write(self._view(buffers, feed.slot), array)
        for step in self._steps:
            step(buffers)
        return next((duplicate(self._view(buffers, slot)) for _, slot in self._plan.fetches), None)

    def _view(self, buffers: Mapping[str, Array], slot: Slot) -> Array:
        return window(self._gpu.xp, buffers[slot.buffer], slot)

    def _step(self, instruction: Instruction) -> Callable[[Mapping[str, Array]], None]:
        """Return the function that launches an instruction on the buffers of a call."""
        match instruction:
            case Compute(op, inputs, outputs):
                return self._computed(op, inputs, outputs)
            case Collective(kind, ranks, source, target, counts, receives, reduce):
                counts = (sum(counts),) if kind == "all_reduce" else counts
                if len(ranks) == 1:
                    return lambda buffers: write(self._view(buffers, target), self._view(buffers, source))
                combine = reduce if kind in ("all_reduce", "reduce_scatter") else None
                return lambda buffers: self._communicate(
                    Binding(kind, ranks, self._view(buffers, source), self._view(buffers, target), counts, receives, combine, instruction.name)
                )
            case Transfer(peer, sends, slot):
                return lambda buffers: self._transfer(peer, sends, self._view(buffers, slot), instruction.name)
            case Completion() | Wait():  # the start of a communication includes its wait
                return lambda buffers: None

    def _computed(self, op: Op, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> Callable[[Mapping[str, Array]], None]:
        calls = GpuCalls(op, self._gpu)
        overlap = any(x.buffer == y.buffer and x.offset < y.stop and y.offset < x.stop for x in inputs for y in outputs)

        def launch(buffers: Mapping[str, Array]) -> None:
            read, written = ([self._view(buffers, slot) for slot in slots] for slots in (inputs, outputs))
            if overlap:  # prepared launches assume separate memory
                calls.run_bound(read, written)
            else:
                calls.run(None, read, written)

        return launch

    def _transfer(self, peer: int, sends: bool, array: Array, name: str) -> None:
        ranks = (self._comm.rank, peer) if sends else (peer, self._comm.rank)
        source, target = (array, array[:0]) if sends else (array[:0], array)
        self._communicate(Binding("transfer", ranks, source, target, (array.size,), name=name))

    def _communicate(self, what: Binding) -> None:
        """Start a communication, and let later kernels wait for it; nothing happens if no rank has data."""
        if sum(what.counts) or sum(what.receives):
            self._comm.start(what)()
