"""Two nodes on one machine: network namespaces that are joined by a virtual cable, each with a host name and a local directory.

Traffic of the nodes never leaves them.  Processes, /tmp and /dev/shm are common to both, as the boot of the machine is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from processes import LAUNCH, MPIEXEC, ROOT, Crowd, Exited, crowd

#: prefix of the names of namespaces, before the process id of the tests and the number of the node
PREFIX = "jobflow-test-"
PORT = 7788
#: the network interface of every node
CABLE = "eth0"
SECRET = "a secret of the tests, which is long enough"
#: enters a node: on NODE COMMAND ARGUMENT ...; the node-local directory is {local} on every node, where its programs start
ON = """\
#!/bin/sh
node=$1; shift
exec ip netns exec {prefix}$node unshare --uts $(cat {folder}/${{node#*-}}/unshare) sh -c '
hostname ${{NODE_NAME:-$0}} && mount --bind {folder}/hosts /etc/hosts && mount --bind {folder}/$0 {local} && cd {local} && exec "$@"
' ${{node#*-}} "$@"
"""
#: takes the place of ssh: the options, the node, and the words of a shell command
SSH = """\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
node=$1; shift
exec {folder}/on {pid}-$node sh -c "$*"
"""


def ip(*words: str) -> None:
    """Run the command `ip`; raise CalledProcessError with its output if it fails."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@cache
def forbidden() -> str:
    """Return the reason that this machine permits no network namespaces; "" if it does."""
    missing = [tool for tool in ("ip", "unshare", "mount") if shutil.which(tool) is None]
    if missing or not sys.platform.startswith("linux"):
        return f"network namespaces need Linux and {', '.join(missing) or 'its tools'}"
    _remove_abandoned()
    name = f"{PREFIX}{os.getpid()}-probe"
    try:
        ip("netns", "add", name)
        trial = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", "hostname probe && mount --bind /etc/hosts /etc/hosts"]
        done = subprocess.run(trial, capture_output=True, text=True)
        ip("netns", "delete", name)
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted: {error.stderr.strip()}"
    return f"namespaces of host names are not permitted: {done.stderr.strip()}" if done.returncode else ""


def _remove_abandoned() -> None:
    """Delete the namespaces of tests that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX)):
        if not Path("/proc", name.removeprefix(PREFIX).partition("-")[0]).exists():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@dataclass(frozen=True)
class Node:
    """A node: its host name, its address, and its local directory, which only its processes see at `Nodes.local`."""

    number: int
    folder: Path

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        return f"10.77.31.{self.number + 1}"

    def options(self, text: str) -> None:
        """Set further options of the command `unshare` for all processes that start on this node from now on."""
        (self.folder / "unshare").write_text(text)

    @property
    def packages(self) -> Path:
        """The first folder in which Python looks for modules on this node."""
        return self.folder / "packages"

    @property
    def namespace(self) -> str:
        return f"{PREFIX}{os.getpid()}-{self.name}"


def _await_cable(node: Node) -> None:
    """Wait until the cable of a node works in both directions."""
    deadline = time.monotonic() + 5
    while " UP " not in subprocess.run(["ip", "-n", node.namespace, "-br", "link"], capture_output=True, text=True).stdout:
        assert time.monotonic() < deadline, f"the cable of {node.name} is down"
        time.sleep(0.01)


class Nodes:
    """Two nodes, and the processes that tests start there."""

    def __init__(self, folder: Path, jobs: Crowd, host: str = "") -> None:
        self.folder, self.jobs = folder, jobs
        self.nodes = [Node(number, folder / f"node{number}") for number in range(2)]
        #: the path of the node-local directory, the same on all nodes
        self.local = folder / "local"
        self._common = {"NODE_NAME": host, "PYTHONPATH": f"{self.local / 'packages'}:{ROOT}"}
        self.on_script, self.ssh_script = folder / "on", folder / "ssh"

    def begin(self) -> None:
        """Create the namespaces, the cable and the scripts."""
        self.local.mkdir(parents=True)
        for node in self.nodes:
            node.packages.mkdir(parents=True)
            node.options("")
        hosts = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in self.nodes)]
        (self.folder / "hosts").write_text("\n".join([*hosts, ""]))
        values = {"prefix": PREFIX, "folder": self.folder, "local": self.local, "pid": os.getpid()}
        for path, text in ((self.on_script, ON), (self.ssh_script, SSH)):
            path.write_text(text.format(**values))
            path.chmod(0o755)
        first, second = self.nodes
        for node in self.nodes:
            ip("netns", "add", node.namespace)
        ip("link", "add", CABLE, "netns", first.namespace, "type", "veth", "peer", "name", CABLE, "netns", second.namespace)
        for node in self.nodes:
            ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", CABLE)
            ip("-n", node.namespace, "link", "set", "lo", "up")
            self.link(node.number, "up")
        for node in self.nodes:
            _await_cable(node)

    def end(self) -> None:
        """Delete the namespaces, and with the first one the cable."""
        for node in self.nodes:
            subprocess.run(["ip", "netns", "delete", node.namespace], capture_output=True)

    def link(self, number: int, state: str) -> None:
        """Set the cable of a node "up" or "down"."""
        node = self.nodes[number]
        ip("-n", node.namespace, "link", "set", CABLE, state)

    def pids(self, number: int) -> list[int]:
        """Return the processes of a node."""
        listed = subprocess.run(["ip", "netns", "pids", self.nodes[number].namespace], capture_output=True, text=True).stdout
        return [int(word) for word in listed.split()]

    def on(self, number: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on a node."""
        return [str(self.on_script), f"{os.getpid()}-{self.nodes[number].name}", *command]

    def start(self, number: int, command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command on a node."""
        return self.jobs.start(self.on(number, command), {"HYDRA_LAUNCHER_EXEC": str(self.ssh_script), **self._common, **(environment or {})})

    # ---------------------------------------------------------------- the ways to start ranks

    def mpiexec(self, ranks: int, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a Python program by mpiexec with a list of hosts."""
        hosts = ",".join(node.name for node in self.nodes)
        self.start(0, [MPIEXEC, "-hosts", hosts, "-n", str(ranks), sys.executable, *words], environment)

    def launch(self, ranks: int, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a Python program by one launcher on each node; node 1 begins."""
        common = ["--nnodes", "2", "--nproc_per_node", str(ranks // 2), "--master_addr", self.nodes[0].address, "--master_port", str(PORT)]
        for number in (1, 0):
            command = [*LAUNCH, *common, "--node_rank", str(number), *words]
            self.start(number, command, {"JOBFLOW_SECRET": SECRET, **(environment or {})})

    def by_hand(self, ranks: int, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a Python program as one process per rank; the first half of the ranks is on node 0."""
        common = {"MASTER_ADDR": self.nodes[0].address, "MASTER_PORT": str(PORT), "WORLD_SIZE": str(ranks), "JOBFLOW_SECRET": SECRET}
        for rank in range(ranks):
            self.start(2 * rank // ranks, [sys.executable, *words], {**common, "RANK": str(rank), **(environment or {})})

    def run(self, way: str, ranks: int, words: Sequence[str], environment: Mapping[str, str] | None = None, limit: float = 90.0) -> list[Exited]:
        """Start a Python program in one of the three ways, and wait until all of its processes have ended."""
        self.starts(way)(ranks, words, environment)
        return self.jobs.wait(limit)

    def starts(self, way: str) -> Callable[..., None]:
        """Return the method that starts programs in one of the three ways."""
        return {"mpiexec": self.mpiexec, "launch": self.launch, "by hand": self.by_hand}[way]


WAYS = ["mpiexec", "launch", "by hand"]
#: a training that saves checkpoints
CONFIG = """\
model: {layers: [flatten, {dense: {units: 16, activation: relu}}, {dense: {units: 10}}], loss: cross_entropy}
data: {train: {reader: digits, split: train}, batch_size: 40}
optimizer: {name: adam, lr: 0.001}
training: {steps: 6}
checkpoint: {every_steps: 3}
logging: {report: false, progress: plain, every_steps: 1}
"""


def training(config: Path, *settings: str) -> list[str]:
    """Return the words of Python that train a configuration with these settings."""
    return ["-m", "jobflow", "train", str(config), *(word for setting in settings for word in ("--set", setting))]


def losses(folder: Path) -> list[float]:
    """Return the losses in the metrics file of a run, in the order of the steps."""
    head, *rows = (row.split(",") for row in (folder / "metrics.csv").read_text().splitlines())
    values = {int(row[head.index("step")]): float(row[head.index("train/loss")]) for row in rows if row[head.index("train/loss")]}
    return [values[step] for step in sorted(values)]


@contextmanager
def two_nodes(folder: Path, host: str = "") -> Iterator[Nodes]:
    """Yield two nodes, with one host name if `host` is set; afterwards end their processes and delete them.

    Skip the test where namespaces are not permitted.
    """
    if reason := forbidden():
        pytest.skip(reason)
    with crowd() as jobs:
        nodes = Nodes(folder / "nodes", jobs, host)
        try:
            nodes.begin()
            yield nodes
        finally:
            nodes.end()
