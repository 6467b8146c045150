"""Strategies: data, tensor and pipeline parallelism and ZeRO, by one line: ``config.strategy(strategies.tensor_parallel())``.

consistent        the program as it is written
mirrored          every rank has tensors of its own
data_parallel     each rank has its part of the batch
zero              the same, with variables and what optimizers remember split over the ranks
tensor_parallel   each rank has its part of every layer
pipeline          each group of ranks has some of the layers
combine, mesh     several of them at once, each along a dimension of its own
named             a strategy by a short text, for command lines
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
