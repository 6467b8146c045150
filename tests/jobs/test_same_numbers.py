"""A program has equal losses on one device, on threads and on ranks, for any client."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import curves
import numpy as np
import pytest
from processes import ROOT, Exited, run

from jobflow.kernels import machine_class, registry
from jobflow.kernels.target import target_of
from jobflow.runtime.world import environment

PROGRAMS = Path(__file__).with_name("programs")

#: relative; of float32 and of float64
SINGLE, DOUBLE = 1e-5, 1e-9
#: a cross entropy near zero is the logarithm of a number near 1, of which float32 knows so much
LAST_PLACE = 1e-7
#: those that classes of machines compute in different ways: by matrix registers, and by what convolutions cost
BY_CLASS = ["wide_mlp", "consistent_lenet"]


pytestmark = pytest.mark.usefixtures("fresh")


@functools.cache
def reference(name: str) -> tuple[float, ...]:
    """Return the curve of one device."""
    return tuple(curves.run(name, 1))


#: of the programs that differ in the model or the optimizer alone, clients that are several run every second one, and one client the others
SEVERAL = {name: i % 2 == 0 for i, name in enumerate(curves.PROGRAMS)}


@functools.cache
def started(ranks: int, client: str, full: bool) -> tuple[Exited, list[dict[str, list[float]]]]:
    """Return all curves from one start of mpiexec, one set per client; the output of a failed start is cached too."""
    chosen = [name for name in curves.PROGRAMS if full or SEVERAL[name] == (client == "multi")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "curves.json"
        ended = run(PROGRAMS / "curves.py", str(out), client, *chosen, ranks=ranks)
        return ended, [json.loads(path.read_text()) for path in sorted(Path(folder).glob("curves.json*"))]


def of_ranks(ranks: int, client: str, name: str, full: bool) -> list[list[float]]:
    """Return the curve of every client."""
    ended, all_curves = started(ranks, client, full)
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert len(all_curves) == (1 if client == "single" else ranks)
    return [curves[name] for curves in all_curves]


def check(name: str, losses: list[float]) -> None:
    expected = reference(name)
    assert len(losses) == curves.STEPS
    single = name not in curves.DOUBLE
    np.testing.assert_allclose(losses, expected, rtol=SINGLE if single else DOUBLE, atol=LAST_PLACE if single else 0)


@pytest.mark.parametrize("name", curves.PROGRAMS)
def test_the_curve_is_not_constant(name: str) -> None:
    """Check that the model learns from batch to batch, so that the other tests compare something."""
    curve = np.array(reference(name))
    assert np.isfinite(curve).all() and len(set(curve)) == curves.STEPS
    if name not in curves.SLOW:
        assert curve[-5:].mean() < 0.97 * curve[:3].mean()


@pytest.mark.parametrize("devices", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 4))])
@pytest.mark.parametrize("name", curves.PROGRAMS)
def test_threads(name: str, devices: int) -> None:
    check(name, curves.run(name, devices))


@pytest.mark.parametrize("name", [name if i % 8 == 5 else pytest.param(name, marks=pytest.mark.full) for i, name in enumerate(curves.PROGRAMS)])
@pytest.mark.parametrize("tier", ["numpy", "reference"])
def test_tiers_of_kernels(name: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the other tests run compiled loops."""
    assert target_of("cpu").tiers[0] == "llvm"
    reference(name)
    monkeypatch.setenv(environment.KERNELS, tier)
    with mock.patch.object(registry, "choose", wraps=registry.choose) as chosen:
        check(name, curves.run(name, 1))
    assert {call.args[1].tiers[0] for call in chosen.call_args_list} == {tier}


@pytest.mark.parametrize("cpu", machine_class.CLASSES)
def test_classes_of_machines(cpu: machine_class.MachineClass, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Run in a separate process, which treats this CPU as one of the class."""
    if machine_class.CLASSES.index(cpu) > machine_class.CLASSES.index(machine_class.own_class()):
        pytest.skip(f"this CPU is {machine_class.own_class()}")
    out, names = tmp_path / "curves.json", [*curves.PROGRAMS] if pytestconfig.getoption("--full") else BY_CLASS
    alone = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # with several threads OpenBLAS multiplies
    subprocess.run(
        [sys.executable, PROGRAMS / "curves.py", out, "single", *names], env={**os.environ, **alone, machine_class.SETTING: cpu}, check=True
    )
    results = json.loads(out.read_text())
    assert [*results] == names
    for name in names:
        check(name, results[name])


def _by_turns(several: bool) -> list[Any]:
    """Return all programs; without --full only the clients' own run."""
    return [name if mine == several else pytest.param(name, marks=pytest.mark.full) for name, mine in SEVERAL.items()]


@pytest.mark.mpi
@pytest.mark.parametrize("name", _by_turns(several=False))
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_ranks(name: str, ranks: int, pytestconfig: pytest.Config) -> None:
    (losses,) = of_ranks(ranks, "single", name, full=pytestconfig.getoption("--full"))
    check(name, losses)


@pytest.mark.mpi
@pytest.mark.parametrize("name", _by_turns(several=True))
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_multi_client(name: str, ranks: int, pytestconfig: pytest.Config) -> None:
    first, *others = of_ranks(ranks, "multi", name, full=pytestconfig.getoption("--full"))
    check(name, first)
    assert all(other == first for other in others), "clients were told different losses"


def test_uneven_parts_are_weighted_by_their_rows() -> None:
    """The curve equals the curve of one batch; equal weights per device would change it."""
    np.testing.assert_allclose(reference("uneven_lenet"), reference("mirrored_lenet"), rtol=0, atol=0)
    check("uneven_lenet", curves.run("uneven_lenet", 4))


def test_runs_are_repeatable() -> None:
    """Run the same program twice: the bits are equal, on threads too."""
    for devices in (1, 3):
        assert curves.run("gpt", devices) == curves.run("gpt", devices)
