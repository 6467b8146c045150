"""Data parallel training of local modules; every rank stores the whole module and processes a part of the batch.

Gradients are averaged over all ranks during the backward pass. Parameters are grouped into buckets in reverse order, because the gradients of
the last parameters arrive first. A bucket is averaged when the next gradient arrives, because the other ranks have then usually computed the
bucket, too. All ranks average the buckets in the same order. Each bucket has a flag per parameter, so the gradient of a parameter that no rank
used does not change.

GPUs that use NCCL sum a bucket beside the backward pass, and divide it at the end of the pass. The hosts exchange the flags of all these buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.layout import SUM
from jobflow.core.lazy_imports import add_aliases
from jobflow.core.types import Array
from jobflow.functional.devices import checked_device
from jobflow.functional.group_arguments import ranks_of
from jobflow.functional.switches import checked_bool
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.data_parallel_wrapper import DataParallel as DataParallel
from jobflow.nn.modules.module import Module
from jobflow.tensors.collectives import HostCollectives, collectives_of
from jobflow.tensors.gpus import address, as_numpy, fill, gpu_of, write, zeros
from jobflow.tensors.state import EagerState, refuse_tracing, state
from jobflow.tensors.tape import ReadyCallback, TapeNode, edge_of
from jobflow.tensors.tensor import TensorBase, own

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu
    from jobflow.tensors.gpu_collectives import NcclCollectives

#: the name of the reduction in messages
_GRADIENTS = "the gradients of DistributedDataParallel"


class _Bucket:
    """Parameters of one element type and one device whose gradients are reduced together."""

    def __init__(self, parameters: Sequence[Tensor], as_view: bool) -> None:
        self.parameters = list(parameters)
        self.missing = {id(p) for p in parameters}
        self.size = sum(p.tensor_type.size for p in parameters)
        #: the memory of the gradients with `gradient_as_bucket_view`, on the host only
        self.memory = np.zeros(self.size, parameters[0].tensor_type.dtype.numpy) if as_view and _gpu(parameters[0]) is None else None
        #: the sum that NCCL computes, until the end of the backward pass
        self.sum: _Sum | None = None

    def reduce(self, here: EagerState, ranks: tuple[int, ...], used: set[int], step: int) -> None:
        """Average the gradients over the ranks, or start their sum if it runs beside the backward pass.

        `used` has the ids of the parameters with a gradient on this rank.  `step` is the number of the reduction, which the ranks compare.
        """
        through = collectives_of(here, _GRADIENTS, ranks, self.parameters)
        if not isinstance(through, HostCollectives):
            self.sum = _Sum(self.parameters, through, step)
            return
        flags = np.array(self.uses(used), self.parameters[0].tensor_type.dtype.numpy)
        flat = np.concatenate([*(_gradient(p).reshape(-1) for p in self.parameters), flags])
        total = through.reduced(flat, SUM, step)
        self._store(total, total[-len(flags) :], lambda part, target: _divide(part, target, len(ranks)))

    def uses(self, used: set[int]) -> list[bool]:
        """Return True for each parameter with a gradient on this rank."""
        return [id(p) in used for p in self.parameters]

    def complete(self, counts: Sequence[Any]) -> None:
        """Replace the gradients by their means, at the end of the backward pass; `counts` are the numbers of ranks that computed them."""
        assert self.sum is not None
        started, self.sum = self.sum, None
        self._store(started.mean(), counts, lambda part, target: write(target, part))

    def discard(self) -> None:
        """Discard a sum of a backward pass that failed."""
        if self.sum is not None:
            self.sum.wait()
            self.sum = None

    def _store(self, flat: Array, counts: Sequence[Any], store: Callable[[Array, Array], None]) -> None:
        """Replace each gradient that at least one rank computed by its part of `flat`; a rank without this gradient contributes zeros."""
        at = 0
        for p, count in zip(self.parameters, counts, strict=True):
            end = at + p.tensor_type.size
            if count > 0:
                store(flat[at:end].reshape(p.tensor_type.shape), self._target(p, at))
                p._gradient.wrote()
            at = end
        self.missing = {id(p) for p in self.parameters}

    def _target(self, p: Tensor, at: int) -> Array:
        """Return the array for the gradient of p; with bucket views, the part of the bucket that begins at `at`."""
        if self.memory is not None:
            part = self.memory[at : at + p.tensor_type.size].reshape(p.tensor_type.shape)
            if p._gradient is None or not _same_memory(p._gradient.array, part):
                p._gradient = Tensor(p.tensor_type, None, part)
            return part
        if p._gradient is None:
            p._gradient = Tensor(p.tensor_type, None, zeros(p.array, p.tensor_type.shape, p.tensor_type.dtype))
            p._gradient._device = p._device
        return own(p._gradient, "DistributedDataParallel")


class _Sum:
    """The sum of the gradients of parameters on a GPU over the ranks, which NCCL computes beside the backward pass."""

    def __init__(self, parameters: Sequence[Tensor], through: NcclCollectives, step: int) -> None:
        self._through = through
        self._flat = through.empty((sum(p.tensor_type.size for p in parameters),), parameters[0].tensor_type.dtype.numpy)
        at = 0
        for p in parameters:
            part = self._flat[at : at + p.tensor_type.size].reshape(p.tensor_type.shape)
            if p._gradient is None:
                fill(part, 0)
            else:
                write(part, p._gradient.array)
            at += p.tensor_type.size
        self.wait = through.start_reduced(self._flat, SUM, step)

    def mean(self) -> Array:
        """Return the mean; operations that read it wait for the sum."""
        self.wait()
        return self._through.divided(self._flat)


def _divide(part: Array, target: Array, ranks: int) -> None:
    if isinstance(target, np.ndarray):
        np.divide(part, ranks, out=target)
    else:
        write(target, np.divide(part, ranks))


def _gpu(p: Tensor) -> EagerGpu | None:
    """Return the GPU of a parameter; None for the host, and for a parameter whose storage is remote."""
    return gpu_of(getattr(p, "_array", None))


def _same_memory(a: Array, b: Array) -> bool:
    return address(a) == address(b) and tuple(a.strides) == b.strides


def _gradient(p: Tensor) -> Array:
    return np.zeros(p.tensor_type.shape, p.tensor_type.dtype.numpy) if p._gradient is None else as_numpy(p._gradient.array)


class _Reducer:
    """The buckets of a module and the state of the current backward pass."""

    def __init__(self, module: Module, ranks: tuple[int, ...], bucket_size: int, most: float, as_view: bool) -> None:
        self.module = module
        #: the ranks over which gradients are averaged
        self.ranks = ranks
        #: the largest number of parameters, and of bytes, of a bucket
        self.bucket_size = bucket_size
        self.most = most
        self.as_view = as_view
        self.buckets: list[_Bucket] = []
        self.bucket_of: dict[int, _Bucket] = {}
        #: all parameters of earlier and current buckets, kept alive so that ids stay unique
        self.parameters: dict[int, Tensor] = {}
        self.key: list[Any] = []
        #: parameters that received a gradient since the last reduction
        self.used: set[int] = set()
        self.done = 0
        self.step = 0
        self.begun = False
        self.enabled = True

    # ---------------------------------------------------------------- parameters

    def refresh(self, broadcast: bool = True) -> None:
        """Register hooks on new parameters, which rank 0 broadcasts if `broadcast`, and rebuild the buckets if the trained parameters changed."""
        parameters = list(self.module.parameters())
        key = [(id(p), p.tensor_type, _gpu(p)) for p in parameters if p._needs_gradient]
        new = [p for p in parameters if id(p) not in self.parameters]
        if new:
            _check_local(self.module)
            for p in new:
                self.parameters[id(p)] = p
                p.hooks = {**(p.hooks or {}), id(self): ReadyCallback(partial(self._arrived, p))}
            if broadcast:
                _take_over(state(), self.ranks, new, "the parameters of DistributedDataParallel")
        if key != self.key:
            self.key = key
            self.buckets = list(self._grouped([p for p in reversed(parameters) if p._needs_gradient]))
            self.bucket_of = {id(p): bucket for bucket in self.buckets for p in bucket.parameters}

    def _grouped(self, parameters: Sequence[Tensor]) -> Iterator[_Bucket]:
        run: list[Tensor] = []
        for p in parameters:
            size = sum(each.tensor_type.nbytes for each in (*run, p))
            differs = run and (run[0].tensor_type.dtype is not p.tensor_type.dtype or _gpu(run[0]) is not _gpu(p))
            if run and (len(run) == self.bucket_size or size > self.most or differs):
                yield _Bucket(run, self.as_view)
                run = []
            run.append(p)
        if run:
            yield _Bucket(run, self.as_view)

    # ---------------------------------------------------------------- forward

    def before_forward(self, synchronize: bool) -> None:
        """Enable the reduction of gradients in the next backward pass if `synchronize`, and discard the state of a failed pass.

        Raises: JobError while a program with gradients is traced.
        """
        here = state()
        if here.building is not None and here.building.differentiates and here.grad_enabled:
            raise JobError(
                f"DistributedDataParallel at {user_line()}: gradients cannot be averaged in {here.building.running}; compile the inner "
                f"module, or make the module global and split the batch"
            )
        if not here.grad_enabled or here.building is not None:
            return
        self.enabled = synchronize
        if self.begun:
            self._reset()
        if synchronize:
            self.refresh()

    def after_forward(self, output: Any) -> None:
        """Start the next reduction even if this rank's output depends on no parameter."""
        here = state()
        if self.enabled and here.grad_enabled and here.building is None:
            tensors = list(_tensors(output))
            if tensors and not _depends(tensors, self.bucket_of):
                self._begin(here)

    # ---------------------------------------------------------------- backward

    def _arrived(self, p: Tensor) -> None:
        """Record that the backward pass computed the gradient of p, and average the buckets that were complete before."""
        self.used.add(id(p))
        if self.enabled:
            here = state()
            if not self.begun:
                self._begin(here)
            self._average_complete(here)  # the gradient is stored after the hook
            self._bucket(p).missing.discard(id(p))

    def _begin(self, here: EagerState) -> None:
        self.begun = True
        self.step += 1
        here.own.after_backward.append(self.finish)

    def _bucket(self, p: Tensor) -> _Bucket:
        if id(p) not in self.bucket_of:
            raise JobError(
                f"DistributedDataParallel at {user_line()}: a {p.tensor_type} parameter received a gradient, but did not require one when the "
                f"module was last called; call requires_grad_() before the forward pass"
            )
        return self.bucket_of[id(p)]

    def _average_complete(self, here: EagerState) -> None:
        """Average the complete buckets, in order, up to the first incomplete one."""
        while self.done < len(self.buckets) and not self.buckets[self.done].missing:
            self.buckets[self.done].reduce(here, self.ranks, self.used, self.step)
            self.done += 1

    def finish(self) -> None:
        """Average the remaining buckets at the end of the backward pass, and complete the sums beside it."""
        here = state()
        for bucket in self.buckets[self.done :]:
            bucket.reduce(here, self.ranks, self.used, self.step)
        if started := [bucket for bucket in self.buckets if bucket.sum is not None]:
            flags = np.array([flag for bucket in started for flag in bucket.uses(self.used)], np.int32)
            counts = iter(HostCollectives(here, _GRADIENTS, self.ranks).reduced(flags, SUM, self.step).tolist())
            for bucket in started:
                bucket.complete([next(counts) for _ in bucket.parameters])
        self.used.clear()
        self.done, self.begun = 0, False

    def _reset(self) -> None:
        waiting = state().own.after_backward
        if self.finish in waiting:
            waiting.remove(self.finish)
        for bucket in self.buckets:
            bucket.missing = {id(p) for p in bucket.parameters}
            bucket.discard()
        self.used.clear()
        self.done, self.begun = 0, False


def _tensors(x: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested dicts, lists and tuples."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict | list | tuple):
        for one in x.values() if isinstance(x, dict) else x:
            yield from _tensors(one)


def _depends(outputs: Iterable[Tensor], parameters: dict[int, Any]) -> bool:
    """Return True if the backward pass from the outputs reaches one of the parameters."""
    visited: set[TapeNode] = set()
    ahead = [edge_of(x) for x in outputs]
    while ahead:
        edge = ahead.pop()
        if isinstance(edge, TensorBase):
            if id(edge) in parameters:
                return True
        elif edge is not None and edge[0] not in visited:
            visited.add(edge[0])
            ahead.extend(edge[0].edges)
    return False


class DistributedDataParallel(Module):
    """A wrapper of a module whose backward pass averages the gradients of the parameters over all ranks.

    Gradients of `bucket_size` parameters, or of at most `bucket_cap_mb` megabytes, are averaged together, over the ranks of `process_group`.
    The first rank broadcasts its parameters and buffers at construction, and its buffers before every forward pass in training. The gradient of a
    parameter that no rank used does not change. A rank that did not use a parameter contributes zeros to the mean. Unused parameters are always
    detected, so `find_unused_parameters` and `static_graph` have no effect. With `gradient_as_bucket_view` the gradients of a bucket are views of
    one array. `init_sync=False` or `broadcast_parameters=False` omits the broadcast of parameters.
    `device_ids` and `output_device` name the device of the module, and have no effect.

    Raises: JobError for a module with global tensors, whose layouts already make it parallel; ArgumentError unless `module` is an nn.Module.
    The arguments `delay_all_reduce_named_params`, `param_to_hook_all_reduce`, `mixed_precision` and `device_mesh` are not supported.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        *,
        broadcast_parameters: bool = True,
        bucket_size: int = 10,
    ) -> None:
        super().__init__()
        what = f"DistributedDataParallel at {user_line()}"
        if not isinstance(module, Module):
            raise ArgumentError(f"{what}: module is {type(module).__name__}; pass an nn.Module")
        for name, value in (("broadcast_buffers", broadcast_buffers), ("init_sync", init_sync), ("gradient_as_bucket_view", gradient_as_bucket_view)):
            checked_bool("DistributedDataParallel", name, value)
        _check_devices(what, device_ids, output_device, dim)
        _check_absent(
            what,
            delay_all_reduce_named_params=delay_all_reduce_named_params,
            param_to_hook_all_reduce=param_to_hook_all_reduce,
            mixed_precision=mixed_precision,
            device_mesh=device_mesh,
        )
        most = _positive(what, "bucket_cap_mb", bucket_cap_mb) * 2**20 if bucket_cap_mb is not None else math.inf
        ranks = ranks_of("DistributedDataParallel", process_group, "process_group")
        self.device_ids, self.output_device, self.dim, self.process_group = device_ids, output_device, dim, process_group
        self.module = module
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self._broadcast_buffers = broadcast_buffers and len(ranks) > 1
        _check_local(module)
        if len(ranks) > 1:
            self._attach(_Reducer(module, ranks, bucket_size, most, gradient_as_bucket_view), broadcast_parameters and init_sync)

    def _attach(self, reducer: _Reducer, broadcast: bool) -> None:
        """Register hooks on the module itself, so that direct calls of `module` are averaged too."""
        reducer.refresh(broadcast)
        if self._broadcast_buffers:
            _take_over(state(), reducer.ranks, self.module.buffers(), "the buffers of DistributedDataParallel")
        self.module.register_forward_pre_hook(lambda *_: self._prepare(reducer))
        self.module.register_forward_hook(lambda module, inputs, output: reducer.after_forward(output))

    def _prepare(self, reducer: _Reducer) -> None:
        reducer.before_forward(self.require_backward_grad_sync)
        if self._broadcast_buffers and self.module.training:
            _take_over(state(), reducer.ranks, self.module.buffers(), "buffers of a module")

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of the module."""
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate local gradients for forward passes inside the `with` block; the next backward pass after the block averages the sums."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before


def _check_devices(what: str, device_ids: Any, output_device: Any, dim: Any) -> None:
    """Raise ArgumentError unless the arguments name at most one device; raise PlacementError for an unknown device."""
    if device_ids is not None and (not isinstance(device_ids, list | tuple) or len(device_ids) > 1):
        raise ArgumentError(f"{what}: device_ids must be None, or a list of one device; got {device_ids!r}; start one process per device")
    for named in (*(device_ids or ()), output_device):
        checked_device("DistributedDataParallel", named)
    if type(dim) is not int or dim != 0:
        raise ArgumentError(f"{what}: dim must be 0; got {dim!r}")


def _check_absent(what: str, **arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ArgumentError(f"{what}: {name} is not supported; got {value!r}; omit it")


def _positive(what: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"{what}: {name} must be a positive number; got {value!r}")
    return float(value)


def _check_local(module: Module) -> None:
    for name, p in module.named_parameters():
        if p.layout is not None:
            raise JobError(
                f"DistributedDataParallel at {user_line()}: parameter {name} is global ({p.layout}); global modules are parallel by "
                f"themselves: omit DistributedDataParallel, or use local parameters"
            )


def _take_over(here: EagerState, ranks: tuple[int, ...], tensors: Iterable[Tensor], what: str) -> None:
    """Overwrite the tensors with the values of the first of the ranks."""
    for x in tensors:
        refuse_tracing(what, "ranks cannot broadcast local tensors", "create and call DistributedDataParallel outside")
        write(own(x, what), collectives_of(here, what, ranks, [x]).spread(x.array, ranks[0]))
        x.wrote()


add_aliases(__name__, "jobflow.nn.parallel")
