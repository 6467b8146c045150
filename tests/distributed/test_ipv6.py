"""Ranks on a machine whose only address is ::1, in a network namespace."""

from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys

import processes
import pytest

PROGRAM = """\
import os
import jobflow as flow
devices = flow.placement("cpu", ranks=[0, 1])
total = flow.tensor([1.0, 2.0], placement=devices, sbp=flow.sbp.split(0)).sum()
print(os.environ["MASTER_ADDR"], total.numpy())
"""
ONLY_IPV6 = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && "
PROBE = "import socket; socket.create_server(('::1', 0), family=socket.AF_INET6)"


def isolated(command: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a shell command where the loopback interface has no IPv4 address."""
    words = ["unshare", "-Urn", "sh", "-c", ONLY_IPV6 + command]
    return subprocess.run(words, env=processes.clean({}), capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        probe = isolated(f"{sys.executable} -c {shlex.quote(PROBE)}")
    except FileNotFoundError:
        pytest.skip("no command unshare")
    if probe.returncode != 0:
        pytest.skip(f"network namespaces with IPv6 are not permitted here: {probe.stderr.strip()}")


def by_hand(address: str, file: str) -> str:
    ranks = [f"MASTER_ADDR='{address}' MASTER_PORT=17789 WORLD_SIZE=2 RANK={r} LOCAL_RANK={r} {sys.executable} {file}" for r in range(2)]
    return f"({ranks[0]} & {ranks[1]}; wait)"


@pytest.mark.parametrize("address", ["", "::1", "[::1]"])
def test_ranks_connect_over_ipv6(tmp_path: pathlib.Path, address: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    launch = f"{shlex.join(processes.LAUNCH)} --nproc_per_node 2 {file}"
    ended = isolated(by_hand(address, str(file)) if address else launch)
    shown = [line.partition("] ")[2] if not address else line for line in ended.stdout.splitlines()]
    assert (ended.returncode, shown) == (0, [f"{address or '::1'} 3.0"] * 2), ended
