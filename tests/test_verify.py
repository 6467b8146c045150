"""`jobflow verify`: jobs that are right pass under every strategy, and a planted mistake is found at the op that has it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow import scope
from jobflow.cli import main
from jobflow.engine.job import Job
from jobflow.engine.session import Session
from jobflow.kernels import registry
from jobflow.kernels.target import Target
from jobflow.ops.matmul import BiasAdd, MatMul
from jobflow.ops.norm import LayerNorm
from jobflow.ops.op import Op
from jobflow.ops.optimizer_updates import AdamUpdate
from jobflow.ops.softmax import Softmax
from jobflow.tools.comparison import allowed, apart
from jobflow.tools.explain import load_job
from jobflow.tools.verify import nudged, verify

ROOT = Path(__file__).parents[1]
GPT = f"{ROOT}/examples/gpt.py:make_train_job(Size(blocks=1, batch=8, length=8, width=16, heads=4, words=24))"
MODEL = """
import jobflow as flow
import jobflow.typing as tp


def make(placement=None, steps=None):
    config = flow.function_config()
    if steps:
        config.train.num_gradient_accumulation_steps(steps)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((7, 6)), labels: tp.Numpy.Placeholder((7,), dtype=flow.int64)) -> tp.Numpy:
        first = flow.layers.dense(x, 8, name="first")
        chosen = flow.nn.softmax(first.with_distribute(flow.distribute.split(1)), axis=1, name="chosen")
        mixed = flow.nn.dropout(chosen * first, rate=0.3, name="drop")
        logits = flow.layers.dense(mixed, 5, name="second")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    return train


def of_module():
    # a loss without axes; under mpiexec the ranks' modules begin with numbers of their own
    nn = flow.nn
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 5))

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((7, 6)), labels: tp.Numpy.Placeholder((7,), dtype=flow.int64)) -> tp.Numpy:
        loss = nn.CrossEntropyLoss()(model(x), labels)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    return train


def wide():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((64, 512))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(x, 256)), axis=[1])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    return train


job = make()
"""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "model.py").write_text(MODEL)
    yield f"{tmp_path}/model.py"
    sys.path.remove(str(tmp_path))
    sys.modules.pop("model", None)


def loaded(target: str) -> Job:
    with scope.using(root=scope.Root()):  # the jobs of the file belong to no session of the tests
        return load_job(target)


@pytest.fixture
def gpt() -> Iterator[Job]:
    before = list(sys.path)
    yield loaded(GPT)
    sys.path[:] = before


@pytest.mark.parametrize(("devices", "job"), [(2, "job"), (3, "job"), (2, "of_module()"), (2, "wide()")])
def test_a_job_that_is_right_passes(model: str, devices: int, job: str) -> None:
    report = verify(loaded(f"{model}:{job}"), devices=devices)
    assert report.agrees, report
    assert report.steps == 2 and report.compared > 40
    assert report.closest[0] > 0 or job == "wide()", "numbers that were summed in another order differ somewhere"


@pytest.mark.parametrize(
    "strategy",
    [
        *("dp", "2x2", "zero=3,least=1", "pipeline=2,data=2,microbatches=3"),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("tp", "pp", "zero=1,least=1", "zero=2,least=1", "pipeline=4,microbatches=4")),
    ],
)
def test_the_gpt_example_is_the_same_under_every_strategy(gpt: Job, strategy: str) -> None:
    report = verify(gpt, devices=4, strategy=strategy, steps=2)
    assert report.agrees, report
    assert report.compared > 300


def test_accumulated_gradients_are_those_of_the_same_parts(model: str) -> None:
    report = verify(loaded(f"{model}:make(steps=3)"), devices=2)
    assert report.agrees, report


def wrong_rule(monkeypatch: pytest.MonkeyPatch, cls: Any, **changes: Any) -> None:
    right = cls.rule

    def wrong(self: Any, *types: Any) -> Any:
        good = right(self, *types)
        return replace(good, **{name: change(good.spec) if callable(change) else change for name, change in changes.items()})

    monkeypatch.setattr(cls, "rule", wrong)


def test_a_wrong_rule_is_named(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = loaded(f"{model}:job")
    wrong_rule(monkeypatch, Softmax, spec=str.lower)
    report = verify(job, devices=2)
    assert report.difference is not None
    text = str(report)
    assert report.difference.name == "chosen" and report.difference.step == 0
    assert "Softmax" in text and "model.py:14" in text and "S(1)" in text and "the op is wrong in this layout" in text


@pytest.mark.parametrize("cls", [MatMul, BiasAdd, LayerNorm])
def test_a_kernel_that_is_wrong_on_pieces_only_is_named(gpt: Job, cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.bind

    def wrong(op: Op, target: Target, device: Any, inputs: Any, outputs: Any) -> Any:
        """Half of what it should be where there are 16 rows: a quarter of the batch."""
        calls = right(op, target, device, inputs, outputs)
        return [*calls, (np.multiply, (outputs[0], 0.5, outputs[0]))] if isinstance(op, cls) and outputs[0].shape[0] == 16 else calls

    monkeypatch.setattr(registry, "bind", wrong)
    report = verify(gpt, devices=4, strategy="dp")
    assert report.difference is not None and "gpt.py" in str(report) and "the op is wrong in this layout" in str(report)
    assert isinstance(report.difference.node.op, cls)  # type: ignore[union-attr]


def test_unequal_copies_are_reported(gpt: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are the same on all ranks, but for a defect on one of them."""
    right = registry.bind

    def wrong(op: Op, target: Target, device: Any, inputs: Any, outputs: Any) -> Any:
        calls = right(op, target, device, inputs, outputs)
        spoiled = isinstance(op, AdamUpdate) and threading.current_thread().name.endswith("2")
        return [*calls, (np.add, (outputs[0], 1e-3, outputs[0]))] if spoiled else calls

    monkeypatch.setattr(registry, "bind", wrong)
    separate = Session()
    separate.settings.share_variables = False  # else there is only one copy
    report = verify(gpt, devices=4, strategy="dp", session=separate)
    assert report.difference is not None
    assert report.difference.name.startswith("variable") and "on rank 2" in report.difference.where


def test_tolerances_come_from_the_type_and_from_last_bits() -> None:
    whole = np.linspace(-2, 2, 9)
    assert 0 < allowed(whole, whole) < 1e-12
    assert 1e-6 < allowed(whole.astype(np.float32), whole.astype(np.float32)) < 1e-4
    assert allowed(whole, whole + 1e-3) > 1e-2
    assert allowed(np.arange(3), np.arange(3)) == 0
    assert allowed(np.arange(3), np.arange(3) + 1) == np.inf
    random = np.random.default_rng(0)
    assert 0 < apart(nudged(whole, random), whole)[0] < 1e-15
    assert apart(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == (np.inf, (1,))
    assert apart(np.array([np.inf, np.nan]), np.array([np.inf, np.nan]))[0] == 0


def test_the_command_prints_findings_and_its_exit_code(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with scope.using(root=scope.Root()):
        assert main(["verify", f"{model}:job", "--devices", "2", "--steps", "1"]) == 0
        assert "equal" in capsys.readouterr().out
        wrong_rule(monkeypatch, Softmax, spec=str.lower)
        assert main(["verify", f"{model}:job", "--devices", "2", "--steps", "1"]) == 1
        assert "DIFFERENT  step 0: chosen" in capsys.readouterr().out
        assert main(["verify", f"{model}:jop", "--devices", "2"]) == 1
        assert "did you mean" in capsys.readouterr().err


def test_arguments_may_come_from_a_file(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "two.npz", x=np.ones((2, 7, 6)), labels=np.zeros(7, int))
    np.savez(tmp_path / "wrong.npz", x=np.ones((7, 5)))
    with scope.using(root=scope.Root()):
        assert main(["verify", f"{model}:job", "--inputs", str(tmp_path / "two.npz")]) == 0
        assert main(["verify", f"{model}:job", "--inputs", str(tmp_path / "wrong.npz")]) == 1
    assert "argument x has shape [7, 5]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        pytest.param("consistent_strategy.py:train_job", 1, marks=pytest.mark.full),
        ("hybrid_lenet.py:train_job", 1),
        ("hybrid_mlp.py:train_job", 2),
        ("hybrid_mlp_optimizer.py:train_job", 1),
        ("lenet_digits.py:make_jobs(2)[0]", 1),
        ("mirrored_strategy.py:make_train_job(9)", 1),
    ],
)
def test_jobs_of_examples_agree(target: str, steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    with scope.using(root=scope.Root()):
        code = main(["verify", f"{ROOT}/examples/{target}", "--devices", "2", "--steps", str(steps)])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "option", "value"), [("configs/mirrored.yaml", "--inputs", "batch.npz"), ("examples/gpt.py:job", "--set", "optimizer.lr=1")]
)
def test_options_for_another_kind_of_target_raise(target: str, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{ROOT}/{target}", option, value]) == 2
    assert f"jobflow verify {option}: " in capsys.readouterr().err


@pytest.mark.mpi
@pytest.mark.parametrize("strategy", ["2x2", "module", *(pytest.param(name, marks=pytest.mark.full) for name in ("zero3", "pp"))])
def test_under_mpi(strategy: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-m", "jobflow", "verify", GPT, "--devices", "4", "--strategy", strategy, "--ranks", "mpi", "--steps", "1"]
    if strategy == "module":
        (tmp_path / "model.py").write_text(MODEL)
        command[4:9] = [f"{tmp_path}/model.py:of_module()", "--devices", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("equal") == (2 if strategy == "module" else 1), "every client says so; modules make clients of all ranks"
