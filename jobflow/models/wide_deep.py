"""Wide & Deep (Cheng et al., 2016) over row numbers of tables that are split over the devices."""

from __future__ import annotations

from collections.abc import Sequence

import jobflow.engine.distribute as distribute
import jobflow.legacy.layers as layers
import jobflow.legacy.math as math
import jobflow.nn as nn
from jobflow.core.types import Tensor, float32, int32
from jobflow.legacy.arrays import cast, concat, gather, reshape
from jobflow.legacy.initializers import random_normal_initializer, zeros_initializer
from jobflow.legacy.variables import get_variable
from jobflow.models.building_blocks import Outputs, he, rows


def wide_deep(
    crosses: Tensor,
    bins: Tensor,
    numbers: Tensor,
    labels: Tensor | None = None,
    *,
    cross_rows: int,
    bin_rows: int,
    width: int = 16,
    hidden: Sequence[int] = (64, 32),
) -> Outputs:
    """Build a binary classifier whose score, the log odds of class 1, is sum(wide[crosses]) + deep(embedding[bins], numbers).

    The variable `wide` [cross_rows, 1] is stored split by rows, and `embedding` [bin_rows, width] by columns, so a device stores a shard of both.
    Communication transfers rows of a batch, never a table.  For n samples, `crosses` and `bins` are integer row numbers [n, ids], `numbers` are
    floats [n, numbers], and `labels` [n] are 0 or 1.  `hidden` has the widths of the deep layers.
    """
    wide = get_variable("wide", (cross_rows, 1), initializer=zeros_initializer(), distribute=distribute.split(0))
    table = get_variable("embedding", (bin_rows, width), initializer=random_normal_initializer(stddev=0.05), distribute=distribute.split(1))
    x = concat([rows(gather(table, cast(bins, int32))), cast(numbers, float32)], axis=1)
    for index, units in enumerate(hidden, 1):
        x = layers.dense(x, units, activation=nn.relu, kernel_initializer=he(), name=f"hidden{index}")
    deep = layers.dense(x, 1, kernel_initializer=he(), name="score")
    scores = reshape(math.add(deep, math.reduce_sum(gather(wide, cast(crosses, int32)), axis=1)), [-1])
    if labels is None:
        return {"scores": scores}
    truth = cast(labels, float32)
    loss = nn.sigmoid_cross_entropy_with_logits(truth, scores, name="loss")
    return {"loss": loss, "accuracy": cast(math.equal(cast(math.greater(scores, 0.0), float32), truth), float32)}
