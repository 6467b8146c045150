"""The nodes of the ranks of a world."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.runtime.comm.waits import listed


@dataclass(frozen=True)
class NodeMap:
    """The node of each rank.  Ranks of one node share memory; ranks of different nodes exchange MPI messages."""

    #: by rank: the name of its host, and the first rank of its node
    hosts: Sequence[str]
    nodes: Sequence[int]

    @classmethod
    def of_one(cls, size: int) -> NodeMap:
        """Return the map of `size` ranks in this process."""
        return cls([""] * size, [0] * size)

    @property
    def count(self) -> int:
        """The number of nodes."""
        return len(set(self.nodes))

    def ranks_of(self, rank: int) -> list[int]:
        """Return the ranks on the node of a rank."""
        return [other for other, node in enumerate(self.nodes) if node == self.nodes[rank]]

    def rank_text(self, rank: int) -> str:
        """Return "rank 2", with several nodes "rank 2 on node1"."""
        return f"rank {rank} on {self.hosts[rank]}" if self.count > 1 else f"rank {rank}"

    def node_text(self, rank: int) -> str:
        """Return the host of a rank with the ranks of its node, such as "node1 (ranks 2, 3)"."""
        return f"{self.hosts[rank]} ({listed(self.ranks_of(rank))})"

    def text(self) -> str:
        """Describe the routes between the ranks of several nodes; return "" for one node."""
        if self.count == 1:
            return ""
        nodes = ", ".join(self.node_text(first) for first in dict.fromkeys(self.nodes))
        return f"{self.count} nodes: {nodes}; shared memory within a node, MPI messages between nodes"
