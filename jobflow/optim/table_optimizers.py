"""SparseAdam, the optimizer of tables whose gradients are zero in most rows."""

from __future__ import annotations

from jobflow.ops.optimizer_updates import OptimizerUpdate
from jobflow.ops.sparse_updates import SparseAdamUpdate
from jobflow.optim.optimizer import Group
from jobflow.optim.optimizer_options import OptionsOptimizer, options

__all__ = ["SparseAdam"]


@options
class SparseAdam(OptionsOptimizer):
    """Adam for embeddings: rows of a table whose gradient is zero, and their moments, do not change."""

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        beta1, beta2 = group["betas"]
        return SparseAdamUpdate(beta1, beta2, group["eps"], group["maximize"])
