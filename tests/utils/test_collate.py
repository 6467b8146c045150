"""Batches of odd samples: PyTorch's value, or an error that names the sample."""

from __future__ import annotations

import re
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow.core.errors import ArgumentError
from jobflow.utils.data import DataLoader, default_collate

Pair, Riap = namedtuple("Pair", "first second"), namedtuple("Riap", "second first")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([1.0, 2], [1.0, 2.0]),
        ([True, 2], [1, 2]),
        ([np.float32(1), np.int64(3)], [1.0, 3.0]),
        ([1.0, 2**24 + 1], "sample 1 of the batch is 16777217, which float32 rounds to 16777216"),
        ([1.0, 1e300], r"sample 1 of the batch is 1e\+300, which is beyond float32"),
        ([1, 2**63], "sample 1 of the batch is 9223372036854775808, which is beyond int64"),
        ([1, 2**70], "sample 1 of the batch is 1180591620717411303424, which is beyond int64"),
        ([2, np.int64(3)], [2, 3]),
        ([np.float32(1.5), 2.5], [1.5, 2.5]),
        ([flow.tensor(1), 2], [1, 2]),
        ([np.array(1), flow.tensor(2)], [1, 2]),
        ([range(2), range(2)], None),
        ([np.uint64(2**63), np.int64(1)], "no integer type can represent int64 and uint64"),
        ([np.uint64(2**63), np.uint64(1)], "tensors cannot have the element type uint64"),
        ([None, 1], "sample 0 of the batch is None of type NoneType; a sample must be a number"),
        ([1, None], "sample 1 of the batch is None of type NoneType"),
        ([1j, 2], "sample 0 of the batch is 1j of type complex"),
        ([{1}, {2}], r"sample 0 of the batch is \{1\} of type set"),
        (["a", 1], "sample 1 of the batch is 1 of type int, and sample 0 is 'a' of type str; give all samples one structure"),
        ([("a", "b"), "cd"], "sample 1 of the batch is 'cd' of type str"),
        ([{"x": 1}, 1], r"sample 1 of the batch is 1 of type int, and sample 0 is \{'x': 1\} of type dict"),
        ([{"x": 1, "y": 2}, {"x": 1}], "sample 1 of the batch has the fields x, and sample 0 has the fields x, y"),
        ([{"x": 1}, {"x": 1, "y": 2}], "sample 1 of the batch has the fields x, y, and sample 0 has the fields x"),
        ([{"x": (1, 2)}, {"x": (1,)}], r"sample 1 of the batch\['x'\] has 1 entries"),
        ([Pair(1, 2), Riap(2, 1)], "sample 1 of the batch has the fields second, first"),
        ([np.ma.array([1, 2], mask=[True, False])] * 2, "sample 0 of the batch is a value of type MaskedArray"),
        ([np.array([1], np.float64), np.array([2**53 + 1])], "sample 1 of the batch is 9007199254740993, which float64 rounds"),
        ([{"x": (1.0,)}, {"x": (1e39,)}], r"sample 1 of the batch\['x'\]\[0\] is 1e\+39"),
    ],
)
def test_default_collate_keeps_values_or_refuses(samples: list[Any], expected: Any) -> None:
    if not isinstance(expected, str):
        batch = default_collate(samples)
        assert batch.numpy().tolist() == expected if expected else [x.numpy().tolist() for x in batch] == [[0, 0], [1, 1]]
        return
    with pytest.raises(ArgumentError, match=expected):
        default_collate(samples)
    if "tensors cannot have" in expected or "no integer type" in expected:  # no single sample is the cause
        return
    first = int("sample 0 of the batch" not in expected)
    with pytest.raises(ArgumentError, match="it is sample [13] of the dataset list" if first else "it is sample [02] of the dataset list"):
        list(DataLoader([samples[0], samples[0], *samples], batch_size=2, num_workers=1))


@pytest.mark.parametrize("batch", [[], (), 5, None, "abc", {"a": 1}, {1, 2}, iter([1]), np.array(1)], ids=lambda batch: type(batch).__name__)
def test_a_batch_is_a_list_of_samples(batch: Any) -> None:
    reason = "the batch has no samples" if isinstance(batch, list | tuple) else f"the batch must be a list of samples; got .*{type(batch).__name__}"
    with pytest.raises(ArgumentError, match=rf"default_collate at test_collate.py:\d+: {reason}"):
        default_collate(batch)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([Pair(1, 2), (3, 4)], "Pair(first=[1, 3], second=[2, 4])"),
        ([[1, 2], [3, 4]], "[[1, 3], [2, 4]]"),
        ([flow.Size([1]), flow.Size([2])], "([1, 2],)"),
        ([np.str_("a"), np.str_("b")], "[np.str_('a'), np.str_('b')]"),
        ([{"y": 0, "x": 1}, {"x": 2, "y": 3}], "{'y': [0, 3], 'x': [1, 2]}"),
        ([np.bool_(True), False], "[True, False]"),
    ],
)
def test_batches_keep_the_structure_of_samples(samples: list[Any], expected: str) -> None:
    assert re.sub(r"tensor\(\[(.*?)\].*?\)", r"[\1]", repr(default_collate(samples))).replace(" True", "True") == expected


def test_single_samples_keep_their_structure() -> None:
    assert type(default_collate([OrderedDict(x=1), OrderedDict(x=2)])) is OrderedDict
    (sample,) = DataLoader([Pair(np.ones(1), "a")], batch_size=None)
    assert isinstance(sample, Pair) and sample.first.numpy().tolist() == [1] and sample.second == "a"
