"""Eager execution of one operation, with layouts, redistribution and gradients.

    run(op, *tensors)   infer -> choose a signature -> redistribute inputs -> compute -> record for backward

The parts that do not depend on values (types, signature, the operation on this rank's pieces) are prepared once per operation, input types
and layouts.  `compiler.choose` selects the layouts as for a node of a job, but considers only this operation.  While a program is traced,
operations are recorded in the program instead.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, JobflowError, PlacementError, PlanError, SbpError, called_function, user_line
from jobflow.core.layout import B, Layout, Partial, Placement
from jobflow.core.types import Array, DType, TensorType, int64
from jobflow.engine.session import current_session
from jobflow.kernels import registry
from jobflow.kernels.eager_calls import EagerCalls, eager_calls
from jobflow.kernels.target import CPU, Target, target_of
from jobflow.ops.chain import Chain
from jobflow.ops.op import Op, ViewOp, types_tuple
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.scalar import Cast
from jobflow.runtime.buffer_pool import POOL
from jobflow.runtime.failed_assertions import FailedAssertion, located, raise_first
from jobflow.tensors.convert import addend, agree, convert, done, empty
from jobflow.tensors.device_copies import on_one_device
from jobflow.tensors.gpus import gpu_of, gpu_of_layout, gpu_of_operation, write
from jobflow.tensors.program_recorder import symbolic_strides
from jobflow.tensors.state import EagerState, Generator, mixed, state
from jobflow.tensors.tape import OpGradient, follow, record_op
from jobflow.tensors.tensor import TensorBase, check_current, own

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

T = TypeVar("T", bound=TensorBase)
#: the maximal number of prepared operations per rank
MAX_PREPARED = 8192


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation prepared for one combination of input types and layouts: output types, layouts and kernels."""

    #: the operation on this rank's pieces; None on a rank outside the placement
    op: Op | None
    types: tuple[TensorType, ...]
    #: types of this rank's pieces of the outputs
    pieces: tuple[TensorType, ...]
    #: per input, the layout in which it is read; None for its current layout
    input_layouts: tuple[Layout | None, ...]
    layouts: tuple[Layout | None, ...]
    #: the placement; None for local tensors
    placement: Placement | None = None
    #: the placement, or the GPU of local tensors; None for local tensors on the host
    anchor: Placement | EagerGpu | None = None
    #: a description and its digest, which ranks compare
    text: str = ""
    digest: int = 0
    #: True if the decomposition of the operation runs instead, because its operations accept more splits
    decomposed: bool = False
    #: True if some input is redistributed
    redistributes: bool = False
    #: computes `op`; None on a rank outside the placement
    calls: EagerCalls | None = None
    #: return uninitialised arrays for this rank's pieces
    allocators: tuple[Callable[[], Array], ...] = ()
    #: gradients by the inputs that require them
    gradients: dict[tuple[bool, ...], OpGradient] = field(default_factory=dict, compare=False)


def run(op: Op, *inputs: T) -> T:
    """Run an operation, or record it while a program is traced, and return its output.

    For an operation with several outputs, use `run_several`.
    """
    now = scope.current()
    here: EagerState = now.root.eager or state()
    if now.autocast is not None:
        inputs = autocasted(now.autocast, op, inputs)
    if now.interpreter is not None and not isinstance(now.interpreter, Running):
        outputs: Any = recorder(here, op.word()).run(op, inputs)
    else:
        outputs = perform(here, op, inputs, here.grad_enabled and (now.interpreter is None or now.interpreter.records))
    return outputs[0] if len(outputs) == 1 else outputs


def runs_chains(*inputs: TensorBase) -> bool:
    """Return True if these tensors are local and operations run eagerly, so that a chain of operations may run as one."""
    now = scope.current()
    runs = now.autocast is None and (now.interpreter is None or isinstance(now.interpreter, Running))
    return runs and all(x.layout is None and x.traced is None for x in inputs)


def autocasted(half: DType, op: Op, inputs: Sequence[T]) -> tuple[T, ...]:
    """Return the inputs of an operation under `autocast`, cast to the element type that the category of the operation selects."""
    dtype = op.autocast_dtype(half, [x.tensor_type for x in inputs])
    if dtype is None:
        return tuple(inputs)
    with scope.using(autocast=None):
        return tuple([run(Cast(dtype), x) if _is_cast(op, i, x.tensor_type, dtype) else x for i, x in enumerate(inputs)])


def _is_cast(op: Op, index: int, type: TensorType, dtype: DType) -> bool:
    return type.dtype.is_float and type.dtype is not dtype and not op.reads_as_is(index, type)


def run_several(op: Op, *inputs: T) -> tuple[T, ...]:
    """Run an operation with several outputs and return them."""
    outputs: Any = run(op, *inputs)
    return outputs


def recorder(here: EagerState, what: str) -> Any:
    """Return the recorder of the program being traced; without one, in the body of a job, raise JobError, because `what` needs eager tensors."""
    if here.building is None:
        raise JobError(f"{what} at {user_line()}: eager tensors cannot be used in the body of a job function; pass arrays to the job as arguments")
    return here.building


def perform(here: EagerState, op: Op, inputs: Sequence[TensorBase], records: bool) -> tuple[TensorBase, ...]:
    """Run an operation eagerly, and return its outputs; record it for backward if `records` is True and an input requires gradients."""
    if here.gpus:
        inputs = on_one_device(here, op, inputs)
    plan = prepared(here, op, inputs)
    if plan.decomposed:
        with scope.using(interpreter=Running(here, plan.anchor, records), autocast=None):
            results = op.decompose(*inputs)
        return tuple(results)  # type: ignore[arg-type]
    outputs = execute(here, plan, op, inputs)
    device = inputs[0]._device
    if device is not None:
        for output in outputs:
            output._device = device
    if records:
        if outputs[0]._storage is not None:  # only views have a storage here
            outputs[0].base, outputs[0]._synced_version = (inputs[0], op), inputs[0].version
        if any(x._needs_gradient if x.base is None else follow(x) for x in inputs):
            record_op(op, plan.anchor, plan.gradients, inputs, outputs)
    return outputs


def _needs_redistribution(plan: Prepared, x: TensorBase) -> bool:
    """Return True if computing a view of the global tensor x redistributes or sums its elements; all ranks return the same."""
    before, after = x.layout, plan.layouts[0]
    assert before is not None and after is not None
    summed = any(isinstance(b, Partial) and not isinstance(a, Partial) for a, b in zip(before.sbp, after.sbp, strict=True))
    return summed or plan.input_layouts[0] is not None


def prepared(here: EagerState, op: Op, inputs: Sequence[TensorBase]) -> Prepared:
    key = (op, *[part for x in inputs for part in (x.tensor_type.shape, x.tensor_type.dtype, x.layout)])
    gpu = _gpu_of_inputs(op, inputs) if here.gpus else None
    plan: Prepared | None = (here if gpu is None else gpu).prepared.get(key)
    if plan is None:
        known = (here if gpu is None else gpu).prepared
        if len(known) >= MAX_PREPARED:  # a program may call operations with new numbers as attributes without end
            known.clear()
        try:
            plan = known[key] = prepare(here, op, inputs, gpu)
        except JobflowError as error:
            raise with_line(error, op) from None
    return plan


def _gpu_of_inputs(op: Op, inputs: Sequence[TensorBase]) -> EagerGpu | None:
    """Return the GPU that holds the inputs of an operation; raise PlacementError with the user's line if they are on several devices."""
    try:
        try:
            return gpu_of_operation(op, [getattr(x, "_array", None) for x in inputs])
        except PlacementError:
            common_placement(op, inputs)  # global tensors need another remedy
            raise
    except JobflowError as error:
        raise with_line(error, op) from None


def with_line(error: JobflowError, op: Op | None = None, function: str = "") -> JobflowError:
    """Return an error like `error` with the user's line in its message.

    The message begins with the name of the function that this line calls, or else with `function` or the name of the operation.
    """
    text, at = str(error), f" at {user_line()}:"
    word, colon, rest = text.partition(":")
    called = called_function() or function
    if colon and " " not in word:
        return type(error)(f"{called or word}{at}{rest}")
    word, named, rest = text.partition(at)
    if named and called and word.isidentifier():
        return error if word == called else type(error)(f"{called}{at}{rest}")
    return error if op is None else type(error)(f"{called or op.word()}{at} {error}")


def prepare(here: EagerState, op: Op, inputs: Sequence[TensorBase], gpu: EagerGpu | None) -> Prepared:
    """Choose the layouts and kernels of an operation; raise PlacementError or SbpError if it does not accept the layouts of the inputs."""
    types = types_tuple(op.infer(*(x.tensor_type for x in inputs)))
    placement = common_placement(op, inputs)
    if gpu is not None and isinstance(op, Chain) and any(isinstance(step.op, RuntimeAssertion) for step in op.steps):
        return Prepared(op, types, types, (), (), anchor=gpu, decomposed=True)
    if placement is None:
        return Prepared(
            op,
            types,
            types,
            (None,) * len(inputs),
            (None,) * len(types),
            anchor=gpu,
            calls=calls_on(gpu, op, [x.tensor_type for x in inputs], types),
            allocators=tuple(map(POOL.allocator if gpu is None else gpu.allocator, types)),
        )
    from jobflow.compiler.layouts.choose import Case, Operand, choose  # local tensors need no layouts
    from jobflow.compiler.rank.local import on_rank

    layouts = [x.layout for x in inputs if x.layout is not None]
    operands = tuple(Operand(x.tensor_type, layout.sbp) for x, layout in zip(inputs, layouts, strict=True))
    choice = choose(Case(op, operands, placement.mesh, at_once=True))
    text = f"{op} of {_listed(inputs)}"
    digest = zlib.crc32(f"{op!r} of {_listed(inputs)}".encode())
    if choice.unmet is not None:
        raise SbpError(f"{op.word()}: no signature accepts {', '.join(map(str, layouts))}; redistribute the inputs with to_global")
    if choice.stuck and type(op).decompose is not Op.decompose:
        return Prepared(op, types, types, (), (), placement, placement, text, digest, decomposed=True)
    reads = tuple(Layout(placement, choice.input(i)) for i in range(len(inputs)))
    output_layouts = tuple(Layout(placement, choice.output(i)) for i in range(len(types)))
    input_layouts = tuple(None if placement.size == 1 or read == layout else read for read, layout in zip(reads, layouts, strict=True))
    rank, redistributes = here.rank.index, any(want is not None for want in input_layouts)
    if rank not in placement.ranks:
        return Prepared(None, types, (), input_layouts, output_layouts, placement, placement, text, digest, redistributes=redistributes)
    read = [(x.tensor_type, layout.box(x.tensor_type.shape, rank)) for x, layout in zip(inputs, reads, strict=True)]
    local, pieces = on_rank(op, rank, read, [(type, layout.box(type.shape, rank)) for type, layout in zip(types, output_layouts, strict=True)])
    calls = calls_on(gpu, local, [type.with_shape(box.shape) for type, box in read], pieces)
    return Prepared(
        local,
        types,
        pieces,
        input_layouts,
        output_layouts,
        placement,
        placement,
        text,
        digest,
        redistributes=redistributes,
        calls=calls,
        allocators=tuple(map(POOL.allocator if gpu is None else gpu.allocator, pieces)),
    )


def calls_on(gpu: EagerGpu | None, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Any:
    """Return an object that runs an operation on arrays of these types, on a GPU or on the host."""
    return eager_calls(op, target(), inputs, outputs) if gpu is None else gpu.calls(op)


def target() -> Target:
    """Return the target of eager operations: the LLVM kernels if the session selects them, or else the NumPy kernels."""
    chosen = target_of("cpu", current_session().settings.kernels)
    return chosen if chosen.tier == "llvm" else CPU


def common_placement(op: Op, inputs: Sequence[TensorBase]) -> Placement | None:
    """Return the placement of the inputs, or None if all inputs are local.

    Raises: PlacementError if placements differ, or for local and global tensors together.
    """
    first = inputs[0].layout
    for x in inputs[1:]:
        if (x.layout is None) != (first is None):
            raise PlacementError(
                f"{op.word()}: the inputs are local and global tensors ({_listed(inputs)}); create the local tensor with device=x.device of "
                "the global tensor x, or convert it with to_global"
            )
        if x.layout is not None and first is not None and x.layout.placement != first.placement:
            raise PlacementError(
                f"{op.word()}: the inputs have different placements ({_listed(inputs)}); move them to one placement with to_global(placement=...)"
            )
    return None if first is None else first.placement


def _listed(inputs: Sequence[TensorBase]) -> str:
    return ", ".join(f"{x.tensor_type} {'local' if x.layout is None else x.layout}" for x in inputs)


def execute(here: EagerState, plan: Prepared, op: Op, inputs: Sequence[TensorBase]) -> tuple[TensorBase, ...]:
    """Redistribute the inputs as `plan` requires, and return the outputs, computed on this rank's pieces."""
    if plan.placement is None:
        return _pieces(here, plan, inputs, isinstance(op, ViewOp), True)
    for x in inputs:
        check_current(x)
    strides = symbolic_strides(op, inputs[0]) if isinstance(op, ViewOp) else None
    with scope.lock():
        provenance = mixed(plan.digest, *[x._provenance for x in inputs])
        here.collective_log(plan.placement).add(provenance, plan.text)
        looks = strides is not None
        outputs = _pieces(here, plan, inputs, looks, looks and not _needs_redistribution(plan, inputs[0]))
        for number, output in enumerate(outputs):
            output._provenance = provenance + number
        if strides is not None:
            outputs[0].strides = strides
            if outputs[0]._storage is None:
                outputs[0]._copied_from = inputs[0]._copied_from or (inputs[0].memory, inputs[0].version)
        return outputs


def _pieces(here: EagerState, plan: Prepared, inputs: Sequence[TensorBase], looks: bool, shares: bool) -> tuple[TensorBase, ...]:
    """Redistribute the inputs if necessary, and return the outputs with this rank's pieces.

    `looks` requests a view of the input if possible.  `shares` makes the output use the storage of the input.
    """
    if plan.redistributes:
        arrays = [x.array if want is None else convert(here, x, want, "an input") for x, want in zip(inputs, plan.input_layouts, strict=True)]
    else:
        try:
            arrays = [x._array for x in inputs]
        except AttributeError:  # some storage is remote
            arrays = [x.array for x in inputs]
    op = plan.op
    if op is None:
        outputs = tuple(TensorBase.new(type, layout, empty(type)) for type, layout in zip(plan.types, plan.layouts, strict=True))
        if shares:
            inputs[0].shares(outputs[0])
        return outputs
    if looks and isinstance(op, ViewOp):
        view = view_of(op, arrays)
        if view is not None:
            output = TensorBase.new(plan.types[0], plan.layouts[0], view)
            if shares:
                inputs[0].shares(output)
            return (output,)
    if isinstance(op, RuntimeAssertion) and (plan.placement is not None or isinstance(arrays[0], np.ndarray)):
        results = run_assertion(here, plan, op, arrays)
    else:
        results = [allocate() for allocate in plan.allocators]
        plan.calls.run(here.own.device, arrays, results)  # type: ignore[union-attr]
    return tuple([TensorBase.new(type, layout, array) for type, layout, array in zip(plan.types, plan.layouts, results, strict=True)])


def run_assertion(here: EagerState, plan: Prepared, op: RuntimeAssertion, arrays: Sequence[Array]) -> list[Array]:
    """Run a runtime assertion on this rank's pieces, and return its results.

    If the pieces of the ranks differ, the ranks exchange failures, so that all ranks raise the first failure.
    """
    refused: FailedAssertion | None = None
    results: list[Array] = []
    layout, gpu = plan.layouts[0], gpu_of(arrays[0])
    alone = layout is None or layout.is_whole
    try:
        results = compute(here, op, arrays, plan.pieces, gpu)
        if gpu is not None and not alone:
            gpu.synchronize()
    except JobflowError as error:
        refused = FailedAssertion(0, here.rank.index, type(error), located(error, user_line()) if gpu is None else str(error))
    if layout is None or alone:
        raise_first([refused])
        return results
    comm = here.rank.host_comm.group(layout.placement.ranks)
    agree(here, comm, here.collective_log(layout.placement).number, lambda: f"{op.what} at {user_line()}{done(here, layout.placement)}")
    raise_first(comm.exchange(refused))
    return results


def view_of(op: ViewOp, arrays: Sequence[Array]) -> Array | None:
    """Return the result of a view operation as a view of its input, or None if strides cannot express the result."""
    try:
        return op.view(*arrays)
    except ValueError:
        return None


def compute(here: EagerState, op: Op, arrays: Sequence[Array], types: Sequence[TensorType], gpu: EagerGpu | None = None) -> list[Array]:
    """Run an operation on arrays of this rank, on `gpu` or on the host, and return new arrays of the given types."""
    if gpu is not None:
        return gpu.compute(op, arrays, types)
    outputs = [POOL.allocator(type)() for type in types]
    EagerCalls(op, partial(registry.bind, op, CPU)).run(here.own.device, arrays, outputs)
    return outputs


def update(here: EagerState, op: Op, inputs: Sequence[TensorBase], what: str) -> None:
    """Run an operation that overwrites some of its inputs (`alias`), without recording it; `what` names the caller.

    If the operation reads a split input as a whole, each rank stores its piece of the result.
    """
    if here.building is not None:
        here.building.update(op, inputs)
        return
    with scope.lock():
        _update(here, op, inputs, what)


def _update(here: EagerState, op: Op, inputs: Sequence[TensorBase], what: str) -> None:
    if here.gpus:
        inputs = on_one_device(here, op, inputs)
    plan = prepared(here, op, inputs)
    for x in inputs:
        check_current(x)
    written = op.alias.values()
    for i in written:
        own(inputs[i], what)
    if plan.placement is not None:
        provenance = mixed(plan.digest, *[x._provenance for x in inputs])
        here.collective_log(plan.placement).add(provenance, plan.text)
        for i in written:
            inputs[i]._provenance = provenance + i
    if plan.redistributes:
        arrays = [x.array if want is None else convert(here, x, want, "an input") for x, want in zip(inputs, plan.input_layouts, strict=True)]
    else:
        arrays = [x.array for x in inputs]
    for i in written:
        inputs[i].wrote()
    if plan.op is None:
        return
    over = plan.op.alias
    outputs = [arrays[over[i]] if i in over else allocate() for i, allocate in enumerate(plan.allocators)]
    plan.calls.run(here.own.device, arrays, outputs)  # type: ignore[union-attr]
    for i in written if plan.redistributes else ():
        want, x = plan.input_layouts[i], inputs[i]
        if want is not None:  # the operation reads the whole tensor; each rank stores its piece of the result
            if not want.is_whole or x.layout is None or x.layout.is_partial:
                raise PlanError(f"{op.word()}: the overwritten tensor has layout {x.layout} but is read as {want}; redistribute it first (to_global)")
            write(own(x, what), arrays[i][x.layout.box(x.tensor_type.shape, here.rank.index).slices])


# -------------------------------------------------------------------- sources


def source(op: Op, layout: Layout | None, generator: Generator | None = None, gpu: EagerGpu | None = None) -> Any:
    """Return the output of an operation without inputs, or of a random operation; the tensor is global if `layout` is set.

    A random operation advances `generator`.  A local tensor is on `gpu`, or on the host for None.
    """
    now = scope.current()
    here: EagerState = now.root.eager or state()
    if here.building is not None:
        return here.building.source(op, layout, generator)
    counter = None if generator is None else generator.next()
    (type,) = types_tuple(op.infer(*(() if counter is None else (TensorType((1,), int64),))))
    arrays = [] if counter is None else [np.array([counter])]
    if layout is None:
        return TensorBase.new(type, None, compute(here, op, arrays, (type,), gpu)[0])
    about = f"{type} {layout}{'' if counter is None else f', draw {counter}'}"
    provenance = zlib.crc32(f"{op!r} {about}".encode())
    with scope.lock():
        here.collective_log(layout.placement).add(provenance, f"{op} {about}")
    result = TensorBase.new(type, layout, _source_piece(here, op, type, layout, arrays))
    result._provenance = provenance
    return result


def _source_piece(here: EagerState, op: Op, type: TensorType, layout: Layout, arrays: Sequence[Array]) -> Array:
    rank = here.rank.index
    if rank not in layout.placement.ranks:
        return empty(type)
    box = layout.box(type.shape, rank)
    local = op.localize((), (box,))
    (array,) = compute(here, local, arrays, (type.with_shape(box.shape),), gpu_of_layout(here, layout))
    return addend(array, layout, rank)


def constant_source(op: Op, where: Placement | EagerGpu | None) -> Any:
    """Return the output of an operation without inputs, broadcast on a placement, or local on a GPU or the host."""
    return source(op, Layout(where, (B,) * len(where.mesh))) if isinstance(where, Placement) else source(op, None, gpu=where)


# -------------------------------------------------------------------- gradients


class Running:
    """The interpreter of operations while Python code calls them on eager tensors: in a gradient, a decomposition, or a function of jobs."""

    takes_tensors = True

    def __init__(self, here: EagerState, placement: Placement | EagerGpu | None, records: bool) -> None:
        self.here = here
        #: the placement of constants, or the GPU of local constants
        self.placement = placement
        self.records = records
        #: True if gradient programs may run as chains of fused operations
        self.chains = not records

    def apply_chain(self, chain: Chain, inputs: Sequence[Any]) -> tuple[TensorBase, ...]:
        """Run a chain of operations, and return its outputs: as one operation on local tensors, as separate operations on global tensors."""
        if inputs[0].layout is None and scope.current().autocast is None:
            return perform(self.here, chain, inputs, self.records)
        values: Any = chain.decompose(*inputs)
        return tuple(values)

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[TensorBase, ...]:
        if not inputs:
            return (constant_source(op, self.placement),)
        half = scope.current().autocast
        return perform(self.here, op, inputs if half is None else autocasted(half, op, inputs), self.records)
