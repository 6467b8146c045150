"""`jobflow doctor`: one run on this machine, and findings for machines with problems."""

from __future__ import annotations

import json
import os
import re
import time
from collections import namedtuple
from pathlib import Path

import pytest

from jobflow.cli import main
from jobflow.cli.health import child, gpu, libraries, machine, ranks
from jobflow.cli.health.child import Answer
from jobflow.cli.health.finding import NOTE, OK, PROBLEM, Finding
from jobflow.core.extras import PACKAGES
from jobflow.distributed import mpiexec
from jobflow.kernels.machine_class import own_class
from jobflow.kernels.object_cache import ObjectCache

ROOT = Path(__file__).parents[2]
Disk = namedtuple("Disk", "f_frsize f_blocks f_bavail")


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


class TestCommand:
    @pytest.mark.mpi
    def test_this_machine(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        code = main(["doctor", "--json"])
        report = json.loads(capsys.readouterr().out)
        findings = {entry["name"]: entry for entry in report["findings"]}
        assert {"Python", "NumPy", "BLAS", "jobflow", "cores", "MPI", "GPU", "disk", "packages"} <= set(findings)
        assert findings["jobflow"]["status"] == OK, findings["jobflow"]["text"]
        assert findings["NumPy"]["status"] == OK and findings["disk"]["status"] in (OK, NOTE)
        assert code == (0 if report["healthy"] else 1) and report["healthy"] == all(e["status"] != PROBLEM for e in report["findings"])
        assert all(e["status"] == OK or e["fix"] or e["command"] for e in report["findings"]), "a note or a problem says what helps"
        assert list(tmp_path.iterdir()) == []

    def test_lines_and_exit_code(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        findings = [Finding("a", OK, "fine"), Finding("b", NOTE, "slow", "", "try this"), Finding("c", PROBLEM, "broken", "do that", "so")]
        monkeypatch.setattr("jobflow.cli.doctor_command.checks", lambda started: (lambda: iter(findings),))
        assert main(["doctor"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "OK       a          fine" and lines[2].strip() == "fix: try this" and lines[-1] == "1 problem, 1 note"

    def test_the_cache_of_compiled_loops(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
        monkeypatch.setenv("JOBFLOW_KERNELS", "llvm")
        for key in "ab":
            ObjectCache().write(key * 64, bytes(1 << 20))
        first, second = libraries.kernels()
        assert first.status == second.status == OK and f"; JOBFLOW_KERNELS=llvm; class of CPU: {own_class()}; LLVM" in first.text
        assert second.text.startswith(f"2 compiled loops, 2.0 of at most 256 MiB in {tmp_path}/loops; ")
        (tmp_path / "loops").chmod(0o777)
        _, second = libraries.kernels()
        assert second.status == NOTE and "is writable by other users" in second.text
        (tmp_path / "loops").chmod(0o700)
        for text in ("2 files", "no files"):
            assert main(["doctor", "--clear-cache"]) == 0
            assert capsys.readouterr().out == f"{text} removed from {tmp_path}/loops\n"

    def test_the_cache_is_not_cleared_under_mpiexec(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PMI_RANK", "0")
        monkeypatch.setenv("PMI_SIZE", "2")
        assert main(["doctor", "--clear-cache"]) == 2
        assert "run it without MPICH" in capsys.readouterr().err


class TestChild:
    def test_a_hanging_launcher_is_ended_with_its_children(self, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        begun = time.monotonic()
        answer = child.ask(["/bin/sh", "-c", f"sleep 600 & echo $! > {note}; wait"], limit=0.3)
        assert answer.failure == "it did not finish within 0.3 s" and time.monotonic() - begun < 5
        pid = int(note.read_text())
        for _ in range(100):
            if not alive(pid):
                break
            time.sleep(0.02)
        assert not alive(pid)

    @pytest.mark.parametrize(
        ("script", "failure"),
        [
            ("echo noise; echo '{\"a\": 1}'", ""),
            ("echo '[rank 0] {\"a\": 1}'", ""),
            ("echo '{\"a\": 1}'; exit 3", "it ended with exit code 3: "),
            ("echo first >&2; echo 'OSError: no' >&2; echo last >&2; exit 1", "it ended with exit code 1: OSError: no"),
            ("kill -9 $$", "it was ended by SIGKILL"),
        ],
    )
    def test_answers(self, script: str, failure: str) -> None:
        answer = child.ask(["/bin/sh", "-c", script])
        assert answer.failure.startswith(failure) and bool(answer.failure) == bool(failure)
        assert (answer.data == {"a": 1}) == (not failure)

    def test_what_is_not_there(self) -> None:
        assert "cannot be started" in child.ask(["/nowhere/mpiexec"]).failure


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class TestRanks:
    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Path:
        mpiexec.flavour.cache_clear()
        return tmp_path / "mpiexec"

    def launcher_script(self, path: Path, script: str) -> str:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def test_it_hangs(self, launcher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mpiexec, "PATIENCE", 0.2)
        monkeypatch.setattr(ranks, "LIMIT", 0.2)
        finding = ranks.started(self.launcher_script(launcher, "exec sleep 600"), "MPICH")
        assert finding.status == PROBLEM and "did not finish within 0.2 s" in finding.text and finding.command.startswith(str(launcher))

    def test_it_is_of_another_kind(self, launcher: Path) -> None:
        finding = ranks.started(self.launcher_script(launcher, "echo 'mpiexec (OpenRTE) 4.1.4'"), "MPICH")
        assert finding.status == PROBLEM and "belongs to Open MPI, but mpi4py uses MPICH" in finding.text

    def test_its_ranks_are_alone(self, launcher: Path) -> None:
        finding = ranks.started(self.launcher_script(launcher, "echo '{\"ranks\": 1}'"), "MPICH")
        assert finding.status == PROBLEM and "in separate worlds" in finding.text

    def test_it_says_why(self, launcher: Path) -> None:
        finding = ranks.started(self.launcher_script(launcher, "echo 'not enough slots' >&2; exit 1"), "Open MPI")
        assert finding.status == PROBLEM and finding.text.endswith("failed: it ended with exit code 1: not enough slots")

    def test_it_refuses_root(self, launcher: Path) -> None:
        output = "mpirun has detected an attempt to run as root.\\nadd the --allow-run-as-root option, or set\\n  OMPI_ALLOW_RUN_AS_ROOT=1\\n-----"
        finding = ranks.started(self.launcher_script(launcher, f"printf '{output}' >&2; exit 1"), "Open MPI")
        assert finding.status == PROBLEM and "root" in finding.text and "--allow-run-as-root" in finding.text
        assert "OMPI_ALLOW_RUN_AS_ROOT=1" in finding.command and "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in finding.command

    @pytest.mark.parametrize(
        ("shared", "status", "words"),
        [(9e9, OK, "shared windows 9.0 GB/s"), (1e8, NOTE, "slow"), (0.0, NOTE, "no shared windows (why)")],
    )
    def test_speeds(self, shared: float, status: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = Answer({"ranks": 2, "latency": 2e-6, "messages": 3e9, "shared": shared, "trouble": "why"})
        monkeypatch.setattr(ranks, "ask", lambda *_, **__: answer)
        finding = ranks.launched("MPICH", True)
        assert finding.status == status and "2 us, messages 3.0 GB/s" in finding.text and words in finding.text

    def test_no_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ranks, "ask", lambda *_, **__: Answer({}, "it ended"))
        finding = only(list(ranks.mpi()))
        assert finding.status == PROBLEM and finding.command == 'pip install "jobflow-sbp[mpi]"'

    @pytest.mark.parametrize(
        ("output", "kind"),
        [
            ("mpiexec (OpenRTE) 4.1.4", "Open MPI"),
            ("mpiexec (Open MPI) 5.0.3", "Open MPI"),
            ("HYDRA build details:\n    Version: 5.0.2", "MPICH"),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.14", "Intel MPI"),
            ("something", ""),
        ],
    )
    def test_kinds(self, output: str, kind: str) -> None:
        assert mpiexec.kind(output) == kind


#: what the probe says of a GPU that works
WELL = {"cupy": "14.2.0", "gpus": [["H100", 80 << 30]], "runtime": "13.0", "driver": "13.1", "trouble": "", "nccl": "2.27.7", "nccl_trouble": ""}
WELL |= {"nvrtc": "13.0", "ipc": "", "cudnn": "9.19.0, frontend 1.23.0", "cudnn_trouble": ""}
WELL |= {"cublaslt": "13.1", "cublaslt_trouble": "", "transport": "NCCL: each rank has its own GPU, NCCL 2.28.9"}


class TestGpu:
    def test_well(self) -> None:
        gpus, nccl, cublaslt, cudnn = gpu.cupy_findings(WELL, 1)
        assert (
            gpus.status == nccl.status == cublaslt.status == cudnn.status == OK
            and cudnn.text == "9.19.0, frontend 1.23.0"
            and cublaslt.text == "13.1"
            and "H100 (80 GiB); CuPy 14.2.0, CUDA 13.0" in gpus.text
            and nccl.text == "2.27.7"
        )

    @pytest.mark.parametrize(
        ("change", "devices", "statuses"),
        [
            ({"trouble": "CompileException: no headers"}, 1, [PROBLEM]),
            ({"nccl": None, "nccl_trouble": "the library is missing"}, 1, [OK, NOTE, OK, OK]),
            ({"nccl": "2.21.5"}, 1, [OK, PROBLEM, OK, OK]),
            ({"cudnn": None, "cudnn_trouble": "cuDNN is 90100"}, 1, [OK, OK, OK, NOTE]),
            ({"gpus": [["H100", 80 << 30]] * 2, "ipc": "cudaErrorNotSupported"}, 2, [OK, OK, OK, NOTE, OK, OK]),
            ({"cublaslt": None, "cublaslt_trouble": "libcublasLt.so.13 is not installed"}, 1, [OK, OK, NOTE, OK]),
            ({"gpus": [["H100", 80 << 30]] * 2}, 2, [OK, OK, OK, OK, OK, OK]),
            ({"gpus": [], "trouble": "driver too old"}, 2, [PROBLEM]),
            ({"gpus": [], "trouble": "no driver"}, 0, [NOTE]),
        ],
    )
    def test_not_well(self, change: dict[str, object], devices: int, statuses: list[str]) -> None:
        findings = list(gpu.cupy_findings({**WELL, **change}, devices))
        assert [finding.status for finding in findings] == statuses
        assert all(finding.fix or finding.command for finding in findings if finding.status != OK)

    @pytest.mark.parametrize(("devices", "status"), [([], OK), (["/dev/nvidia0"], NOTE)])
    def test_without_cupy(self, devices: list[str], status: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(gpu.glob, "glob", lambda pattern: devices)
        assert only(list(gpu.gpu())).status == status


class TestMachine:
    @pytest.mark.parametrize(("free", "status"), [(16 << 20, PROBLEM), (64 << 20, NOTE), (8 << 30, OK)])
    def test_shared_memory(self, free: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "statvfs", lambda path: Disk(1, max(free, 64 << 20), free))
        finding = only(list(machine.shared_memory()))
        assert finding.status == status and (status == OK or "--shm-size" in finding.fix)

    def test_a_limit_of_shared_memory_is_a_note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "statvfs", lambda path: Disk(1, 8 << 30, 8 << 30))
        monkeypatch.setenv("JOBFLOW_SHARED_MIB", "64")
        finding = only(list(machine.shared_memory()))
        assert finding.status == NOTE and "of which JOBFLOW_SHARED_MIB allows 0.06 GiB" in finding.text

    def test_a_container_with_less_time_than_cores(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "cpu.max").write_text("50000 100000\n")
        monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
        finding = only(list(machine.cores()))
        assert finding.status == NOTE and "is limited to the time of 0.5" in finding.text
        (tmp_path / "cpu.max").write_text("max 100000\n")
        assert machine.quota() is None

    def test_threads_of_one_core(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(4):
            (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
            (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(f"{number // 2 * 2}-{number // 2 * 2 + 1}\n")
        monkeypatch.setattr(machine, "SYSTEM", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
        assert machine.whole({0, 1, 2}) == 2 and machine.whole({7}) == 1
        assert "3 usable" in (text := only(list(machine.cores())).text) and "threads of 2: at most 2 ranks" in text

    def test_a_container_with_little_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "memory.max").write_text(str(600 << 20))
        (tmp_path / "memory.current").write_text(str(100 << 20))
        monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
        assert machine.available() == 500 << 20
        assert only(list(machine.memory())).status == NOTE

    @pytest.mark.parametrize(
        ("answer", "status", "words"),
        [
            (Answer({}, "PermissionError"), PROBLEM, "cannot be written to"),
            (Answer({"free": 1 << 20, "kind": "nfs", "sync": 1e-3, "rate": 1e8}), PROBLEM, "too little"),
            (Answer({"free": 5 << 30, "kind": "nfs", "sync": 1e-3, "rate": 1e8}), NOTE, "5.0 GiB free"),
            (Answer({"free": 50 << 30, "kind": "nfs", "sync": 0.2, "rate": 1e8}), NOTE, "after 200.0 ms, 100 MB/s: saving is slow"),
            (Answer({"free": 50 << 30, "kind": "ext4", "sync": 1e-3, "rate": 1e8}), OK, "ext4"),
        ],
    )
    def test_disk(self, answer: Answer, status: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "ask", lambda command: answer)
        finding = only(list(machine.disk()))
        assert finding.status == status and words in finding.text


class TestLibraries:
    @pytest.mark.parametrize(
        ("change", "statuses"),
        [
            ({}, [OK, OK]),
            ({"version": "1.26.4"}, [PROBLEM, OK]),
            ({"name": "none"}, [OK, PROBLEM]),
            ({"threads": None}, [OK, NOTE]),
            ({"threads": 1}, [OK, NOTE]),
            ({"threads": 64}, [OK, NOTE]),
        ],
    )
    def test_numpy(self, change: dict[str, object], statuses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
        data = {"version": "2.4.6", "name": "openblas 0.3", "threads": 4, "one": 7e10, "all": 2e11, **change}
        monkeypatch.setattr(libraries, "ask", lambda command: Answer(data))
        assert [finding.status for finding in libraries.numpy()] == statuses

    def test_packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        there = {"pydantic": "2.6.9", "rich": "15.0", "jinja2": "3.1.6", "psutil": "7.2"}

        def version(name: str) -> str:
            if name not in there:
                raise libraries.importlib.metadata.PackageNotFoundError(name)
            return there[name]

        monkeypatch.setattr(libraries.importlib.metadata, "version", version)
        old, fine, *missing = libraries.packages()
        assert old.status == PROBLEM and old.command == 'pip install -U "pydantic>=2.7"' and fine.text == "rich 15.0, jinja2 3.1.6, psutil 7.2"
        assert missing[0].text.startswith("not installed: matplotlib") and missing[0].command == 'pip install "jobflow-sbp[train]"'

    def test_versions_are_those_of_setup(self) -> None:
        required = dict(re.findall(r'"([\w-]+)>=([\d.]+)', (ROOT / "setup.py").read_text(encoding="utf-8")))
        assert {w.name: w.least for w in PACKAGES if w.extra} == {w.name: required[w.name] for w in PACKAGES if w.extra}
