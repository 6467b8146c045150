"""Loads of checkpoints: those without effect raise, partial ones print a notice, and a failed load changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import STRICT, run

import jobflow as flow
import jobflow.typing as tp

PROGRAMS = Path(__file__).with_name("programs")

REFUSED = {
    "foreign": ("foreign", "manifest.json", "loads.py:"),
    "missing": ("missing", "no such directory", "loads.py:"),
    "another model": ('"a"', '"conv-weight"', "loads.py:"),
    "another legacy model": ('"a"', '"conv-weight"', "loads.py:"),
    "one unknown name of two": ('"c"', "loads.py:"),
    "another shape": ('"b"', "float32[2]", "float32[3]", "loads.py:"),
}
LOADED = {
    "unknown names": {"a": 0.0, "b": 0.0},
    "nothing": {"a": 0.0, "b": 0.0},
    "some names": {"a": 2.0, "b": 0.0},
    "some of a checkpoint": {"a": 2.0, "b": 3.0},
    "some of a legacy checkpoint": {"a": 4.0, "b": 3.0},
    "all": {"a": 3.0, "b": 3.0},
}
#: per notice, the names in it
NOTICES = [('"c"', '"d"'), ('"c"',), ('"a"', '"c"'), ('"b"', '"c"')]


@pytest.mark.parametrize(
    ("devices", "ranks"), [("1", 0), ("2", 0), pytest.param("single", 2, marks=pytest.mark.mpi), pytest.param("multi", 2, marks=pytest.mark.mpi)]
)
def test_a_load_reports_what_it_does_not_restore(tmp_path: Path, devices: str, ranks: int) -> None:
    ended = run(PROGRAMS / "loads.py", str(tmp_path), devices, ranks=ranks, environment=STRICT)
    assert ended.code == 0, ended.err
    lines = list(dict.fromkeys(ended.out.splitlines()))
    assert len(lines) == len(REFUSED) + len(LOADED)
    for line, (what, words) in zip(lines, REFUSED.items(), strict=False):
        assert line.startswith(f"{what} refused {{'a': 0.0, 'b': 0.0}}") and all(word in line for word in words), line
    assert lines[len(REFUSED) :] == [f"{what} loaded {values}" for what, values in LOADED.items()]
    notices = ended.err.splitlines()
    assert len(notices) == len(NOTICES)
    for notice, names in zip(notices, NOTICES, strict=True):
        assert "loads.py:" in notice and all(name in notice for name in names), notice


def test_a_program_without_variables_loads_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3,))) -> tp.Numpy:
        return flow.math.exp(x)

    assert job(np.zeros(3, np.float32)).tolist() == [1, 1, 1]
    flow.load_variables({"nope": np.ones(2)})
    assert '"nope"' in capsys.readouterr().err and not flow.get_all_variables()


class Scaled(flow.nn.Graph):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def build(self, x: Any) -> Any:
        return self.module(x)


def linear() -> Any:
    return flow.nn.Linear(2, 1, bias=False)


def test_a_nested_state_is_loaded_from_its_own_checkpoint_only(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("no checkpoint")
    with pytest.raises(flow.errors.CheckpointError, match=r"foreign.*manifest\.json"):
        flow.load(tmp_path / "foreign")
    flow.save({"weight": flow.ones(2)}, tmp_path / "structure")

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.get_variable("a", shape=(2,), initializer=flow.zeros_initializer())

    with pytest.raises(flow.errors.CheckpointError, match=r'"a".*"weight"'):
        flow.train.CheckPoint().load(str(tmp_path / "structure"))
    assert flow.get_all_variables()["a"].numpy().tolist() == [0, 0]


def test_a_state_without_keys_of_the_module_raises() -> None:
    module = linear()
    before = module.weight.numpy().copy()
    with pytest.raises(flow.errors.CheckpointError, match=r"weight.*module\.weight"):
        module.load_state_dict({"module.weight": flow.ones(1, 2)}, strict=False)
    assert (module.weight.numpy() == before).all()
    keys = module.load_state_dict({"weight": flow.ones(1, 2), "bias": flow.ones(1)}, strict=False)
    assert (keys.missing_keys, keys.unexpected_keys) == ([], ["bias"])
    assert module.weight.numpy().tolist() == [[1, 1]]
    assert module.load_state_dict({}, strict=False).missing_keys == ["weight"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_graph_loads_a_whole_state_or_nothing(strict: bool) -> None:
    class Two(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = linear(), linear()

        def build(self, x: Any) -> Any:
            return self.first(x) + self.second(x)

    graph = Two()
    before = graph.first.to(object).weight.numpy().copy()
    with pytest.raises(flow.errors.CheckpointError, match="weight"):
        graph.load_state_dict({"first": {"weight": flow.ones(1, 2)}, "second": {"weight": flow.ones(1, 3)}}, strict)
    assert (graph.first.to(object).weight.numpy() == before).all()
    with pytest.raises(flow.errors.CheckpointError, match=r'"(first|frist)"'):
        graph.load_state_dict({"frist": {"weight": flow.ones(1, 2)}}, strict)


def test_a_graph_raises_for_state_without_a_variable() -> None:
    state = {"module": {"weight": flow.ones(1, 2)}, "module.weight-m": flow.ones(1, 2)}
    graph = Scaled(linear())
    graph.load_state_dict(state)
    with pytest.raises(flow.errors.CheckpointError, match=r'"module\.weight-m"'):
        graph(flow.ones(1, 2))
    graph = Scaled(linear())
    graph.load_state_dict(state, strict=False)
    assert graph(flow.tensor(np.float32([[1, 2]]))).tolist() == [[3]]
