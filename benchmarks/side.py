"""The parent's handle on a worker, and what the system says about it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker import PREFIX

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
TICK = os.sysconf("SC_CLK_TCK")


def own_cores(selected: Sequence[int] | None, ranks: int) -> list[int]:
    """Return a core for each rank: the selected ones, or the last ones that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    cores = usable[-ranks:] if selected is None else list(selected)
    if len(cores) < ranks or not {*cores} <= {*usable}:
        raise SystemExit(f"{ranks} rank(s) need as many of the cores that this process may use: {usable}, not {cores}")
    return cores


@dataclass
class Side:
    """A named competitor: one process per rank, or one mpiexec that starts them; kept on `cores`."""

    name: str
    commands: Sequence[Sequence[str]]
    cores: Sequence[int]
    environment: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self) -> None:
        for index, command in enumerate(self.commands):
            own = {self.cores[index]} if len(self.commands) > 1 else set(self.cores)
            self.processes.append(self._launch(command, own))

    def _launch(self, command: Sequence[str], cores: set[int]) -> subprocess.Popen[str]:
        environment = os.environ | ONE_THREAD | self.environment
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # inherited by the child
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        finally:
            os.sched_setaffinity(0, before)

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send the order to all ranks and return what the first one answers."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        first = self.processes[0].stdout
        assert first is not None
        for line in first:
            if line.startswith(PREFIX):
                return dict(json.loads(line[len(PREFIX) :]))
        raise RuntimeError(f"{self.name}: {' '.join(self.commands[0])} ended before it answered (exit code {self.processes[0].wait()})")

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                assert process.stdin is not None
                process.stdin.write('{"do": "stop"}\n')
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pids(self) -> list[int]:
        """The started processes and everything they started."""
        process_ids = [process.pid for process in self.processes]
        for pid in process_ids:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            process_ids += [int(child) for child in children.read_text().split()] if children.exists() else []
        return process_ids

    def peak_mib(self) -> float:
        """Most resident memory of the largest process of this side, in MiB."""
        peaks = [0.0]
        for pid in self.pids():
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")]
        return max(peaks)

    def cpu_seconds(self) -> float:
        """Processor time used so far by all processes of this side."""
        ticks = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICK


def busy_seconds(cores: Sequence[int]) -> float:
    """Return the processor time that all processes have used on these cores."""
    names_of_cores = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name in names_of_cores:
            user, nice, system, _idle, _wait, irq, soft, steal = map(int, values[:8])
            ticks += user + nice + system + irq + soft + steal
    return ticks / TICK
