"""Connectionist temporal classification with PyTorch's conventions; see `jobflow.legacy.loss_functions` for the conventions of jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.errors import ArgumentError, JobflowError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.nn_base import REDUCTIONS, formula, one_of, reduced
from jobflow.functional.typed import Tensor
from jobflow.ops import ctc, source
from jobflow.ops import elementwise as ew
from jobflow.ops import index as ix
from jobflow.ops import shape as sh
from jobflow.ops.op import apply
from jobflow.ops.pointwise import call
from jobflow.ops.runtime_assertions import assert_bounds
from jobflow.ops.scan import CumSum

__all__ = ["ctc_loss"]


@formula
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Value:
    """Return the CTC loss of log-probabilities [frames, n, classes], or [frames, classes] of one sample (Graves et al. 2006).

    `targets` are the labels of each sample, padded to [n, length], or the concatenated labels of all samples; `blank` is the class of the blank.
    `input_lengths` and `target_lengths` are the numbers of frames and of labels per sample.  "mean" divides each loss by the number of labels of
    the sample, at least 1, and averages over the samples.  A loss is infinite if a sample has too few frames for its labels; `zero_infinity`
    replaces infinite losses by 0.
    Raises: ArgumentError for lengths or labels out of range; ShapeError for shapes that do not match; ConfigError for an unknown reduction.
    """
    one_of("ctc_loss", "reduction", reduction, REDUCTIONS)
    if not isinstance(zero_infinity, bool | int | np.bool_):
        raise ArgumentError(f"ctc_loss at {user_line()}: zero_infinity must be True or False; got {zero_infinity!r}")
    lengths, labels = _lengths("input_lengths", input_lengths), _lengths("target_lengths", target_lengths)
    one_sample = log_probs.tensor_type.ndim == 2
    batch = _as_batch(log_probs, targets, lengths, labels) if one_sample else (log_probs, targets, lengths, labels)
    inputs = ctc_inputs(*batch, blank)
    loss = ctc.ctc_loss(*inputs, int(blank), bool(zero_infinity))
    if one_sample:
        loss = sh.reshape(loss, ())
    if reduction == "mean":
        counts = ew.clip(ew.cast(inputs[3], loss.tensor_type.dtype), 1.0, None)
        loss = ew.divide(loss, sh.reshape(counts, loss.tensor_type.shape))
    return reduced("ctc_loss", loss, reduction)


def _lengths(name: str, lengths: Tensor | Sequence[int]) -> Value:
    """Return lengths as a tensor; raise ArgumentError unless they are a tensor, or a list or tuple of integers."""
    if isinstance(lengths, Tensor):
        return lengths
    if not isinstance(lengths, list | tuple) or not all(isinstance(n, int | np.integer) for n in lengths):
        raise ArgumentError(f"ctc_loss at {user_line()}: {name} is {lengths!r}; pass a tensor, list or tuple of integers, one for each sample")
    tensor: Value = apply(source.Literal.of(np.array(lengths, np.int64)))
    return tensor


def _as_batch(log_probs: Value, targets: Value, lengths: Value, labels: Value) -> tuple[Value, Value, Value, Value]:
    """Add the axis of samples to the tensors of one sample; raise ShapeError for labels or lengths of several samples."""
    if targets.tensor_type.ndim != 1 or lengths.tensor_type.size != 1 or labels.tensor_type.size != 1:
        raise ShapeError(
            f"ctc_loss at {user_line()}: log_probs {log_probs.tensor_type} is one sample, but targets are {targets.tensor_type}, "
            f"input_lengths {lengths.tensor_type} and "
            f"target_lengths {labels.tensor_type}; pass targets with one axis and one length each, or log_probs as [frames, n, classes]"
        )
    return sh.expand_dims(log_probs, 1), sh.expand_dims(targets, 0), sh.reshape(lengths, (1,)), sh.reshape(labels, (1,))


def ctc_inputs(log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value, blank: int) -> tuple[Value, Value, Value, Value]:
    """Return the inputs of the operation `CtcLoss`, with runtime assertions on lengths and labels."""
    if targets.tensor_type.ndim == 1 and log_probs.tensor_type.ndim == 3:
        targets = _padded(targets, target_lengths, log_probs.tensor_type.shape[1])
    try:
        ctc.CtcLoss(int(blank)).infer(log_probs.tensor_type, targets.tensor_type, input_lengths.tensor_type, target_lengths.tensor_type)
    except JobflowError as error:
        raise type(error)(str(error).replace("ctc_loss", f"ctc_loss at {user_line()}", 1)) from None
    (frames, _, classes), longest = log_probs.tensor_type.shape, targets.tensor_type.shape[1]
    lengths = assert_bounds(input_lengths, "ctc_loss", low=0, high=frames, noun="input length")
    labels = assert_bounds(target_lengths, "ctc_loss", low=0, high=longest, noun="target length")
    behind = ew.greater_equal(source.arange(0, longest, dtype=int64), sh.expand_dims(ew.cast(labels, int64), 1))
    targets = assert_bounds(ew.where(behind, ew.fill_like(targets, blank), targets), "ctc_loss", low=0, high=classes - 1, noun="label")
    return log_probs, targets, lengths, labels


def _padded(targets: Value, target_lengths: Value, count: int) -> Value:
    """Return concatenated labels as a matrix [count, total], where row i starts with the labels of sample i."""
    total = targets.tensor_type.size
    ends = assert_bounds(call(CumSum(0), ew.cast(target_lengths, int64)), "ctc_loss", low=0, high=total, noun="sum of target lengths")
    first = ew.subtract(ends, ew.cast(target_lengths, int64))
    at = ew.add(sh.expand_dims(first, 1), source.arange(0, total, dtype=int64))
    return ix.gather(targets, ew.minimum(at, source.constant(max(total - 1, 0), (1,), int64)), 0)
