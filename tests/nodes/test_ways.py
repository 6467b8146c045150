"""One training on two nodes, started in three ways, has the losses of one process; only ranks of one node share memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nodes import CONFIG, WAYS, Nodes, losses, training, two_nodes

from jobflow.trainer import train
from jobflow.trainer.config import load

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parent / "programs" / "roads.py"
MIB = 1 << 20
#: the node of each of four ranks: mpiexec deals the ranks out, the others fill one node first
PLACES = {"mpiexec": [0, 1, 0, 1], "launch": [0, 0, 1, 1], "by hand": [0, 0, 1, 1]}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Return the losses of the training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "run.yaml").write_text(CONFIG)
    return list(train(load(str(folder / "run.yaml"), settings=[f"output={folder}", "logging.progress=none"])).history["train/loss"])


def check_roads(nodes: Nodes, way: str, places: list[int], limit: float = 60.0) -> None:
    """Start a rank on each of the places; check that ranks of one node share memory, and that only messages connect the nodes."""
    ended = nodes.run(way, len(places), [str(PROGRAM)], limit=limit)
    assert all((one.code, one.err) == (0, "") for one in ended), ended
    rows = sorted((json.loads(line[line.index("{") :]) for one in ended for line in one.out.splitlines()), key=lambda row: row["rank"])
    assert [row["near"] for row in rows] == [[rank for rank, other in enumerate(places) if other == node] for node in places]
    for row in rows:
        assert row["within"] < MIB < row["between"], "only the all-reduce of all ranks uses the cable"
        for other in rows[: row["rank"]]:
            common = set(row["files"]) & set(other["files"])
            assert bool(common) == (places[row["rank"]] == places[other["rank"]]), (row, other)


def test_ranks_of_one_node_share_memory_and_others_send_messages(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        check_roads(nodes, "by hand", [0, 1])


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_only_ranks_of_one_node_share_memory(way: str, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        check_roads(nodes, way, PLACES[way])


@pytest.mark.full
@pytest.mark.parametrize("way", ["launch", "by hand"])
def test_nodes_with_one_host_name_do_not_share_memory(way: str, tmp_path: Path) -> None:
    """Containers may have one host name; the boot, /dev/shm and the process ids are common to both nodes in any case."""
    with two_nodes(tmp_path, host="container") as nodes:
        check_roads(nodes, way, PLACES[way])


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_a_training_on_two_nodes_has_the_losses_of_one_process(way: str, tmp_path: Path, alone: list[float]) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    with two_nodes(tmp_path) as nodes:
        ended = nodes.run(way, 4, training(tmp_path / "run.yaml", f"output={tmp_path / 'two'}"))
    assert all(one.code == 0 for one in ended), ended
    out = "".join(one.out for one in ended)
    ranks = ("ranks 0, 2", "ranks 1, 3") if way == "mpiexec" else ("ranks 0, 1", "ranks 2, 3")
    assert f"2 nodes: node0 ({ranks[0]}), node1 ({ranks[1]}); shared memory within a node, MPI messages between nodes" in out
    assert losses(tmp_path / "two") == pytest.approx(alone, rel=1e-5)
