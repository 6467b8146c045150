"""Names of both APIs, dispatched by the arguments, else by the first tensor argument, else by the current job body.

`jobflow.nn.modules` dispatches between modules and job functions of the same name (`nn.MSELoss(x, y)`).
"""

import jobflow.engine.distribute as distribute
import jobflow.legacy.arrays as arrays
import jobflow.legacy.elements as elements
import jobflow.legacy.ids as ids
import jobflow.legacy.loss_functions as loss_functions
import jobflow.legacy.math as math
import jobflow.legacy.time_steps as time_steps
from jobflow.engine.operators import TensorOperators
from jobflow.functional.tensor_class import Tensor
from jobflow.legacy.job_dispatch import by_arguments, of_jobs

argwhere = by_arguments(ids.argwhere)
argsort = by_arguments(elements.argsort, ours=(str,))
cast = by_arguments(arrays.cast)
clamp = by_arguments(math.clamp)
clip = by_arguments(math.clip)
concat = by_arguments(arrays.concat)
ctc_loss = by_arguments(loss_functions.ctc_loss)
diag = by_arguments(elements.diag)
expand = by_arguments(arrays.expand, theirs=(int,))
flatten = by_arguments(arrays.flatten)
gather = by_arguments(arrays.gather, ours=(Tensor, TensorOperators), theirs=(int,))
masked_fill = by_arguments(arrays.masked_fill)
matmul = by_arguments(arrays.matmul)
nonzero = by_arguments(ids.nonzero, theirs=(bool,))
one_hot = by_arguments(arrays.one_hot, needs_dtype=True)
ones = by_arguments(arrays.ones, theirs=(int,), needs_dtype=True)
ones_like = by_arguments(arrays.ones_like)
range = by_arguments(arrays.range)
repeat = by_arguments(time_steps.repeat, theirs=(list, tuple))
reshape = by_arguments(arrays.reshape, theirs=(int,))
sort = by_arguments(elements.sort, ours=(str,))
squeeze = by_arguments(arrays.squeeze, theirs=(int,))
stack = by_arguments(arrays.stack)
transpose = by_arguments(arrays.transpose, ours=(list, tuple), theirs=(int,))
where = by_arguments(ids.where)
zeros = by_arguments(arrays.zeros, theirs=(int,), needs_dtype=True)
zeros_like = by_arguments(arrays.zeros_like)

_TO_GLOBAL = {"parallel_cast": "to_global(placement, sbp)", "hierarchical_parallel_cast": "to_global(placement, sbp)"}
parallel_cast = of_jobs(distribute.parallel_cast, "parallel_cast", _TO_GLOBAL)
hierarchical_parallel_cast = of_jobs(distribute.hierarchical_parallel_cast, "hierarchical_parallel_cast", _TO_GLOBAL)
