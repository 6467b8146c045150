"""`scripts/gpu_check`: its runner on planted steps, its limits, its report, and what it needs."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import check_parts
import comparison
import psutil
import pytest
import workloads
from step_runner import GRACE, Step
from without_gpu import host_runtime

from jobflow.runtime.device import cuda_device

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check"
PLANTED = Path(__file__).with_name("programs") / "planted_steps.py"
RESULTS = ROOT / "benchmarks" / "gpu" / "RESULTS.md"
#: bytes of the tracked files, which travel to a machine with a GPU
LARGEST_TREE = 32 << 20
#: seconds that a fresh process may take beyond the limits of its steps, on a busy machine
SLACK = 20.0
NOT_MEASURED = "has not been measured on a GPU"


def planted(folder: Path, *steps: str, seconds: float = 60, part: str = "part") -> tuple[list[str], list[dict[str, Any]]]:
    """Run planted steps; return printed lines and saved outcomes."""
    command = [sys.executable, str(PLANTED), str(folder), part, str(seconds), *steps]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), [json.loads(line) for line in (folder / f"{part}.jsonl").read_text().splitlines()]


def states(lines: list[str]) -> list[str]:
    return [" ".join(line.split()[1:3]) for line in lines if line.startswith("STEP ")]


class TestRunner:
    def test_run_steps_continues_after_failures(self, tmp_path: Path) -> None:
        lines, outcomes = planted(tmp_path, "good", "failing", "crashing", "nowhere", "pytest", "good")
        assert states(lines) == ["good ok", "failing FAILED", "crashing FAILED", "pytest FAILED", "good ok", "nowhere FAILED"]
        remarks = {outcome["step"]: outcome["remark"] for outcome in outcomes}
        assert remarks["failing"] == "exit code 3" and remarks["crashing"] == "ended by SIGSEGV" and "not started" in remarks["nowhere"]
        assert "  | a word before the end" in lines and "  failed: tests/a.py::test_x[1]" in lines and "  figure=0.5" in lines
        assert outcomes[2]["results"] == [{"before": 2}], "figures from before the crash are lost"

    def test_each_step_prints_one_line_with_its_seconds(self, tmp_path: Path) -> None:
        lines, _ = planted(tmp_path, "good", "absent")
        assert re.fullmatch(r"STEP good ok \d+\.\d", lines[-2]) and re.fullmatch(r"STEP absent ok \d+\.\d not there: no such library", lines[-1])

    def test_an_endless_step_is_late_and_leaves_no_process(self, tmp_path: Path) -> None:
        begin = time.monotonic()
        lines, outcomes = planted(tmp_path, "endless", "good")
        assert time.monotonic() - begin < 5.0 + GRACE + SLACK
        assert states(lines) == ["endless late", "good ok"] and outcomes[0]["remark"] == "limit 5 s"
        assert outcomes[0]["results"] == [{"before": 1}]
        (child,) = re.findall(r"child (\d+)", (tmp_path / "part.log").read_text())
        assert not psutil.pid_exists(int(child))

    def test_a_step_that_succeeds_leaves_no_process(self, tmp_path: Path) -> None:
        lines, _ = planted(tmp_path, "leaving")
        assert states(lines) == ["leaving ok"]
        (child,) = re.findall(r"left (\d+)", (tmp_path / "part.log").read_text())
        assert not psutil.pid_exists(int(child))

    def test_steps_after_the_budget_are_not_started(self, tmp_path: Path) -> None:
        lines, outcomes = planted(tmp_path, "endless", "good", seconds=4)
        assert states(lines) == ["endless late", "good late"]
        assert outcomes[1]["remark"] == "not started: no time is left"

    def test_truncated_result_is_reported_as_unreadable(self, tmp_path: Path) -> None:
        lines, _ = planted(tmp_path, "cut")
        assert states(lines) == ["cut ok"] and any("unreadable" in line for line in lines)

    def test_step_passes_if_its_output_matches_expects(self, tmp_path: Path) -> None:
        lines, _ = planted(tmp_path, "expected", "unexpected")
        assert states(lines) == ["expected ok", "unexpected FAILED"]

    def test_step_in_which_all_tests_are_skipped_fails(self, tmp_path: Path) -> None:
        lines, _ = planted(tmp_path, "skipped", "counted")
        assert states(lines) == ["skipped FAILED", "counted ok"] and lines[-1].endswith("2 passed, 1 skipped")

    def test_results_of_an_earlier_run_are_reused(self, tmp_path: Path) -> None:
        planted(tmp_path, "good")
        _, outcomes = planted(tmp_path, "good")
        assert len(outcomes) == 2 and (tmp_path / "part.log").read_text().count("===== good") == 2

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_signals_terminate_the_running_step(self, tmp_path: Path, number: signal.Signals) -> None:
        process = subprocess.Popen([sys.executable, str(PLANTED), str(tmp_path), "part", "60", "good", "endless"], stderr=subprocess.DEVNULL)
        log = tmp_path / "part.log"
        deadline = time.monotonic() + SLACK
        while not (log.exists() and re.search(r"^child \d+", log.read_text(), re.MULTILINE)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(timeout=SLACK) != 0
        (child,) = re.findall(r"child (\d+)", log.read_text())
        assert not psutil.pid_exists(int(child))
        saved = [json.loads(line) for line in (tmp_path / "part.jsonl").read_text().splitlines()]
        assert [(outcome["step"], outcome["state"]) for outcome in saved] == [("good", "ok"), ("endless", "interrupted")]


def setup_of(folder: Path, dry: bool = False) -> check_parts.Setup:
    return check_parts.Setup(folder, folder, dry=dry)


class TestParts:
    @pytest.mark.parametrize("part", ["correct", "speed"])
    def test_the_limits_of_the_steps_fit_the_part(self, tmp_path: Path, part: str) -> None:
        steps: list[Step] = getattr(check_parts, part)(setup_of(tmp_path))
        seconds = [step.limit for step in steps if step.limit is not None]
        assert sum(seconds) <= check_parts.BUDGET[part], "a late step would take the time of a later one"
        assert {part: check_parts.BUDGET[part] for part in ("correct", "speed", "dry")} == {"correct": 330, "speed": 400, "dry": 180}
        assert [step.limit for step in steps[:-1]].count(None) == 0, "only the last step takes the time that is left"

    def test_dry_starts_the_steps_of_every_part(self, tmp_path: Path) -> None:
        dry = {step.name for step in check_parts.dry(setup_of(tmp_path, dry=True))}
        for part in (check_parts.correct, check_parts.speed):
            assert {step.name for step in part(setup_of(tmp_path))} <= dry
        assert any(name.startswith("memcheck:") for name in dry)

    def test_diagnose_divides_its_time_among_the_tests(self, tmp_path: Path) -> None:
        steps = check_parts.diagnose(setup_of(tmp_path), [f"tests/x.py::test_{k}" for k in range(10)])
        assert sum(step.limit or 0 for step in steps) <= check_parts.BUDGET["diagnose"]
        assert steps[0].environment["CUDA_LAUNCH_BLOCKING"] == "1"

    def test_programs_of_the_steps_exist(self, tmp_path: Path) -> None:
        named = {Path(word) for step in check_parts.dry(setup_of(tmp_path, dry=True)) for word in step.command if word.endswith(".py")}
        assert named and [path for path in named if not (ROOT / path).exists()] == []


def gpu_check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=300)


class TestCommand:
    @pytest.mark.skipif(cuda_device.available() > 0, reason="there is a GPU")
    @pytest.mark.parametrize("part", ["correct", "speed", "diagnose"])
    def test_exits_3_and_writes_nothing_without_a_gpu(self, tmp_path: Path, part: str) -> None:
        tests = ["tests/gpu/test_on_gpu.py"] if part == "diagnose" else []
        done = gpu_check(part, *tests, OUT=str(tmp_path / "out"), PATH="/nonexistent")
        assert done.returncode == 3 and f"gpu_check {part}: no usable GPU: " in done.stderr, done.stderr
        assert not list(tmp_path.iterdir())

    def test_help_names_the_parts_and_the_exit_codes(self) -> None:
        done = gpu_check("--help")
        assert done.returncode == 0 and "3 there is no usable GPU" in done.stdout and "gpu_check diagnose TEST" in done.stdout

    @pytest.mark.parametrize(
        "arguments", [["diagnose"], ["diagnose", *"abcdefghijk"], ["speed", "tests/gpu"], ["fast"], ["speed", "--peer-python", "/bin/false"]]
    )
    def test_invalid_arguments_exit_2_with_usage(self, arguments: list[str]) -> None:
        done = gpu_check(*arguments)
        assert done.returncode == 2 and "usage:" in done.stderr

    @pytest.mark.skipif(bool(host_runtime.missing()), reason=host_runtime.missing() or "nothing is missing")
    def test_unwritable_results_folder_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        done = gpu_check("dry", "--out", str(tmp_path / "file" / "out"))
        assert done.returncode == 2 and f"cannot write results to {tmp_path / 'file' / 'out'}" in done.stderr

    @pytest.mark.skipif(bool(host_runtime.missing()), reason=host_runtime.missing() or "nothing is missing")
    def test_dry_runs_every_step_and_writes_at_most_eight_files(self, tmp_path: Path) -> None:
        done = gpu_check("dry", OUT=str(tmp_path))
        assert done.returncode == 0, done.stdout
        assert {line.split()[2] for line in done.stdout.splitlines() if line.startswith("STEP ")} == {"ok"}
        written = {path.name for path in tmp_path.iterdir()}
        assert {"dry.log", "dry.jsonl", "ops.xml", "slowest_calls.md"} <= written and len(written) <= 8


def row(side: str, ms: float, loss: float, precision: str = "bfloat16") -> dict[str, Any]:
    figures = {"figure": "step", "side": side, "model": "gpt2", "batch": 8, "precision": precision}
    return figures | {"ms": ms, "items_per_s": 1000.0, "loss_2": 10.0, "loss_10": loss, "peak_mib": 5.0}


def outcomes_of(*results: dict[str, Any]) -> list[Any]:
    return [SimpleNamespace(results=[{"card": "a card"}]), SimpleNamespace(results=list(results))]


class TestReport:
    def test_ratio_is_jobflow_time_over_peer_time(self) -> None:
        lines = list(comparison.report(outcomes_of(row("jobflow", 60, 9.1), row("torch eager", 30, 9.0), row("torch compile", 20, 9.0)), "abc"))
        assert "| 2.00 | 3.00 |" in lines[2]
        assert "| a card | abc | 60.0 ms, 2.00, 3.00 | - | - | - |" in lines[3]

    def test_ratio_is_a_dash_without_a_peer(self) -> None:
        assert "| - | - |" in list(comparison.report(outcomes_of(row("jobflow", 60, 9.1)), "abc"))[2]

    @pytest.mark.parametrize("loss", [9.5, 8.0])
    def test_loss_outside_the_tolerance_is_reported(self, loss: float) -> None:
        (line,) = comparison.disagreements(outcomes_of(row("jobflow", 60, loss), row("torch eager", 30, 9.0)))
        assert line.startswith("gpt2, batch 8, bfloat16: the loss of step 10 is")

    @pytest.mark.parametrize("loss", [10.5, float("nan")])
    def test_loss_that_does_not_fall_is_reported(self, loss: float) -> None:
        (line,) = comparison.disagreements(outcomes_of(row("jobflow", 60, loss)))
        assert "at step 2" in line

    def test_losses_within_the_tolerance_agree(self) -> None:
        assert not list(comparison.disagreements(outcomes_of(row("jobflow", 60, 9.01), row("torch eager", 30, 9.0))))


@pytest.mark.parametrize(
    ("head", "files", "expected"),
    [
        ("ref: refs/heads/main", {"refs/heads/main": "0123456789"}, "01234567"),
        ("ref: refs/heads/main", {"packed-refs": "# pack\nabcdef0123 refs/heads/main\n"}, "abcdef01"),
        ("89abcdef01", {}, "89abcdef"),
        (None, {}, "unknown"),
    ],
)
def test_the_commit_is_read_without_git(tmp_path: Path, head: str | None, files: dict[str, str], expected: str) -> None:
    for name, text in ({} if head is None else {"HEAD": head, **files}).items():
        path = tmp_path / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert comparison.commit(tmp_path) == expected


def test_gpt2_and_resnet50_have_their_published_sizes() -> None:
    def count(model: str) -> int:
        total = 0
        for _, shape, _ in workloads.FULL[model].parameters():
            elements = 1
            for n in shape:
                elements *= n
            total += elements
        return total

    assert count("gpt2") == 124_475_904, "124,439,808 with a table of 50,257 words"
    assert count("resnet50") == 25_557_032


@pytest.mark.parametrize("model", workloads.MODELS)
def test_the_job_functions_train(model: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/gpu/run_jobflow.py"), model, str(workloads.SMALL[model].batches[0]), "float32"]
    done = subprocess.run([*command, "--small", "--host"], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert 0 < figures["loss_10"] < {"gpt2": 6.24, "resnet50": 2.3}[model], "no lower than a guess"


def travelling_files() -> Iterator[Path]:
    """Yield the files not excluded by .gitignore."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line and not line.startswith("#")]
    for folder, names, files in os.walk(ROOT):
        names[:] = [n for n in names if n != ".git" and not any(fnmatch.fnmatch(n, pattern) for pattern in ignored)]
        yield from (Path(folder, f) for f in files if not any(fnmatch.fnmatch(f, pattern) for pattern in ignored))


def test_tracked_files_are_below_32_mib() -> None:
    sizes = {path.relative_to(ROOT): path.stat().st_size for path in travelling_files()}
    assert len(sizes) > 1000
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert sum(sizes.values()) < LARGEST_TREE, f"the largest: {largest}"


def test_pages_state_unmeasured_while_results_are_empty() -> None:
    measured = re.findall(r"^\| \d{4}-\d\d-\d\d \|", RESULTS.read_text(encoding="utf-8"), re.MULTILINE)
    for page in (ROOT / "README.md", ROOT / "docs" / "gpus.md", RESULTS.with_name("README.md")):
        assert (NOT_MEASURED in " ".join(page.read_text(encoding="utf-8").split())) == (not measured), page.name
