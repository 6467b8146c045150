"""The commands of docs/cluster.md run on two nodes, in the order of the page, with the output that the page shows."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from nodes import PORT, Nodes, two_nodes
from pages import DOCS, FENCE, ON_NODES, ROOT, saved

pytestmark = pytest.mark.mpi

PAGE = (DOCS / ON_NODES).read_text(encoding="utf-8")
#: stands for Slurm's command of this name: starts the command on each node
SRUN = """\
#!/bin/sh
export SLURM_STEP_NUM_TASKS=2
for node in 1 0; do
    SLURM_NODEID=$node SLURM_PROCID=$node {folder}/on {pid}-node$node sh -c 'cd "$0" && exec "$@"' "$PWD" "$@" & jobs="$jobs $!"
done
code=0
for job in $jobs; do wait $job || code=$?; done
exit $code
"""
SCONTROL = "#!/bin/sh\nprintf 'node0\\nnode1\\n'\n"
SLURM = {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[0-1]"}


def scripts() -> list[list[tuple[int, str]]]:
    """Return the blocks of commands, each with the number of its node; blocks of both nodes that follow each other run together."""
    rounds: list[list[tuple[int, str]]] = []
    for match in FENCE.finditer(PAGE):
        if match[1] != "bash":
            continue
        on = re.match(r"# on node([01])\n", match[2])
        if on is not None and on[1] == "1":
            rounds[-1].append((1, match[2]))
        else:
            rounds.append([(0, match[2])])
    return rounds


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run_round(nodes: Nodes, shared: Path, blocks: list[tuple[int, str]]) -> str:
    """Run the blocks on their nodes at the same time; return their output."""
    nodes.jobs.jobs.clear()
    path = f"{shared.parent / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for number, text in blocks:
        more = SLURM if "#SBATCH" in text else {}
        nodes.start(number, ["bash", "-e", "-c", f"cd {shared}\n{text}"], {"PATH": path, **more})
    ended = nodes.jobs.wait(120)
    assert all(one.code == 0 for one in ended), (blocks, ended)
    return "".join(one.out + one.err for one in ended)


@pytest.mark.full
def test_the_commands_of_the_page_run_on_two_nodes(tmp_path: Path) -> None:
    shared, programs = tmp_path / "shared", tmp_path / "bin"
    shared.mkdir()
    programs.mkdir()
    for name, text in saved(ON_NODES).items():
        (shared / name).write_text(f"{text}logging: {{report: false}}\n")  # drawing it takes longer than the training
    printed = []
    with two_nodes(tmp_path) as nodes:
        write(programs / "srun", SRUN.format(folder=nodes.folder, pid=os.getpid()))
        write(programs / "scontrol", SCONTROL)
        for blocks in scripts():
            if "never" not in blocks[0][1]:
                shutil.rmtree(shared / "runs", ignore_errors=True)
            printed.append(run_round(nodes, shared, blocks))
    trained = [text for text in printed if "done: step 20" in text]
    assert len(trained) == 5 == sum("train run.yaml" in blocks[0][1] for blocks in scripts())
    first = "2 nodes: node0 (ranks 0, 2), node1 (ranks 1, 3); shared memory within a node, MPI messages between nodes"
    assert first in trained[0] and first in " ".join(PAGE.split())
    shape = re.compile(r"[\d.]+|/\S+:")
    shown = next(match[2] for match in FENCE.finditer(PAGE) if match[2].startswith("OK       ranks"))
    table = next(text for text in printed if text.startswith("OK       ranks"))
    assert shape.sub("#", table) == shape.sub("#", shown)


def test_the_symptoms_of_the_page_are_messages() -> None:
    """Compare the table with the sources, word by word up to numbers and omissions; messages of MPI libraries are not among them."""
    table = PAGE.partition("| symptom |")[2].partition("## What is tested")[0]
    symptoms = [text for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for text in re.findall(r"`([^`]+)`", row)]
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "jobflow").rglob("*.py"))
    ours = [text for text in symptoms if not re.search(r"UCX|Destination|control_cb|Connection refused", text)]
    parts = [part.strip() for text in ours for part in re.split(r"\.\.\.|[\d.:,()=]+|node|\branks?\b", text)]
    assert len(symptoms) > 8
    assert [part for part in parts if len(part) > 8 and part not in sources] == []


PORTS = """\
import jobflow as flow
from pathlib import Path
flow.ones(4, placement=flow.placement.all("cpu"), sbp=flow.sbp.broadcast).sum().item()
rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
print(*{int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}, flush=True)
"""


@pytest.mark.full
def test_jobflow_launch_listens_at_the_ports_of_the_page(tmp_path: Path) -> None:
    assert "UCX_TCP_PORT_RANGE=40000-40100" in PAGE
    (tmp_path / "ports.py").write_text(PORTS)
    with two_nodes(tmp_path) as nodes:
        ended = nodes.run("launch", 4, [str(tmp_path / "ports.py")], {"UCX_TCP_PORT_RANGE": "40000-40100"})
    assert all(one.code == 0 for one in ended), ended
    ports = {int(word) for one in ended for line in one.lines for word in line.partition("] ")[2].split()}
    assert ports - set(range(40000, 40101)) <= {PORT} and ports & set(range(40000, 40101)), ended
