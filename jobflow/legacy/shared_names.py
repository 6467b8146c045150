"""Names that both faces have: in the body of a job they are the job face's, elsewhere those of tensors.

Modules that the job face has as functions (`nn.MSELoss(x, y)`) are told apart by `jobflow.nn.modules`.
"""

import jobflow.engine.distribute as distribute
import jobflow.legacy.arrays as arrays
import jobflow.legacy.math as math
from jobflow.eager.faces import by_face, of_jobs

cast = by_face(arrays.cast, "cast")
clamp = by_face(math.clamp, "clamp")
clip = by_face(math.clip, "clip")
concat = by_face(arrays.concat, "concat")
expand = by_face(arrays.expand, "expand")
flatten = by_face(arrays.flatten, "flatten")
gather = by_face(arrays.gather, "gather")
masked_fill = by_face(arrays.masked_fill, "masked_fill")
matmul = by_face(arrays.matmul, "matmul")
one_hot = by_face(arrays.one_hot, "one_hot")
ones = by_face(arrays.ones, "ones")
ones_like = by_face(arrays.ones_like, "ones_like")
reshape = by_face(arrays.reshape, "reshape")
squeeze = by_face(arrays.squeeze, "squeeze")
stack = by_face(arrays.stack, "stack")
transpose = by_face(arrays.transpose, "transpose")
where = by_face(arrays.where, "where")
zeros = by_face(arrays.zeros, "zeros")
zeros_like = by_face(arrays.zeros_like, "zeros_like")

_TO_GLOBAL = {"parallel_cast": "to_global(placement, sbp)", "hierarchical_parallel_cast": "to_global(placement, sbp)"}
parallel_cast = of_jobs(distribute.parallel_cast, "parallel_cast", _TO_GLOBAL)
hierarchical_parallel_cast = of_jobs(distribute.hierarchical_parallel_cast, "hierarchical_parallel_cast", _TO_GLOBAL)
