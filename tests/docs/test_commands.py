"""Every command of README and docs works as described, in the order of a page; with --full at full length.

Slow commands are shortened by an appended option. Commands for another kind of machine are listed with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pages
import pytest
from pages import ROOT, Command
from test_programs import environment, reader_folder

COMMANDS = pages.commands()
#: not run here -> why
ELSEWHERE = {
    r"^srun ": "needs Slurm",
    r"^jobflow data run\.yaml$": "describes the reader's configuration; tests/data describes others",
    r"^if \[ \$\? -eq 75 \]": "is the end of a batch script",
    r"pytest -q -n auto$": "is the run of these tests",
    r"^scripts/check$": "runs these tests",
    r"^scripts/measure_house$": "counts for half a minute, and says nothing about right or wrong",
    r"^scripts/record$": "runs for minutes; tests/records does what it does",
    r"^jobflow tokenizer ": "needs the package tokenizers; tests/data/test_tokenizers.py runs it",
    r"^jobflow train wide\.yaml --dry-run": "tests/docs/costs.py compiles these jobs",
    r"^mpiexec -n 4 jobflow train wide\.yaml$": "trains for a minute; other commands train on ranks",
    r"^(python -m jobflow\.compat before|mpiexec -n 2 python after)\.py$": "test_programs runs these programs so",
    r"^jobflow doctor$": "measures the machine; tests/cli/test_doctor.py runs it",
    r"^scripts/tighten_writing": "writes the record of the checkout; tests/test_words.py compares it",
    r"^scripts/refresh( --check)?$": "writes files of the checkout; other tests compare each of them",
    r"^scripts/refresh_compatibility$": "writes a page of the checkout; tests/face compares it",
    r"^scripts/refresh_docs$": "writes pages of the checkout; tests/docs/test_generated.py runs it with --check",
    r"^scripts/refresh_docs --rules": "tests/ops compares that page",
    r"^python benchmarks/read_data\.py$": "measures for minutes",
    r"^scripts/docs": "needs the extra docs; tests/docs/test_site.py builds the site",
    r"^scripts/screenshots$": "needs a browser",
    r"^scripts/crash_sweep$": "runs for minutes; tests/checkpoint runs a sample of it",
    r"^jobflow ckpt (ls runs/lenet/checkpoints|diff A B)": "names checkpoints of a run that the reader has",
    r"^scripts/cupy_without_gpu": "needs CuPy; tests/gpu/test_without_gpu.py runs it where CuPy is",
    r"^scripts/gpu_check": "needs a GPU or CuPy; tests/gpu/test_gpu_check.py runs its steps, and the command without a GPU",
    r"^(mpiexec -n [24]|jobflow predict --input|jobflow train --resume)$": "is a part of a command",
}
#: is asked for its help: a name that stands in a sentence
NAMED = re.compile(r"^(jobflow|python -m jobflow)( [a-z]+){0,2}$")
STEPS = " --set training.epochs=null --set training.steps=2"
PLAIN = " --set logging.report=false"  # drawing it takes longer than training: lenet_digits on two ranks leaves one
TOKENS = f" --set training.steps=2 --set evaluation.every_steps=2 --set checkpoint.every_steps=2{PLAIN}"
#: what stands behind a command without --full
SHORTER = {
    r"^python examples/gpt\.py": " --steps 1",
    r"jobflow train configs/lenet_digits\.yaml(?!.*(lrr|dry-run))": STEPS,
    r"^jobflow train configs/lenet_digits\.yaml(?!.*(lrr|dry-run))": PLAIN,
    r"jobflow train configs/char_gpt": TOKENS,
    r"jobflow train rounding\.yaml": f" --set training.steps=3{PLAIN}",
    r"--length 200|predict configs/char_gpt_2x2": " --length 5",
}
#: run only with --full -> the tests that do the same in every suite
WITH_FULL = {
    r"--sweep|^jobflow compare": "tests/trainer/test_sweeps.py, test_comparisons.py",
    r"^jobflow train fine\.yaml": "tests/trainer/test_fine_tuning.py",
    r"^jobflow train metrics\.yaml": "tests/trainer/test_set_metrics.py",
    r"^jobflow explain examples/hybrid_mlp\.py": "tests/test_picture.py",
    r"^jobflow export .*safetensors$": "tests/trainer/test_export.py",
    r"^jobflow verify .*examples/gpt\.py": "tests/test_verify.py",
}
#: without --full in this way
OTHERWISE = {
    "scripts/verify_gpt": "scripts/verify_gpt --help",
    "scripts/fuzz_layouts --graphs 2000": "scripts/fuzz_layouts --graphs 2",
    "scripts/fuzz_trainings": "scripts/fuzz_trainings --trainings 1",
    **{
        f"python examples/gpt.py --devices 4 --strategy {name}": "python examples/gpt.py --help"
        for name in ("dp", "tp", "zero3", "pipeline=4,microbatches=4")
    },
}
#: with --full in this way: as it stands it takes half an hour of processor time
LONGEST = {"scripts/fuzz_layouts --graphs 2000": "scripts/fuzz_layouts --graphs 100"}
#: a command that is to fail -> its exit code
FAILS = {r"optimizer\.lrr=0\.1$": 2}


def matching(table: dict[str, object], text: str) -> list[object]:
    return [value for pattern, value in table.items() if re.search(pattern, text)]


def as_run(command: Command, full: bool) -> str:
    """The line that is given to a shell; how the GPT is spread, tests/examples and tests/strategies try."""
    text = command.text
    if NAMED.match(text) and text != "jobflow version":
        return f"{text} --help"
    if ".[jit,mpi,train]" in text:
        text = text.rpartition("&& ")[2]  # all but the installation, which test_the_first_command has
    if text.startswith("MASTER_ADDR"):
        second = text.replace(" RANK=0 LOCAL_RANK=0", " RANK=1 LOCAL_RANK=1")
        return f"{second} & first=$!; {text}; code=$?; wait $first && exit $code"
    if full:
        return LONGEST.get(text, text)
    return OTHERWISE.get(text, text) + "".join(map(str, matching(dict(SHORTER), text)))


def was_before(command: Command, full: bool) -> bool:
    """True if an earlier page has the command too.

    Names in sentences and scripts of the repository do the same in any folder. The start of a program
    (`mpiexec -n 2 python script.py`) does not depend on the program.
    """
    first = next(other for other in COMMANDS if other.text == command.text)
    return first != command and (not full or bool(NAMED.match(command.text) or command.text.startswith("scripts/")))


def prepare(page: str, folder: Path) -> None:
    """The files that a page's commands name and its reader has."""
    reader_folder(folder)
    (folder / ".zfunc").mkdir()
    owner = "global_tensors.md" if page == "global_tensors.md" else "job_functions.md"
    script = [block for block in pages.programs() if block.page == owner][-1]
    (folder / "script.py").write_text(script.text, encoding="utf-8")
    for name, text in pages.saved(page).items():
        (folder / name).write_text(text, encoding="utf-8")


def checkout(folder: Path) -> None:
    """A copy of what is, or would be, committed."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def shell(line: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    where = environment(HOME=str(folder), **more)
    return subprocess.run(["bash", "-c", line], cwd=folder, env=where, capture_output=True, text=True, timeout=900)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("page", dict.fromkeys(command.page for command in COMMANDS))
def test_commands_of_a_page(page: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    full = bool(pytestconfig.getoption("--full"))
    prepare(page, tmp_path)
    omitted = ELSEWHERE if full else ELSEWHERE | WITH_FULL
    commands = [c for c in COMMANDS if c.page == page and not matching(dict(omitted), c.text) and not was_before(c, full)]
    for line, command in {as_run(c, full): c for c in commands}.items():
        done = shell(line, tmp_path)
        expected = matching(dict(FAILS), command.text) or [0]
        assert done.returncode == expected[0], f"{page}: {line}\n{done.stdout}{done.stderr}"


@pytest.mark.full
def test_the_first_command(tmp_path: Path) -> None:
    """With its installation, on a fresh checkout; `jobflow ckpt ls` finds its checkpoints."""
    checkout(tmp_path)
    (first,) = [c.text for c in COMMANDS if ".[jit,mpi,train]" in c.text]
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in ("PATH", "SSL_CERT_FILE")}
    line = f"{first} && jobflow ckpt ls runs/lenet_digits/checkpoints"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "lenet_digits" / "report.html").exists()


@pytest.mark.parametrize("table", [ELSEWHERE, WITH_FULL, SHORTER, FAILS], ids=["elsewhere", "with full", "shorter", "fails"])
def test_every_exception_is_about_a_command(table: dict[str, object]) -> None:
    assert [pattern for pattern in table if not any(re.search(pattern, command.text) for command in COMMANDS)] == []


def test_every_other_way_is_about_a_command() -> None:
    assert {*OTHERWISE, *LONGEST} <= {command.text for command in COMMANDS}
