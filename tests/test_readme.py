"""The README: commands of one line, extras, files and pictures that exist; and the numbers of lines that the page on development states."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README, INSTALLATION, DEVELOPMENT = (
    (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/installation.md", "docs/internals/development.md")
)


def command(mark: str) -> str:
    matches = re.findall(rf"^<!-- {mark} -->\n```bash\n(.+)\n```$", README, re.MULTILINE)
    assert len(matches) == 1, f"one command is marked <!-- {mark} -->"
    return str(matches[0])


def test_extras_exist() -> None:
    offered = set(re.findall(r'^        "([\w-]+)": ', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE))
    extras = {extra for group in re.findall(r'"\.\[([\w,-]+)\]"', README + INSTALLATION) for extra in group.split(",")}
    assert extras == offered


def test_named_files_exist() -> None:
    named = re.findall(r"\]\(([^):#]+)\)", README) + re.findall(r"\b((?:examples|benchmarks|scripts)/[\w./]+)", README)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_main_job_runs_on_two_ranks() -> None:
    assert command("run").endswith("&& mpiexec -n 2 jobflow train configs/lenet_digits.yaml")


@pytest.mark.parametrize("mark", ["run", "test"])
def test_commands_are_shell(mark: str) -> None:
    subprocess.run(["bash", "-n", "-c", command(mark)], check=True)


def test_ci_runs_the_test_command() -> None:
    """The part of .ci/run that reads the README finds the same line."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = script[script.index("command_after()") : script.index("test_command=")]
    done = subprocess.run(["bash", "-c", f"{function}\ncommand_after test"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == command("test")


def lines(*folders: str) -> int:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def test_stated_numbers_of_lines_are_within_five_percent() -> None:
    package, tests = (re.search(pattern, DEVELOPMENT) for pattern in (r"package has about ([\d,]+) lines", r"and the tests ([\d,]+)"))
    core, paragraph = re.search(r"core has about ([\d,]+) lines: (.+?)\. It traces", DEVELOPMENT, re.DOTALL).groups()  # type: ignore[union-attr]
    folders = re.findall(r"/(jobflow/\w+)\)", paragraph)
    assert len(folders) > 5 and package is not None and tests is not None
    for text, count in ((package[1], lines("jobflow")), (tests[1], lines("tests")), (core, lines(*folders))):
        assert int(text.replace(",", "")) == pytest.approx(count, rel=0.05)
