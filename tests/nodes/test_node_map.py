"""Descriptions of the nodes of ranks, for messages and for MPI libraries."""

from __future__ import annotations

import pytest

from jobflow.runtime.world.node_map import NodeMap
from jobflow.runtime.world.service.pmi import VALUE, mapping


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([0, 0], "(vector,(0,1,2))"),
        ([0, 0, 1, 1], "(vector,(0,2,2))"),
        ([0, 1, 0, 1], "(vector,(0,2,1))"),
        ([0, 0, 1], "(vector,(0,1,2),(1,1,1))"),
        ([0, 1, 1, 0], "(vector,(0,1,1),(1,1,2),(0,1,1))"),
        ([*range(500)] * 2, "(vector,(0,500,1))"),
    ],
)
def test_a_mapping_is_read_as_the_nodes_of_the_ranks(nodes: list[int], text: str) -> None:
    assert mapping(nodes) == text
    blocks = [tuple(map(int, block.split(","))) for block in text[len("(vector,(") : -2].split("),(")]
    once = [first + i for first, many, ranks in blocks for i in range(many) for _ in range(ranks)]
    assert (once * len(nodes))[: len(nodes)] == nodes


def test_a_mapping_that_is_too_long_is_empty() -> None:
    nodes = [i * i % 211 for i in range(300)]
    assert mapping(nodes) == "" and len(str(nodes)) > VALUE


def test_messages_name_hosts_on_several_nodes_only() -> None:
    two = NodeMap(["a", "a", "b"], [0, 0, 2])
    assert (two.count, two.rank_text(2), two.node_text(1)) == (2, "rank 2 on b", "a (ranks 0, 1)")
    assert two.text() == "2 nodes: a (ranks 0, 1), b (rank 2); shared memory within a node, MPI messages between nodes"
    one = NodeMap.of_one(3)
    assert (one.count, one.rank_text(2), one.text(), one.ranks_of(1)) == (1, "rank 2", "", [0, 1, 2])
