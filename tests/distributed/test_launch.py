"""`jobflow launch`: its options, its output, and every way in which it ends."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import time

import pytest
from processes import LAUNCH, PROGRAM, PROMPT, Exited, by_launcher, crowd, free_port, late, left_over

from jobflow.cli import main as jobflow
from jobflow.distributed.launch import main

PLAIN = PROGRAM.with_name("plain.py")


def plain(case: str, *options: str, ranks: int = 2, environment: dict[str, str] | None = None) -> Exited:
    with crowd() as jobs:
        jobs.start([*LAUNCH, "--nproc_per_node", str(ranks), *options, str(PLAIN), case, "--more", "-m"], environment or {})
        return jobs.wait()[0]


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["nowhere.py"], "there is no script 'nowhere.py' in "),
            (["jobflow", "train", "run.yaml"], "to run a jobflow command on each rank: -m jobflow train"),
            (["run.yaml"], "run.yaml is a configuration, not a Python program; to train it on each rank: -m jobflow train run.yaml"),
            (["sleep", "1"], "sleep is a program: write --no_python before it"),
            (["nowhere"], "write -m before the name of a module"),
            (["--no_python", "nowhere"], "program 'nowhere' was not found in PATH"),
            (["--no_python", "-m", "nowhere"], "-m and --no_python exclude each other"),
            (["--nnodes", "2", str(PLAIN)], "--nnodes 2 needs --master_addr"),
            (["--nnodes", "2", "--node_rank", "2", str(PLAIN)], "--node_rank 2 is not a node of --nnodes 2; pass --node_rank from 0 to 1"),
            (["--nproc_per_node", "2", "--master_addr", "no.such.invalid", str(PLAIN)], "MASTER_ADDR=no.such.invalid is not a name or address"),
        ],
    )
    def test_contradictory_options_raise(
        self, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert main(arguments) == 2
        assert text in capsys.readouterr().err

    @pytest.mark.parametrize("value", ["0", "x", "-1", "2.5"])
    def test_option_values_below_one_raise(self, value: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["--nproc_per_node", value, str(PLAIN)])
        assert f"{value!r} is not a whole number of at least 1" in capsys.readouterr().err

    def test_a_port_in_use_raises(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert main(["--nproc_per_node", "2", "--master_port", str(other.getsockname()[1]), str(PLAIN)]) == 2
        assert "is in use by another program" in capsys.readouterr().err

    def test_launch_is_a_command_of_jobflow(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="0"):
            jobflow(["launch", "--help"])
        output = capsys.readouterr().out
        assert "--nproc_per_node" in output and "two nodes with two ranks each" in output
        assert jobflow(["launch", "--no_python", "nowhere"]) == 2
        assert "was not found in PATH" in capsys.readouterr().err


class TestOutput:
    def test_ranks_receive_their_variables(self) -> None:
        ended = plain("variables", "--master_port", str(free_port()), environment={"PMI_RANK": "7"})
        common = "LOCAL_WORLD_SIZE=2 OMP_NUM_THREADS=1 PMI_RANK=None ['--more', '-m']"
        expected = [f"[rank {rank}] MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 RANK={rank} LOCAL_RANK={rank} {common}" for rank in range(2)]
        assert (ended.code, ended.lines, ended.err) == (0, expected, "")

    def test_the_thread_limit_is_reported_once(self) -> None:
        ended = plain("variables", environment={"OMP_NUM_THREADS": ""})
        assert ended.err == ""
        with crowd() as jobs:
            jobs.start(["env", "-u", "OMP_NUM_THREADS", *LAUNCH, "--nproc_per_node", "2", str(PLAIN), "variables"])
            ended = jobs.wait()[0]
        assert all("OMP_NUM_THREADS=1" in line for line in ended.lines)
        assert ended.err.count("OMP_NUM_THREADS was not set and is 1 for each of the 2 processes") == len(ended.err.splitlines()) == 1

    def test_lines_are_whole_and_in_order(self) -> None:
        ended = plain("lines")
        for rank in range(2):
            assert [line for line in ended.out.splitlines() if f"[rank {rank}]" in line] == [f"[rank {rank}] {rank}:{i} and more" for i in range(200)]
            assert [line for line in ended.err.splitlines() if f"[rank {rank}]" in line] == [f"[rank {rank}] {rank}:{i}" for i in range(200)]
        assert len(ended.out.splitlines()) == len(ended.err.splitlines()) == 400

    def test_one_rank_runs_as_without_a_launcher(self) -> None:
        ended = plain("lines", ranks=1)
        assert (ended.code, ended.out.splitlines()[-1], ended.err.splitlines()[-1]) == (0, "0:199 and more", "0:199")

    def test_modules_and_programs_can_be_launched(self) -> None:
        with crowd() as jobs:
            jobs.start([*LAUNCH, "--nproc_per_node", "2", "-m", "json.tool", "--help"])
            jobs.start([*LAUNCH, "--nproc-per-node", "2", "--no-python", "sh", "-c", "echo $RANK of $WORLD_SIZE"])
            module, program = jobs.wait()
        assert module.code == 0 and "[rank 1] usage: python -m json.tool" in module.out
        assert program.lines == ["[rank 0] 0 of 2", "[rank 1] 1 of 2"]

    def test_output_can_be_redirected_to_files(self, tmp_path: pathlib.Path) -> None:
        options = ["--logdir", str(tmp_path / "log"), "--redirect_stdout_and_stderr"]
        ended = plain("error", *options, environment={"TURN": str(tmp_path / "turn")})
        assert ended.code == 1
        assert (tmp_path / "log" / "rank_0" / "stderr").read_text() == "still here\n"
        assert ended.out == "" and "still here" not in ended.err
        assert ended.err.splitlines()[-2] == "[rank 1] ValueError: no luck with 41", "the error is shown nevertheless"

    def test_output_can_be_copied_to_files(self, tmp_path: pathlib.Path) -> None:
        ended = plain("lines", "--logdir", str(tmp_path))
        assert len(ended.lines) == 400
        assert (tmp_path / "rank_1" / "stdout").read_text().splitlines() == [f"1:{i} and more" for i in range(200)]


class TestEnds:
    def test_the_exit_code_is_passed_on(self) -> None:
        ended = plain("code")
        assert ended.code == 5
        assert ended.err == "jobflow launch: rank 1 ended with exit code 5; all others were ended\n"

    def test_the_first_error_is_shown_again_if_others_print_after_it(self, tmp_path: pathlib.Path) -> None:
        ended = plain("late", environment={"TURN": str(tmp_path / "turn")})
        lines = ended.err.splitlines()
        assert ended.code == 1
        assert lines.count("[rank 1] ValueError: no luck with 41") == 2, ended.err
        assert lines.index("[rank 0] told to end") < len(lines) - 4
        assert lines[-2:] == ["[rank 1] ValueError: no luck with 41", "jobflow launch: rank 1 ended with exit code 1; all others were ended"]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals_end_all_processes(self, number: signal.Signals) -> None:
        with crowd() as jobs:
            launcher = jobs.start([*LAUNCH, "--nproc_per_node", "2", str(PROGRAM), "stubborn"])
            for rank in range(2):
                jobs.await_text(0, f"[rank {rank}] ready", "out")
            launcher.send_signal(number)
            output = time.time()
            ended = jobs.wait()[0]
        assert ended.code == 128 + number
        assert ended.at - output < PROMPT
        assert ended.err.endswith(f"ended all ranks because of {number.name}\n")

    @pytest.mark.mpi
    def test_ranks_do_not_outlive_a_launcher_that_is_killed(self) -> None:
        with crowd() as jobs:
            launcher = jobs.start([*LAUNCH, "--nproc_per_node", "2", str(PROGRAM), "started"])
            for rank in range(2):
                jobs.await_text(0, f"[rank {rank}] started", "out")
            assert len(left_over(jobs.token)) == 4, "two ranks, the service and the launcher"
            os.kill(launcher.pid, signal.SIGKILL)
            jobs.wait()

    @pytest.mark.mpi
    def test_a_rank_that_ignores_signals_is_killed(self) -> None:
        ended = by_launcher("noisy", 2)
        assert ended.code == 1 and late([ended]) < PROMPT
        assert ended.err.splitlines()[-2] == "[rank 1] ValueError: no luck with 41"

    def test_a_closed_output_ends_the_launcher(self) -> None:
        with crowd() as jobs:
            command = " ".join([*LAUNCH, "--nproc_per_node", "2", "--no_python", "yes"])
            jobs.start(["sh", "-c", f"{command} | head -n 3"])
            ended = jobs.wait()[0]
        assert len(ended.out.splitlines()) == 3
        assert ended.err in ("", "jobflow launch: ended all ranks because of SIGPIPE\n")


@pytest.mark.mpi
class TestNodes:
    def start(self, case: str) -> list[Exited]:
        with crowd() as jobs:
            common = ["--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", str(free_port())]
            for node in (1, 0):
                jobs.start([*LAUNCH, *common, "--node_rank", str(node), str(PROGRAM), case])
            return jobs.wait()

    def test_two_launchers_start_one_world(self) -> None:
        ended = self.start("exchange")
        assert [one.out for one in ended] == [f"[rank {rank}] rank {rank} of 2: [[0, 10], [0, 10]]\n" for rank in (1, 0)], ended
        assert [(one.code, one.err) for one in ended] == [(0, "")] * 2

    def test_a_failure_on_one_node_is_shown_on_both(self) -> None:
        ended = self.start("asleep:raise")
        assert [one.code for one in ended] == [1, 1], ended
        assert late(ended) < PROMPT
        assert all("ValueError: no luck with 41" in one.err.splitlines()[-2] for one in ended), ended
        assert "rank 1, of another node, failed first" in ended[1].err
