"""`jobflow version` and `jobflow completion`."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest

from jobflow.cli import main
from jobflow.cli.command_table import COMMANDS
from jobflow.core.version import __version__


class TestVersion:
    def test_lines_and_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["version", "--json"]) == 0
        versions = json.loads(capsys.readouterr().out)
        assert set(versions) == {"jobflow", "Python", "platform", "NumPy", "BLAS", "mpi4py", "MPI", "CuPy"}
        assert versions["jobflow"] == __version__ and versions["NumPy"] == np.__version__ and versions["Python"].startswith(platform.python_version())
        assert main(["version"]) == 0
        lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
        assert lines == {name: version or "not installed" for name, version in versions.items()}


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
    def test_a_script_names_all_commands(self, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("shtab")
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(name in script for name in COMMANDS)
        if shell != "tcsh" and shutil.which(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True)

    def test_bash_completes(self, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("shtab")
        assert main(["completion", "bash"]) == 0
        script = capsys.readouterr().out + (
            '\ncomplete_of() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_jobflow jobflow "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[@]}"; }\n'
            "complete_of jobflow ver\ncomplete_of jobflow verify --ran\ncomplete_of jobflow completion z\n"
        )
        done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
        assert [set(line.split()) for line in done.stdout.splitlines()] == [{"verify", "version"}, {"--ranks"}, {"zsh"}]

    def test_without_shtab(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "shtab", None)
        assert main(["completion", "bash"]) == 1
        assert capsys.readouterr().err == 'shtab is not installed: pip install "jobflow-sbp[train]"\n'
