"""`jobflow run`: the process that it becomes; devices, exit codes and signals reach the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobflow import scope
from jobflow.cli import main
from jobflow.cli import run_command as run
from jobflow.distributed import launch, mpiexec
from jobflow.engine.options import Settings
from jobflow.engine.session import config, current_session

ROOT = Path(__file__).parents[2]

SCRIPT = """\
import os, signal, sys, time
from pathlib import Path
from jobflow.engine.session import config, current_session

config.cpu_device_num(1)
print(current_session().asked_devices, sys.argv[1:], flush=True)
if "wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    Path(__file__).with_name("waits" + os.environ["PMI_RANK"]).touch()
    time.sleep(60)
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(SCRIPT, encoding="utf-8")
    return file


class Became(BaseException):
    """The arguments of a call of `os.execve`."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.words, self.environment = words, environment


@pytest.fixture
def becomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Became]:
    """Run a command that would replace this process; return the arguments of the new process."""

    def become(path: str, words: list[str], environment: dict[str, str]) -> None:
        assert path == words[0]
        raise Became(words, environment)

    monkeypatch.setattr(run.os, "execve", become)

    def call(*words: str) -> Became:
        with pytest.raises(Became) as caught:
            main(["run", *words])
        return caught.value

    return call


class TestBecomes:
    def test_devices(self, becomes: Callable[..., Became], script: Path) -> None:
        process = becomes("--devices", "3", str(script), "--devices", "9")
        assert process.words == [sys.executable, str(script), "--devices", "9"]
        assert process.environment["JOBFLOW_DEVICES"] == "3"

    def test_as_the_program_says(self, becomes: Callable[..., Became], script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JOBFLOW_DEVICES", raising=False)
        assert "JOBFLOW_DEVICES" not in becomes(str(script)).environment

    def test_ranks(self, becomes: Callable[..., Became], script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mpiexec, "find", lambda: "/mpi/bin/mpiexec")
        monkeypatch.setattr(mpiexec, "flavour", lambda path: "MPICH")
        assert becomes("--ranks", "2", str(script), "x").words == ["/mpi/bin/mpiexec", "-n", "2", sys.executable, str(script), "x"]
        monkeypatch.setattr(mpiexec, "flavour", lambda path: "Open MPI")
        process = becomes("--ranks", "4", "-m", "package.train", "-v")
        assert process.words == ["/mpi/bin/mpiexec", "--oversubscribe", "-n", "4", sys.executable, "-m", "package.train", "-v"]

    def test_ranks_without_mpiexec(self, script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(mpiexec, "find", lambda: None)
        started: list[list[str]] = []
        monkeypatch.setattr(launch, "run", lambda options: started.append(launch.command_line(options)) or options.nproc_per_node)
        assert main(["run", "--ranks", "2", str(script), "x"]) == 2
        assert started == [[sys.executable, "-u", str(script), "x"]] and "mpiexec is missing" in capsys.readouterr().err


class TestRefuses:
    def test_missing_programs_raise(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["run", "--devices", "2", "package.train"]) == 2
        assert "there is no script 'package.train'" in (output := capsys.readouterr().err) and "write -m" in output

    def test_both(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["run", "--devices", "2", "--ranks", "2", "x.py"])
        assert "not allowed with argument" in capsys.readouterr().err

    def test_ranks_of_ranks(self, script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("PMI_RANK", "1")
        monkeypatch.setenv("PMI_SIZE", "2")
        assert main(["run", "--ranks", "2", str(script)]) == 2
        assert "MPICH has already started 2 ranks" in capsys.readouterr().err


class TestDevices:
    def test_the_environment_overrules_the_program(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("JOBFLOW_DEVICES", "3")
        with scope.using(root=scope.Root()):
            assert current_session().asked_devices == 3
            assert config.gpu_device_num(2)
            assert current_session().asked_devices == 3 and current_session().device_tag == "gpu"
            assert config.gpu_device_num(0)  # "no GPU" is no number of devices
            assert current_session().asked_devices == 3 and current_session().device_tag == "cpu"
        assert "config.gpu_device_num(2) at test_run.py" in capsys.readouterr().err

    def test_it_must_be_a_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JOBFLOW_DEVICES", "two")
        with pytest.raises(ValueError, match="JOBFLOW_DEVICES='two' must be a whole number of at least 1"):
            Settings()


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "jobflow", "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


class TestProcesses:
    def test_devices_arguments_and_exit_code(self, script: Path) -> None:
        process = start("--devices", "2", str(script), "a", "--b")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 7 and out == "2 ['a', '--b']\n" and "there are 2 devices" in err

    @pytest.mark.mpi
    def test_a_signal_reaches_the_ranks_and_their_exit_code_comes_back(self, script: Path) -> None:
        if mpiexec.flavour(mpiexec.find() or "mpiexec") != "MPICH":
            pytest.skip("what another mpiexec makes of signals is its own")
        process = start("--ranks", "2", str(script), "wait")
        try:
            while len(list(script.parent.glob("waits*"))) < 2:  # a signal before that ends a rank that cannot answer yet
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 75
