"""The vocabulary of S, B and P: cutting, boxes, layouts, and rules in letters."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobflow.core.errors import PlacementError, SbpError
from jobflow.core.layout import (
    MAX,
    MIN,
    SUM,
    B,
    Box,
    Layout,
    Local,
    P,
    Partial,
    Placement,
    Reduction,
    Rule,
    S,
    Sbp,
    Signature,
    cut,
    layout,
    nested_cut,
    whole_box,
)
from jobflow.core.types import TensorType, float32

shapes = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)

# -------------------------------------------------------------------- cutting


def test_the_first_ranks_get_one_more() -> None:
    assert cut(7, 3) == ((0, 3), (3, 5), (5, 7))
    assert cut(2, 3) == ((0, 1), (1, 2), (2, 2))
    assert cut(0, 2) == ((0, 0), (0, 0))


@given(st.integers(0, 100), st.integers(1, 12))
def test_pieces_follow_each_other_and_are_balanced(size: int, n: int) -> None:
    pieces = cut(size, n)
    lengths = [stop - start for start, stop in pieces]
    assert [pieces[0][0], pieces[-1][1], len(pieces)] == [0, size, n]
    assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:], strict=False))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


def test_pieces_are_cut_again() -> None:
    assert nested_cut(5, (2, 2)) == ((0, 2), (2, 3), (3, 4), (4, 5))
    assert nested_cut(6, (2, 2)) == ((0, 2), (2, 3), (3, 5), (5, 6)) != cut(6, 4)
    assert nested_cut(1, (2, 3)) == ((0, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1))
    assert nested_cut(7, (3,)) == cut(7, 3) and nested_cut(7, ()) == ((0, 7),)


# -------------------------------------------------------------------- boxes


def spans(size: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda pair: (min(pair), max(pair)))


boxes = st.tuples(spans(6), spans(4)).map(lambda pair: Box(pair, (6, 4)))


def marked(box: Box) -> Any:
    marks = np.zeros(box.whole, bool)
    marks[box.slices] = True
    return marks


@given(boxes, boxes)
def test_what_two_boxes_both_hold(a: Box, b: Box) -> None:
    met = a.meet(b)
    np.testing.assert_array_equal(marked(met), marked(a) & marked(b))
    assert met.is_empty == (not marked(met).any())
    assert a.meet(b).shape == b.meet(a).shape or met.is_empty


@given(boxes, boxes)
def test_a_box_within_another(a: Box, b: Box) -> None:
    whole, met = np.arange(24).reshape(6, 4), a.meet(b)
    if not met.is_empty:
        np.testing.assert_array_equal(whole[a.slices][met.within(a)], whole[met.slices])


def test_the_whole_box() -> None:
    box = whole_box((3, 0))
    assert (box.is_whole, box.is_empty, box.shape, box.start) == (True, True, (3, 0), (0, 0))
    assert (whole_box(()).is_whole, whole_box(()).is_empty, whole_box(()).slices) == (True, False, ())


# -------------------------------------------------------------------- placements


def test_placements_print_as_written() -> None:
    printed = [str(Placement("gpu", ranks)) for ranks in [(0,), (0, 1, 2), (1, 3), (2, 1)]]
    assert printed == ["gpu[0]", "gpu[0-2]", "gpu[1,3]", "gpu[2,1]"]
    assert str(Placement("cpu", (0, 1, 2, 3), (2, 2))) == "cpu[0-3:2x2]"


def test_a_rank_twice() -> None:
    with pytest.raises(PlacementError, match=r"^placement cpu\[0, 1, 0\] contains a rank twice; list each rank once$"):
        Placement("cpu", (0, 1, 0))


def test_a_mesh_that_the_ranks_do_not_fill() -> None:
    with pytest.raises(PlacementError, match=r"^placement cpu\[0, 1, 2\]: 3 ranks do not fill a mesh of \(2, 2\)$"):
        Placement("cpu", (0, 1, 2), (2, 2))


def test_where_a_rank_stands() -> None:
    mesh = Placement("cpu", (4, 5, 6, 7, 8, 9), (2, 3))
    assert [mesh.coordinates(rank) for rank in (4, 6, 7, 9)] == [(0, 0), (0, 2), (1, 0), (1, 2)]


def test_groups_along_mesh_dimensions() -> None:
    mesh = Placement("cpu", (4, 5, 6, 7, 8, 9), (2, 3))
    assert mesh.along([0]) == ((4, 7), (5, 8), (6, 9))
    assert mesh.along([1]) == ((4, 5, 6), (7, 8, 9))
    assert mesh.along([0, 1]) == ((4, 5, 6, 7, 8, 9),)
    assert mesh.along([]) == ((4,), (5,), (6,), (7,), (8,), (9,))


# -------------------------------------------------------------------- layouts


def on(n: int) -> Placement:
    return Placement("cpu", tuple(range(n)))


def test_a_layout_has_one_sbp_per_mesh_dimension() -> None:
    with pytest.raises(SbpError, match=r"^layout of cpu\[0-1\]: 2 S/B/P for a mesh of 1 dimensions; pass one per dimension$"):
        Layout(on(2), (B, B))
    assert str(layout(Placement("cpu", (0, 1, 2, 3), (2, 2)), S(0))) == "cpu[0-3:2x2]:S(0),S(0)"


def test_layouts_print() -> None:
    assert [str(Layout(on(2), (sbp,))) for sbp in (B, P, Partial(MAX), S(1))] == [
        "cpu[0-1]:B", "cpu[0-1]:P", "cpu[0-1]:P(max)", "cpu[0-1]:S(1)",
    ]  # fmt: skip
    assert str(Local(on(2))) == "cpu[0-1]:local"


def test_nested_cuts_are_cut_again() -> None:
    """5 rows over 2 x 2: 3 and 2, then 2, 1 and 1, 1."""
    nested = Layout(Placement("cpu", (0, 1, 2, 3), (2, 2)), (S(0), S(0)))
    assert [nested.box((5,), rank).spans for rank in range(4)] == [((0, 2),), ((2, 3),), ((3, 4),), ((4, 5),)]
    crossed = Layout(nested.placement, (S(1), S(0)))
    assert crossed.box((3, 5), 3).spans == ((2, 3), (3, 5))


def test_partial_and_broadcast_hold_all() -> None:
    for sbp in (B, P, Partial(MIN)):
        assert Layout(on(3), (sbp,)).box((4, 5), 2).is_whole
    assert (Layout(on(2), (P,)).is_partial, Layout(on(2), (B,)).is_whole, Layout(on(2), (S(0),)).is_whole) == (True, True, False)


def test_local_types() -> None:
    type = TensorType((5, 2), float32)
    assert [str(Layout(on(3), (S(0),)).local_type(type, rank)) for rank in range(3)] == ["float32[2,2]", "float32[2,2]", "float32[1,2]"]


meshes = st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (3, 2), (2, 1, 2), (2, 2, 2)])


@given(st.data(), shapes, meshes)
def test_shards_put_together_are_the_whole(data: st.DataObject, shape: tuple[int, ...], mesh: tuple[int, ...]) -> None:
    kinds: list[Sbp] = [B, P, Partial(MAX), Partial(MIN), *(S(axis) for axis in range(len(shape)))]
    n = int(np.prod(mesh))
    lies = Layout(Placement("cpu", tuple(range(10, 10 + n)), mesh), tuple(data.draw(st.sampled_from(kinds)) for _ in mesh))
    array = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    shards = lies.shards(array)
    for rank, shard in zip(lies.placement.ranks, shards, strict=True):
        assert shard.shape == lies.box(shape, rank).shape
    np.testing.assert_array_equal(lies.assemble(shards, TensorType(shape, float32)), array)


@pytest.mark.parametrize("reduce", [SUM, MAX, MIN])
def test_addends_are_reduced(reduce: Reduction) -> None:
    parts = [np.array([1.0, 5.0], np.float32), np.array([4.0, -2.0], np.float32), np.array([0.0, 3.0], np.float32)]
    whole = Layout(on(3), (Partial(reduce),)).assemble(parts, TensorType((2,), float32))
    np.testing.assert_array_equal(whole, {SUM: [5, 6], MAX: [4, 5], MIN: [0, -2]}[reduce])


def test_the_innermost_mesh_dimension_is_reduced_first() -> None:
    """A sum of maxima is not the maximum of sums."""
    mesh, type = Placement("cpu", (0, 1, 2, 3), (2, 2)), TensorType((1,), float32)
    parts = [np.array([value], np.float32) for value in (1, 5, 3, -2)]
    assert Layout(mesh, (P, Partial(MAX))).assemble(parts, type) == 5 + 3
    assert Layout(mesh, (Partial(MAX), P)).assemble(parts, type) == max(1 + 5, 3 - 2)
    assert Layout(mesh, (Partial(MIN), Partial(MAX))).assemble(parts, type) == min(5, 3)


def test_addends_of_pieces_are_put_together() -> None:
    """Of three columns the first rank of each row has two; copies count once."""
    mesh, type = Placement("cpu", (0, 1, 2, 3, 4, 5, 6, 7), (2, 2, 2)), TensorType((1, 3), float32)
    lies = Layout(mesh, (P, S(1), B))
    parts = [np.full(box.shape, 10.0**rank, np.float32) for rank, box in lies.boxes(type.shape).items()]
    np.testing.assert_array_equal(lies.assemble(parts, type), [[10001, 10001, 1000100]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64])
@pytest.mark.parametrize("reduce", [SUM, MAX, MIN])
def test_the_identity_changes_nothing(reduce: Reduction, dtype: Any) -> None:
    values = np.array([-100, 0, 100], dtype)
    np.testing.assert_array_equal(reduce.ufunc(values, np.full(3, reduce.identity(dtype), dtype)), values)


def test_of_truths_the_highest_is_true() -> None:
    assert (MAX.identity(np.bool_), MIN.identity(np.bool_), SUM.identity(np.bool_)) == (False, True, 0)


def test_assembling_does_not_share_memory() -> None:
    shard = np.zeros(3, np.float32)
    whole = Layout(on(2), (B,)).assemble([shard, shard], TensorType((3,), float32))
    assert not np.shares_memory(whole, shard)


# -------------------------------------------------------------------- rules


def signatures(rule: Rule) -> list[str]:
    return [str(signature) for signature in rule.signatures()]


def test_letters_say_which_axes_move_together() -> None:
    assert signatures(Rule("mk,kn->mn", linear=((0,), (1,)))) == [
        "S(0) B -> S(0)",
        "S(1) S(0) -> P",
        "B S(1) -> S(1)",
        "P B -> P",
        "B P -> P",
        "B B -> B",
    ]


def test_capitals_stay_whole() -> None:
    assert signatures(Rule("nC->n")) == ["S(0) -> S(0)", "B -> B"]
    assert signatures(Rule("A1->A")) == ["B -> B"]


def test_a_lost_letter_is_reduced() -> None:
    assert signatures(Rule("ab->a", reduce=MAX)) == ["S(0) -> S(0)", "S(1) -> P(max)", "B -> B"]
    assert signatures(Rule("ab->", linear=((0,),))) == ["S(0) -> P", "S(1) -> P", "P -> P", "B -> B"]


def test_an_index_of_the_output_alone_is_broadcast() -> None:
    assert signatures(Rule("a->ab")) == ["S(0) -> S(0)", "B -> B"]


def test_sources_may_be_split() -> None:
    assert signatures(Rule("->ab")) == [" -> S(0)", " -> S(1)", " -> B"]


def test_several_outputs() -> None:
    assert signatures(Rule("nc,n->n,nc")) == ["S(0) S(0) -> S(0) S(0)", "S(1) B -> P S(1)", "B B -> B B"]


def test_jointly_linear_inputs() -> None:
    assert signatures(Rule("a,a->a", linear=((0, 1),)))[1] == "P P -> P"


def test_what_letters_cannot_say() -> None:
    merged = Signature((S(1),), (S(0),), divides=4)
    assert signatures(Rule("AB->C", also=(merged,))) == ["S(1) -> S(0) (n divides 4)", "B -> B"]
    assert [merged.legal(n) for n in (1, 2, 3, 4, 8)] == [True, True, False, True, False]
    assert Signature((B,), (B,)).legal(7), "0 is any number"


def test_an_op_that_no_rank_does_alone() -> None:
    assert signatures(Rule("ab->ab", whole=False)) == ["S(0) -> S(0)", "S(1) -> S(1)"]


def test_signatures_are_listed_once() -> None:
    assert signatures(Rule("a->a", also=(Signature((B,), (B,)), Signature((S(0),), (S(0),))))) == ["S(0) -> S(0)", "B -> B"]


def test_layouts_are_values() -> None:
    for value in (Layout(on(2), (S(1),)), Local(on(3)), Rule("ab->a"), whole_box((2, 3))):
        assert pickle.loads(pickle.dumps(value)) == value
        assert hash(value) == hash(pickle.loads(pickle.dumps(value)))
