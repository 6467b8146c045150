"""The command line as a whole: help, wrong arguments, exit codes, and start time."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic_core import SchemaError

from jobflow import cli
from jobflow.cli import CODES, main, parser
from jobflow.cli.command_table import COMMANDS, GROUPS, Command
from jobflow.core.errors import ArgumentError, ConfigError, JobError

ROOT = Path(__file__).parents[2]


def example_words(text: str) -> list[list[str]]:
    """Return the arguments of every example on a separate line, without comments and redirections."""
    lines = re.findall(r"^ +(?:mpiexec -n \d+ |srun )?jobflow +(.+?)(?:  +#?.*| >.*)?$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def below(command: Command) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    commands = next(action for action in parser([command])._actions if isinstance(action, argparse._SubParsersAction))
    return commands.choices[command.name]


def fails(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `jobflow version` raise `error` on a line of its own module."""
    module = importlib.import_module("jobflow.cli.version_command")
    own = {"__name__": module.__name__, "error": error}
    exec(compile("def run(given):\n    raise error", str(module.__file__), "exec"), own)
    monkeypatch.setattr(module, "run", own["run"])


class TestHelp:
    def test_the_first_page_has_all_commands_by_groups_and_all_exit_codes(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="0"):
            main(["--help"])
        output = capsys.readouterr().out
        assert [line.split()[0] for line in output.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS] == list(COMMANDS)
        assert all(f"\n{title}:\n" in output for title in GROUPS)
        assert all(f"  {code:<4} {meaning}" in output for code, meaning in CODES.items())
        assert max(map(len, output.splitlines())) < 100

    @pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
    def test_each_command_has_a_description_and_examples_that_it_can_read(self, command: Command) -> None:
        into = below(command)
        assert into.description and into.epilog and into.epilog.startswith("examples:\n")
        assert f"usage: jobflow {command.name} [-h]" in into.format_help()
        read = [parser([command]).parse_args(words) for words in example_words(into.epilog)]
        assert read and all(arguments.command == command.name for arguments in read)

    def test_named_files_exist(self) -> None:
        texts = [parser(()).format_help(), *(epilog for command in COMMANDS.values() if (epilog := below(command).epilog))]
        named = re.findall(r"\b(?:configs|examples)/[\w./]+\.\w+", "\n".join(texts))
        assert len(named) > 10 and [name for name in named if not (ROOT / name).exists()] == []

    def test_the_page_of_the_documents_has_commands_and_codes(self) -> None:
        page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
        assert re.findall(r"^\| `jobflow (\w+)", page, re.MULTILINE) == list(COMMANDS)
        assert {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)} == CODES

    def test_codes_are_those_of_training(self) -> None:
        outcome = importlib.import_module("jobflow.trainer.training_run")
        assert {code for code, _, _ in outcome.ENDS.values()} == set(CODES) - {1, 2, 141}

    def test_no_arguments_print_help_and_exit_with_the_usage_code(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 2
        assert "train and predict:" in capsys.readouterr().out

    def test_the_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="0"):
            main(["--version"])
        assert capsys.readouterr().out.startswith("jobflow 0.")


class TestQuick:
    def test_options_are_known_without_numpy_and_the_packages_of_training(self) -> None:
        program = (
            "import sys; from jobflow.cli import parser; from jobflow.cli.command_table import COMMANDS\n"
            "for command in COMMANDS.values():\n"
            "    parser([command]).format_help()\n"
            "    heavy = {'numpy', 'pydantic', 'rich', 'matplotlib', 'yaml', 'shtab', 'mpi4py'} & set(sys.modules)\n"
            "    assert not heavy, f'jobflow {command.name} --help imports {heavy}'\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def test_help_takes_as_long_as_a_dozen_small_programs_at_most(self) -> None:
        """argparse alone takes about 20 ms, `jobflow doctor --help` 60 to 80; 0.3 s are allowed."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": str(ROOT)}

        def seconds(*words: str) -> float:
            begun = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environment)
            return time.perf_counter() - begun

        rounds = [(seconds("-c", "import argparse"), seconds("-m", "jobflow", "doctor", "--help")) for _ in range(5)]
        small, large = (min(times) for times in zip(*rounds, strict=True))
        assert large < 12 * small, f"{large:.3f} s, a small program {small:.3f} s"


class TestErrors:
    def test_a_misspelt_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["explian"]) == 2
        assert 'unknown command "explian"; did you mean "explain"?' in capsys.readouterr().err

    def test_a_wrong_option(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["explain", "x.py:job", "--devices", "0"])
        assert "'0' is not a whole number of at least 1" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["verify", "x.py:job", "--devics", "2"], 'jobflow verify: error: unknown argument --devics; did you mean "--devices"?'),
            (["config", "show", "x.yaml", "--jsom"], 'jobflow config: error: unknown argument --jsom; did you mean "--json"?'),
            (["version", "more"], "jobflow version: error: unknown argument more; --help lists the options"),
        ],
    )
    def test_an_unknown_option(self, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("error", "code", "message"),
        [
            (ConfigError("wrong"), 2, "ConfigError: wrong\n"),
            (JobError("cannot be"), 1, "JobError: cannot be\n"),
            (ArgumentError("does not fit"), 1, "ArgumentError: does not fit\n"),
            (KeyboardInterrupt(), 130, "interrupted\n"),
            (SchemaError("SchemaError: Error building a validator:\n  KeyboardInterrupt: "), 130, "interrupted\n"),
            (ModuleNotFoundError("no", name="matplotlib.figure"), 1, 'matplotlib is not installed: pip install "jobflow-sbp[train]"\n'),
            (FileNotFoundError(2, "No such file or directory", "a.npz"), 1, "a.npz: No such file or directory (--traceback shows where)\n"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
    )
    def test_codes_and_one_line(
        self, error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("JOBFLOW_TRACEBACK", raising=False)
        fails(monkeypatch, error)
        assert main(["version"]) == code
        assert capsys.readouterr().err == message

    @pytest.mark.parametrize("words", [["--traceback", "version"], ["version", "--traceback"], ["version"]])
    def test_a_traceback_is_printed_on_request(self, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JOBFLOW_TRACEBACK", "0" if "--traceback" in words else "1")
        fails(monkeypatch, JobError("cannot be"))
        assert main(words) == 1
        output = capsys.readouterr().err
        assert output.startswith("Traceback") and output.endswith("JobError: cannot be\n")

    @pytest.mark.parametrize("error", [ModuleNotFoundError("no", name="mine"), ZeroDivisionError("a defect"), OSError("of no file")])
    def test_other_exceptions_propagate(self, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
        fails(monkeypatch, error)
        with pytest.raises(type(error)):
            main(["version"])

    def test_a_closed_output_ends_quietly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dropped: list[bool] = []
        monkeypatch.setattr(cli, "drop_output", lambda: dropped.append(True))
        fails(monkeypatch, BrokenPipeError(32, "Broken pipe"))
        assert main(["version"]) == 141 and dropped

    def test_a_closed_pipe_ends_quietly(self) -> None:
        reads, writes = os.pipe()
        os.close(reads)
        words = [sys.executable, "-m", "jobflow", "run", "--help"]
        done = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        os.close(writes)
        assert done.returncode in (0, 141) and done.stderr == b""

    @pytest.mark.mpi
    def test_ranks_say_it_once(self, run_ranks: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        done = run_ranks("verify", "nowhere.py:job", "--devices", "2", "--ranks", "mpi")
        assert done.returncode == 2 and done.stderr.count("ConfigError: there is no file nowhere.py") == 1


@pytest.fixture
def run_ranks() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `jobflow` on two ranks."""
    mpiexec = importlib.import_module("jobflow.distributed.mpiexec")
    path = mpiexec.find() or "mpiexec"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = mpiexec.ranks(path, 2, [sys.executable, "-m", "jobflow", *words])
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False)

    return run
