"""Strategies: data, tensor and pipeline parallelism and ZeRO in one line: ``config.strategy(strategies.tensor_parallel())``.

consistent        the program unchanged
mirrored          separate tensors on every rank
data_parallel     the batch split over the ranks
zero              data parallelism with variables and optimizer states split over the ranks
tensor_parallel   every layer split over the ranks
pipeline          the layers distributed over groups of ranks
combine, mesh     several strategies, one per dimension of a device mesh
named             a strategy from its short name, for command lines
"""

from jobflow.strategies.combine import combine, mesh
from jobflow.strategies.data_parallel import consistent, data_parallel, mirrored, zero
from jobflow.strategies.names import named
from jobflow.strategies.pipeline import pipeline
from jobflow.strategies.strategy_class import Hints, Strategy
from jobflow.strategies.tensor_parallel import tensor_parallel

__all__ = [
    "Hints",
    "Strategy",
    "combine",
    "consistent",
    "data_parallel",
    "mesh",
    "mirrored",
    "named",
    "pipeline",
    "tensor_parallel",
    "zero",
]
