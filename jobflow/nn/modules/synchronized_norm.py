"""Batch normalization of local tensors with the statistics of the batches of all ranks."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import ArgumentError, JobError, ShapeError, user_line
from jobflow.core.types import float16, float32
from jobflow.functional.creation import full
from jobflow.functional.custom_functions import Function
from jobflow.functional.gradients import no_grad
from jobflow.functional.group_arguments import ranks_of
from jobflow.functional.group_collectives import Group
from jobflow.functional.joining import cat
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.norm_layers import _BatchNorm
from jobflow.tensors.gpus import gpu_of, on_device
from jobflow.tensors.state import building_now, running

__all__ = ["SyncBatchNorm"]


class _SumOverRanks(Function):
    """The sum of the tensors of all ranks; its gradient is the sum of the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: tuple[int, ...]) -> Tensor:
        ctx.ranks = ranks
        total = Group("SyncBatchNorm", ranks).reduced(x, "sum")
        result = Tensor(x.tensor_type, None, on_device(gpu_of(x.array), total))
        result._device = x._device
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _SumOverRanks.apply(gradient, ctx.ranks), None


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of [n, c, ...] whose statistics in training cover the batches of all ranks of `process_group`; see BatchNorm1d.

    The gradients of weight and bias belong to the batch of this rank, so that DistributedDataParallel averages them.  The batches may differ in
    size.  The statistics of a global input cover the whole logical batch, as in BatchNorm1d.
    Raises: JobError for local tensors of several ranks in a graph or a compiled function; ShapeError for one value per channel in training.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        ranks_of("SyncBatchNorm", process_group, "process_group")
        self.process_group = process_group

    def _check(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ShapeError(f"SyncBatchNorm at {user_line()}: input {input.tensor_type} must have at least 2 axes")

    def forward(self, input: Tensor) -> Tensor:
        ranks = ranks_of("SyncBatchNorm", self.process_group, "process_group")
        if input.layout is not None or len(ranks) < 2 or not (self.training or self.running_mean is None):
            return super().forward(input)
        self._check(input)
        if building_now() is not None:
            raise JobError(
                f"SyncBatchNorm at {user_line()}: ranks cannot exchange statistics of local tensors while {running()} runs; make the module and "
                f"the input global, or call the module outside"
            )
        return self._normalized(input, ranks)

    def _normalized(self, input: Tensor, ranks: tuple[int, ...]) -> Tensor:
        x = input.to(float32) if input.dtype.itemsize == float16.itemsize else input
        axes, wide = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
        if x.shape[1] != self.num_features:
            raise ShapeError(f"SyncBatchNorm at {user_line()}: input {input.tensor_type} must have {self.num_features} channels along axis 1")
        rows = full((1,), x.tensor_type.size // self.num_features, dtype=x.dtype, device=x.device)
        total = _SumOverRanks.apply(cat([x.sum(axes), rows]), ranks)
        count = int(total[-1].item())
        if count < 2:
            raise ShapeError(f"SyncBatchNorm at {user_line()}: training needs more than one value per channel; the batches have {count} in all")
        mean = total[:-1] / count
        centred = x - mean.reshape(wide)
        squares = _SumOverRanks.apply((centred * centred).sum(axes), ranks)
        self._track(mean, squares, count)
        result = centred * (squares / count + self.eps).rsqrt().reshape(wide)
        if self.weight is not None:
            result = result * self.weight.reshape(wide)
        if self.bias is not None:
            result = result + self.bias.reshape(wide)
        return result.to(input.dtype)

    def _track(self, mean: Tensor, squares: Tensor, count: int) -> None:
        """Update the running statistics by the statistics of this batch."""
        if not self.track_running_stats or self.running_mean is None or not self.training:
            return
        momentum = self._count()
        with no_grad():
            for running_value, new in ((self.running_mean, mean), (self.running_var, squares / (count - 1))):
                running_value.mul_(1 - momentum).add_(new.to(running_value.dtype), alpha=momentum)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Return the module after replacing its BatchNorm modules by SyncBatchNorm modules with the same parameters and buffers.

        Raises: ArgumentError unless `module` is an nn.Module.
        """
        if not isinstance(module, Module):
            raise ArgumentError(f"convert_sync_batchnorm at {user_line()}: module is {type(module).__name__}; pass an nn.Module")
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            result = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group)
            result.weight, result.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                result.register_buffer(name, getattr(module, name))
            result.training = module.training
        for name, child in list(module.named_children()):
            result.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return result


check_layers(globals())
