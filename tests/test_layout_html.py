"""Drawings of layouts in notebooks: the part of each rank, escaped texts, and sizes of a few kB."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.layout import B, Layout, P, Partial, Placement, Reduction, S, Sbp
from jobflow.core.layout_html import layout_html
from jobflow.core.types import TensorType, float32

TWO, MESH, MANY = Placement("cpu", (0, 1)), Placement("cpu", (0, 1, 2, 3), (2, 2)), Placement("cpu", tuple(range(40)))


@pytest.mark.parametrize(
    ("shape", "placement", "sbp", "words", "parts"),
    [
        ((5, 4), TWO, (S(0),), "split along axis 0", ["[3, 4]48 bytes", "[2, 4]32 bytes"]),
        ((4, 4), TWO, (B,), "broadcast: a copy on each rank", ["[4, 4]64 bytes"] * 2),
        ((4,), TWO, (P,), "partial: the tensor is the sum of all ranks", ["[4]16 bytes"] * 2),
        ((4,), TWO, (Partial(Reduction.MAX),), "partial: the tensor is the max of all ranks", ["[4]16 bytes"] * 2),
        ((4, 6), MESH, (S(0), S(1)), "split along axis 0, then split along axis 1", ["[2, 3]24 bytes"] * 4),
        ((1,), TWO, (S(0),), "split along axis 0", ["[1]4 bytes", "[0]0 bytes"]),
        ((), TWO, (B,), "broadcast", ["[]4 bytes"] * 2),
        ((40,), MANY, (S(0),), "split along axis 0", ["[1]4 bytes"] * 16),
    ],
)
def test_a_drawing_shows_the_part_of_each_rank(
    shape: tuple[int, ...], placement: Placement, sbp: tuple[Sbp, ...], words: str, parts: list[str]
) -> None:
    html = layout_html(TensorType(shape, float32), Layout(placement, sbp), "a < b & c")
    root = ElementTree.fromstring(html.replace("<br>", ""))
    text = "".join(root.itertext())
    assert text.startswith("a < b & cfloat32[") and words in text and len(html) < 8_000
    for rank, part in enumerate(parts):
        assert f"rank {rank}{part}" in text
    assert ("and 24 more ranks" in text) == (placement is MANY) and f"rank {len(parts)}" not in text
    assert len(root.findall(".//svg[@role]")) == len(parts)
    assert bool(root.findall(".//path")) == any(isinstance(each, Partial) for each in sbp)


def test_global_tensors_and_variables_are_drawn(fresh: None) -> None:
    x: Any = flow.ones((2, 3), placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0))
    html = x._repr_html_()
    assert html is not None and "split along axis 0" in html and "placement=jobflow.placement(" in html
    local: Any = flow.ones((2, 3))
    assert local._repr_html_() is None and "<" not in repr(x)
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def job(rows: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        return flow.layers.dense(rows, 4, kernel_initializer=flow.ones_initializer(), model_distribute=flow.distribute.split(0), name="fc")

    text = flow.get_all_variables()["fc-weight"]._repr_html_()
    assert text.count("[2, 6]<br>48 bytes") == 2 and text.count("<svg width") == 2
