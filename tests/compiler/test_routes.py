"""The route table, the paths through it, transfers between placements, and the reroutes that boxing inserts."""

from __future__ import annotations

from typing import Any

import pytest
from boxed import change
from hypothesis import given
from hypothesis import strategies as st
from traced import distribute, first, on, plain, trace, type_, variable

from jobflow import scope
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.box import Reroute, box
from jobflow.compiler.layouts.paths import MEETING, path, price
from jobflow.compiler.layouts.shard import shard
from jobflow.compiler.layouts.transfers import BoxTransfer, exchanges, transfers
from jobflow.core.errors import SbpError, SourceLine
from jobflow.core.layout import MAX, B, Box, Layout, Local, P, Partial, Placement, S, Sbp
from jobflow.core.types import TensorType
from jobflow.graph.graph_text import physical_text
from jobflow.graph.ir import Graph
from jobflow.ops.activation import relu, tanh
from jobflow.ops.layout_ops import to_layout
from jobflow.ops.matmul import matmul

# -------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("source", "target", "names", "sent"),
    [
        (B, B, [], 0),
        (B, S(0), ["slice"], 0),
        (B, P, ["keep_first"], 0),
        (S(0), S(0), [], 0),
        (S(0), S(1), ["all_to_all"], 1280 * 3 / 16),
        (S(1), S(0), ["all_to_all"], 1280 * 3 / 16),
        (S(1), B, ["all_gather"], 1280 * 3 / 4),
        (S(0), P, ["pad"], 0),
        (P, B, ["all_reduce"], 1280 * 6 / 4),
        (P, S(1), ["reduce_scatter"], 1280 * 3 / 4),
        (P, P, [], 0),
        (P, Partial(MAX), ["reduce_scatter", "pad"], 1280 * 3 / 4),
        (Partial(MAX), S(0), ["reduce_scatter"], 1280 * 3 / 4),
    ],
    ids=str,
)
def test_every_conversion_has_the_expected_route_and_bytes(source: Sbp, target: Sbp, names: list[str], sent: float) -> None:
    """Redistribute 1280 bytes on 4 ranks; compare the routes and the bytes that each rank sends."""
    assert way(Layout(first(4), (source,)), Layout(first(4), (target,)), type_(20, 16)) == (names, sent)


def way(source: Layout, target: Layout, type: TensorType) -> tuple[list[str], int]:
    """Return the names of the hops from `source` to `target`, and the bytes that the busiest rank sends in them."""
    total, here, hops = 0, source, path(source, target, type)
    for hop in hops:
        total += Reroute(here, hop.target, hop.name).bytes_per_rank(type)
        here = hop.target
    assert here == target
    return [hop.name for hop in hops], total


def test_the_path_is_the_cheapest() -> None:
    """Expect the direct route, although all_reduce and slice would also work."""
    assert way(Layout(first(2), (P,)), Layout(first(2), (S(0),)), type_(10, 10))[0] == ["reduce_scatter"]
    assert way(Layout(first(2), (S(0),)), Layout(first(2), (S(1),)), type_(10, 10))[0] == ["all_to_all"]


SQUARE, CUBE = Placement("cpu", (0, 1, 2, 3), (2, 2)), Placement("cpu", tuple(range(8)), (2, 2, 2))


@pytest.mark.parametrize(
    ("source", "target", "names", "sent"),
    [
        ((P, P), (B, B), ["all_reduce"], 2 * 1280 * 3 / 4),
        ((P, B), (B, B), ["all_reduce"], 2 * 1280 / 2),
        ((P, S(1)), (B, S(1)), ["all_reduce"], 2 * 640 / 2),
        ((S(0), S(0)), (B, B), ["all_gather"], 1280 * 3 / 4),
        ((P, P), (S(1), S(1)), ["reduce_scatter"], 1280 * 3 / 4),
        ((S(0), S(0)), (S(1), S(1)), ["all_to_all"], 1280 * 3 / 16),
        ((S(0), S(0)), (S(0), S(1)), ["all_to_all"], 640 / 4),
        ((S(0), S(1)), (S(1), S(0)), ["exchange"], 1280 / 4),
        ((S(0), S(0)), (S(1), S(0)), ["exchange"], 1280 / 4),
        ((B, S(0)), (S(0), S(0)), ["exchange"], 1280 / 4),
        ((B, S(0)), (S(0), B), ["exchange"], 1280 / 2),
        ((B, B), (S(0), S(0)), ["slice"], 0),
        ((B, B), (P, P), ["keep_first"], 0),
        ((P, S(0)), (S(0), P), ["pad", "reduce_scatter"], 1280 / 2),
        ((P, Partial(MAX)), (B, B), ["all_reduce", "all_reduce"], 2 * 1280),
    ],
    ids=str,
)
def test_paths_on_a_2x2_mesh_have_the_expected_routes_and_bytes(
    source: tuple[Sbp, ...], target: tuple[Sbp, ...], names: list[str], sent: float
) -> None:
    """Redistribute 1280 bytes on 2 x 2 ranks; mesh dimensions with equal changes change together."""
    assert way(Layout(SQUARE, source), Layout(SQUARE, target), type_(20, 16)) == (names, sent)


def test_inner_reductions_come_first() -> None:
    """Reduce sums of maxima: the maxima along the inner mesh dimension come first."""
    hops = path(Layout(SQUARE, (P, Partial(MAX))), Layout(SQUARE, (B, B)), type_(20, 16))
    assert [str(hop.target) for hop in hops] == ["cpu[0-3:2x2]:P,B", "cpu[0-3:2x2]:B,B"]
    assert path(Layout(SQUARE, (B, B)), Layout(SQUARE, (P, Partial(MAX))), type_(20, 16))[0].target.sbp == (P, B)


def test_small_tensors_take_fewer_hops() -> None:
    """Send a kilobyte from one rank to two as a whole; of a megabyte, each rank receives half, and they exchange the halves."""
    source, target = Layout(on(0), (B,)), Layout(on(1, 2), (B,))
    assert way(source, target, type_(256))[0] == ["move"]
    assert way(source, target, type_(512, 512))[0] == ["move", "all_gather"]


def test_partial_tensors_are_reduced_before_they_move() -> None:
    stages = Layout(Placement("cpu", (0, 1, 2, 3), (2, 2)), (S(0), P)), Layout(Placement("cpu", (4, 5, 6, 7), (2, 2)), (S(0), P))
    names, sent = way(*stages, type_(512, 512))
    assert (names, sent) == (["reduce_scatter", "move", "pad"], (1 << 20) // 4 + (1 << 20) // 4)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Layout(SQUARE, (S(0), S(0))), Layout(first(4), (S(0),))),
        (Layout(SQUARE, (P, P)), Layout(first(4), (P,))),
        (Layout(CUBE, (P, S(1), S(1))), Layout(Placement("cpu", tuple(range(8)), (2, 4)), (P, S(1)))),
        (Layout(Placement("cpu", (0, 1), (1, 2)), (P, S(0))), Layout(first(2), (S(0),))),
        (Layout(Placement("gpu", (0, 1)), (S(0),)), Layout(first(2), (S(0),))),
        (Layout(on(3), (P,)), Layout(on(3), (S(0),))),
    ],
    ids=str,
)
def test_equivalent_layouts_are_free(source: Layout, target: Layout) -> None:
    assert way(source, target, type_(20, 16)) == (["relabel"], 0)
    assert way(target, source, type_(20, 16)) == (["relabel"], 0)


def test_nested_pieces_are_not_flat_pieces() -> None:
    """Cut 6 rows into 2, 1, 2, 1 on a square, but 2, 2, 1, 1 in a row; rank 2 sends its first row to rank 1."""
    source, target = Layout(SQUARE, (S(0), S(0))), Layout(first(4), (S(0),))
    assert way(source, target, type_(6, 16)) == (["exchange"], 64)
    assert [exchange.ranks for exchange in exchanges(source, target, (6, 16))] == [(0,), (1, 2), (3,)]
    assert Reroute(source, target).sent(type_(6, 16)) == {2: 64}


def test_the_price_is_bytes_plus_synchronizations() -> None:
    assert price(Layout(SQUARE, (P, P)), Layout(SQUARE, (B, B)), type_(20, 16)) == 1920 + MEETING
    assert price(Layout(SQUARE, (P, Partial(MAX))), Layout(SQUARE, (B, B)), type_(20, 16)) == 2560 + 2 * MEETING
    assert price(Layout(SQUARE, (B, B)), Layout(SQUARE, (P, S(0))), type_(20, 16)) == 0


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            Layout(SQUARE, (B, B)),
            Layout(SQUARE, (S(0), S(2))),
            r"has layout cpu\[0-3:2x2\]:B,B but is read as cpu\[0-3:2x2\]:S\(0\),S\(2\): cpu\[0-3:2x2\]:S\(0\),S\(2\) splits axis 2, ",
        ),
        (
            Layout(first(2), (B,)),
            Local(first(2)),
            r"has layout cpu\[0-1\]:B but is read as cpu\[0-1\]:local; convert between the views with to_local",
        ),
    ],
    ids=str,
)
def test_layout_errors_name_op_tensor_and_layouts(source: Layout, target: Any, message: str) -> None:
    _, _, sharded = change(source, target, type_(4, 6), where=SourceLine("model.py", 41))  # type: ignore[arg-type]
    with pytest.raises(SbpError, match=r'^copy at model.py:41 \(layer "y0"\): x0 float32\[4,6\] ' + message):
        box(sharded)


def test_a_missing_axis_raises() -> None:
    with pytest.raises(SbpError, match=r"cpu\[0-1\]:S\(2\) splits axis 2, but a tensor float32\[4,6\] has axes 0 to 1"):
        path(Layout(first(2), (B,)), Layout(first(2), (S(2),)), type_(4, 6))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Layout(first(2), (P,)), Layout(first(2), (Partial(MAX),))),
        (Layout(SQUARE, (P, S(0))), Layout(SQUARE, (B, B))),
        (Layout(first(2), (P,)), Layout(on(2), (B,))),
    ],
    ids=str,
)
def test_a_conversion_of_several_hops_raises_without_a_name(source: Layout, target: Layout) -> None:
    with pytest.raises(SbpError, match=r"takes more than one hop; insert"):
        Reroute(source, target)


# -------------------------------------------------------------------- moves


def boxes(transfer_list: tuple[BoxTransfer, ...]) -> list[str]:
    return [f"{move.source}->{move.target} {move.box.spans}" for move in transfer_list]


def test_transfers_keep_present_data() -> None:
    source, target = Layout(on(0, 1), (S(0),)), Layout(on(1, 2), (S(0),))
    assert boxes(transfers(source, target, (5,))) == ["0->1 ((0, 3),)", "1->2 ((3, 5),)"]
    assert boxes(transfers(Layout(first(2), (B,)), Layout(on(1, 0), (B,)), (5,))) == ["1->1 ((0, 5),)", "0->0 ((0, 5),)"]


def test_holders_of_the_same_part_send_alternately() -> None:
    result = transfers(Layout(on(0, 1), (B,)), Layout(on(2, 3, 4, 5), (S(0),)), (4,))
    assert [move.source for move in result] == [0, 1, 0, 1]


def test_transfers_between_uneven_pieces() -> None:
    result = transfers(Layout(first(2), (S(0),)), Layout(on(2, 3, 4), (S(0),)), (7,))
    assert boxes(result) == ["0->2 ((0, 3),)", "0->3 ((3, 4),)", "1->3 ((4, 5),)", "1->4 ((5, 7),)"]


def test_empty_tensors_do_not_move() -> None:
    assert transfers(Layout(first(2), (S(0),)), Layout(on(2), (B,)), (0, 3)) == ()


layouts = st.builds(
    lambda ranks, sbp: Layout(Placement("cpu", tuple(ranks)), (sbp,)),
    st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True),
    st.sampled_from([B, S(0), S(1)]),
)


@given(layouts, layouts, st.tuples(st.integers(0, 7), st.integers(0, 3)))
def test_transfers_deliver_each_box_once(source: Layout, target: Layout, shape: tuple[int, int]) -> None:
    result = transfers(source, target, shape)
    for rank in target.placement.ranks:
        need = target.box(shape, rank)
        parts = [move.box for move in result if move.target == rank]
        assert sum(_size(part) for part in parts) == _size(need)
        assert all(part.meet(need) == part for part in parts)
        assert all(a is b or a.meet(b).is_empty for a in parts for b in parts)
    for move in result:
        assert move.box.meet(source.box(shape, move.source)) == move.box, "a rank sends what it has"


def _size(part: Box) -> int:
    rows, columns = part.shape
    return rows * columns


# -------------------------------------------------------------------- boxing


def rerouted(graph: Graph) -> list[str]:
    """Return the reroutes of a graph in order: the route, the value, and the line of the reader."""
    physical = box(shard(graph))
    return [f"{node.op}({node.inputs[0].name})" for node in physical.graph.nodes if isinstance(node.op, Reroute)]


def test_a_gradient_is_reduced_only_for_its_update() -> None:
    graph = trace(lambda t: relu(matmul(t.input("x", type_(6, 4)), variable(t, "w", 4, 3))), first(2), train=True)
    assert rerouted(graph) == ["all_reduce[cpu[0-1]:P -> cpu[0-1]:B](matmul_0.matmul_1)"]


def test_a_value_is_redistributed_once_per_layout() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 2, sbp=S(1))
        return matmul(x, w), matmul(x, variable(tracer, "v", 4, 2, sbp=S(1)))

    assert rerouted(trace(body, first(2))) == ["all_gather[cpu[0-1]:S(0) -> cpu[0-1]:B](x)"]


def test_partial_results_are_reduced() -> None:
    graph = trace(lambda t: matmul(t.input("x", type_(4, 6)), t.input("y", type_(4, 6)), transpose_a=True), first(2))
    assert plain(physical_text(distribute(graph))) == (
        "job job on cpu[0-1]\n"
        "  %x: float32[4,6] cpu[0-1]:S(0) = Input(key=x)()\n"
        "  %y: float32[4,6] cpu[0-1]:S(0) = Input(key=y)()\n"
        "  %matmul_0: float32[6,6] cpu[0-1]:P = MatMul(transpose_a=True)(%x, %y)\n"
        "  %matmul_0:B: float32[6,6] cpu[0-1]:B = all_reduce[cpu[0-1]:P -> cpu[0-1]:B](%matmul_0)\n"
        "  return %matmul_0:B\n"
    )


def test_partial_values_are_reduced_before_they_change_placement() -> None:
    def body(tracer: Tracer) -> Any:
        x = matmul(tracer.input("x", type_(4, 6)), tracer.input("y", type_(4, 6)), transpose_a=True)
        with scope.using(placement=on(2)):
            return tanh(x)

    assert rerouted(trace(body, first(2))) == [
        "reduce_scatter[cpu[0-1]:P -> cpu[0-1]:S(0)](matmul_0)",
        "move[cpu[0-1]:S(0) -> cpu[2]:B](matmul_0:S(0))",
    ]


def test_reroutes_have_the_line_of_their_reader() -> None:
    def body(tracer: Tracer) -> Any:
        x = to_layout(relu(tracer.input("x", type_(4, 6))), S(1))
        return x

    (node,) = (node for node in box(shard(trace(body, first(2)))).graph.nodes if isinstance(node.op, Reroute))
    assert str(node.where) == f"test_routes.py:{body.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    ("source", "target", "sent"),
    [
        (Layout(first(2), (S(0),)), Layout(first(2), (B,)), 48),
        (Layout(first(2), (P,)), Layout(first(2), (B,)), 96),
        (Layout(first(2), (S(0),)), Layout(on(2), (B,)), 48),
        (Layout(first(2), (B,)), Layout(on(1), (B,)), 0),
        (Layout(on(0), (B,)), Layout(on(1, 2), (B,)), 192),
    ],
    ids=str,
)
def test_bytes_per_rank_are_those_of_the_busiest_rank(source: Layout, target: Layout, sent: float) -> None:
    """Redistribute a tensor of 96 bytes."""
    assert Reroute(source, target).bytes_per_rank(type_(6, 4)) == sent


def test_an_implicit_change_of_view_raises() -> None:
    def body(tracer: Tracer) -> Any:
        x = relu(tracer.input("x", type_(2), local=True))
        with scope.using(placement=on(1)):
            return tanh(x)

    with pytest.raises(
        SbpError,
        match=r"relu_0 float32\[2\] has layout cpu\[0\]:local but is read as cpu\[1\]:local; convert between the views with to_local or to_global",
    ):
        distribute(trace(body, on(0), view="mirrored"))
