"""The stages of the compiler in order.

    trace           record the job's body                             -> Graph
    merge_attention replace chains of attention by one operation      -> Graph
    prepared        apply strategy and precision                      -> Graph
    differentiate   add gradients and updates                         -> Graph     (`unroll` differentiates per microbatch)
    guard           make updates conditional                          -> Graph
    simplify        merge equal nodes, drop unused nodes              -> Graph
    update_rows     update tables only at the rows read               -> Graph
    pipeline        order nodes by the schedule                       -> Graph
    recompute       rematerialize regions                             -> Graph
    shard           choose layouts                                    -> Sharded
    box             insert redistributions                            -> Physical
    break_hazards   write communicated variable values to temporaries -> Physical
    bucket          merge all_reduces of gradients                    -> Physical
    divide_updates  divide updates of shared variables among ranks    -> Physical
    view_arguments  read whole arguments without a copy               -> Physical
    lower           select the part of one rank                       -> RankProgram
    write           turn writes of variables into instructions        -> RankProgram
    zero_copy       read arguments in place                           -> RankProgram
    fuse            merge small instructions                          -> RankProgram
    convert_images  copy images whose memory order must change        -> RankProgram
    order           separate body and epilogue                        -> Ordered
    overlap         transfer data during computation                  -> Ordered
    merge_moments   compute statistics of channels in one pass        -> Ordered
    split_casts     widen half precision once for each reader         -> Ordered
    form_regions    fuse operations that share data                   -> Ordered
    merge_calls     merge operations of equal formula                 -> Ordered
    run_concurrently run collectives during computation               -> Ordered
    memory          assign addresses                                  -> Plan, verified

All stages are pure: no communication, clock, randomness, environment or iteration over sets.  Ranks that compile independently
therefore get the same result.  The first half runs once for all ranks, the second half separately on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.compiler.front.differentiate import LogicalProgram, differentiate
from jobflow.compiler.front.dynamic_loss_scale import guard
from jobflow.compiler.front.merge_attention import with_attention
from jobflow.compiler.front.microbatch import unroll
from jobflow.compiler.front.pipeline_order import pipeline
from jobflow.compiler.front.precision import lower_precision
from jobflow.compiler.front.recompute import recompute
from jobflow.compiler.front.row_updates import update_rows
from jobflow.compiler.front.simplify import simplify
from jobflow.compiler.front.whole_batch import Parts, parts_of
from jobflow.compiler.layouts.argument_views import view_shared_arguments
from jobflow.compiler.layouts.box import box
from jobflow.compiler.layouts.break_hazards import break_hazards
from jobflow.compiler.layouts.bucket import bucket
from jobflow.compiler.layouts.shard import shard
from jobflow.compiler.layouts.shared_variables import divide_updates
from jobflow.compiler.rank.channels_last import convert_images
from jobflow.compiler.rank.concurrent_collectives import reduce_in_place, run_concurrently
from jobflow.compiler.rank.fuse import fuse
from jobflow.compiler.rank.local import RankProgram
from jobflow.compiler.rank.lower import lower
from jobflow.compiler.rank.memory import plan_memory
from jobflow.compiler.rank.order import Ordered, order
from jobflow.compiler.rank.overlap import overlap
from jobflow.compiler.rank.variable_writes import write
from jobflow.compiler.rank.zero_copy import zero_copy_feeds
from jobflow.core.types import DType
from jobflow.graph.ir import Graph, Physical, Value
from jobflow.graph.traced import Traced
from jobflow.kernels.target import CPU, Target
from jobflow.plan.plan import Plan
from jobflow.plan.storage import RankMemory, is_common


def logical(program: Traced, outputs: Sequence[Value], target: Target = CPU) -> LogicalProgram:
    """Return the logical program: the graph of the whole job, independent of ranks.

    `target` is the target that all ranks share, and the CPU if they differ.
    """
    program, outputs = with_attention(program, outputs, target)
    if program.microbatches is None:
        batch = differentiate(*prepared(program, outputs, target))
    else:
        bodies = [(program, outputs)] if program.tail is None else [(program, outputs), program.tail]
        parts: list[Parts] = []
        if program.whole is not None:
            compared = [
                parts_of(body, program.whole, rows, program.microbatches) for body, rows in zip(bodies, program.microbatches.sizes, strict=True)
            ]
            bodies, parts = [(body, rewritten) for body, rewritten, _ in compared], [own for *_, own in compared]
        batch = unroll([prepared(*body, target) for body in bodies], program.microbatches, parts)
    return replace(batch, graph=recompute(pipeline(update_rows(simplify(guard(batch.graph)), program.lazily), program.schedule)))


def prepared(program: Traced, outputs: Sequence[Value], target: Target = CPU) -> tuple[Traced, Sequence[Value]]:
    """Apply the job's strategy and precision to the traced program; return the program and its outputs."""
    if program.strategy is not None:
        program, outputs = program.strategy.distribute(program, outputs)
    return lower_precision(program, outputs, target)


def distribute(graph: Graph, target: Target = CPU, reduce_dtype: DType | None = None) -> Physical:
    """Choose layouts and insert communication; `target` as in `logical`.

    GPUs sum float32 gradients in `reduce_dtype`, if it is set.
    """
    return bucket(break_hazards(box(shard(graph))), target, reduce_dtype)


def rank_program(physical: Physical, memory: RankMemory, target: Target) -> RankProgram:
    """Return the program of the rank that owns `memory`, for the device of `target`."""
    shared = frozenset(name for name, slot in memory.slots.items() if is_common(slot.buffer))
    physical = divide_updates(physical, shared, memory.io_buffers)
    physical = view_shared_arguments(physical) if memory.io_buffers else physical
    return convert_images(fuse(zero_copy_feeds(write(lower(physical, memory, target)), memory)))


def ordered_program(physical: Physical, memory: RankMemory, target: Target) -> Ordered:
    """Return the rank's program in execution order."""
    ordered = reduce_in_place(overlap(order(rank_program(physical, memory, target))))
    if target.fusion is not None:
        from jobflow.compiler.rank.batch_moments import merge_moments
        from jobflow.compiler.rank.multi_tensor_calls import merge_calls  # imported at first use, because most targets do not fuse
        from jobflow.compiler.rank.regions import form_regions
        from jobflow.compiler.rank.split_casts import split_casts

        ordered = merge_calls(form_regions(split_casts(merge_moments(ordered))))
    return run_concurrently(ordered)


def plan_rank(physical: Physical, memory: RankMemory, target: Target) -> Plan:
    """Return the rank's plan: the ordered program with addresses."""
    return plan_memory(ordered_program(physical, memory, target))
