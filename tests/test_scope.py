"""The one context variable, and the `with` blocks that change it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import jobflow
from jobflow import scope
from jobflow.core.errors import JobError, PlacementError
from jobflow.core.layout import Placement
from jobflow.engine.device_names import ranks_of
from jobflow.engine.sizes import folded
from jobflow.runtime.collection import collection_paused


class Nobody:
    """An interpreter that takes no ops: a job's body is being run."""

    def apply(self, op: Any, inputs: Any, name: Any) -> tuple[Any, ...]:
        raise AssertionError


@pytest.fixture
def inside() -> Any:
    """As in the body of a job of a session with 4 CPU devices."""
    jobflow.clear_default_session()
    jobflow.config.cpu_device_num(4)
    with scope.using(interpreter=Nobody(), placement=Placement("cpu", (0, 1, 2, 3))) as entered:
        yield entered
    jobflow.clear_default_session()


def test_changes_last_as_long_as_their_block() -> None:
    before = scope.current()
    with scope.using(stage=3) as changed:
        assert (changed.stage, scope.current()) == (3, changed)
    assert scope.current() is before


def test_changes_are_undone_by_errors() -> None:
    before = scope.current()
    with pytest.raises(ZeroDivisionError), scope.using(stage=3):
        _ = 1 / 0
    assert scope.current() is before


def test_a_misspelt_field() -> None:
    with pytest.raises(TypeError, match="stge"), scope.using(stge=3):
        pass


def test_threads_begin_outside() -> None:
    stages: list[Any] = []
    with scope.using(stage=3):
        thread = threading.Thread(target=lambda: stages.append(scope.current().stage))
        thread.start()
        thread.join()
    assert stages == [None]


def test_views(inside: Any) -> None:
    with scope.mirrored_view():
        assert scope.current().view == "mirrored"
        with scope.consistent_view():
            assert scope.current().view == "consistent"
        assert scope.current().view == "mirrored"
    assert scope.current().view == "consistent"


def test_namespaces_nest(inside: Any) -> None:
    with scope.namespace("a"), scope.namespace("b"):
        assert scope.current().full_name("w") == "a-b-w"
    assert scope.current().full_name("w") == "w"


def test_a_block_may_be_entered_again(inside: Any) -> None:
    block = scope.namespace("a")
    with block, block:
        assert scope.current().full_name("w") == "a-a-w"
    with block:
        assert scope.current().full_name("w") == "a-w"
    assert scope.current() is inside


def test_placements(inside: Any) -> None:
    with scope.placement("cpu", "0:1-2"):
        assert scope.current().placement == Placement("cpu", (1, 2))
        with scope.placement("cpu", ["0:3", "0:0"]):
            assert scope.current().placement == Placement("cpu", (3, 0))
    with scope.placement("cpu", "0:0-3", hierarchy=(2, 2)):
        assert str(scope.current().placement) == "cpu[0-3:2x2]"


@pytest.mark.parametrize(
    "devices",
    [[[0, 1], [2, 3]], (("0:0", "0:1"), ("0:2", "0:3")), [["0:0-1"], ["0:2-3"]], [["0:0,1"], [2, "0:3"]]],
    ids=str,
)
def test_rows_are_a_mesh(inside: Any, devices: Any) -> None:
    with scope.placement("cpu", devices):
        assert scope.current().placement == Placement("cpu", (0, 1, 2, 3), (2, 2))


def test_numbers_are_ranks(inside: Any) -> None:
    with scope.placement("cpu", [3, 1]):
        assert scope.current().placement == Placement("cpu", (3, 1))
    with scope.placement("cpu", [[[0], [1]], [[2], [3]]]):
        assert scope.current().placement == Placement("cpu", (0, 1, 2, 3), (2, 2, 1))


def test_a_mesh_folds_from_outside(inside: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight devices where there are four; inner rows stay together."""
    with scope.placement("cpu", "0:0-7", hierarchy=(4, 2)):
        assert scope.current().placement == Placement("cpu", (0, 1, 2, 3), (2, 2))
    assert [folded((2, 2), 2), folded((2, 4), 2), folded((2, 2, 2), 3), folded((8,), 4)] == [(1, 2), (2, 1), (3, 1, 1), (4,)]


def test_outside_of_jobs_a_placement_is_a_value() -> None:
    before = scope.current()
    with scope.placement("gpu", "0:0-7") as placement:
        assert scope.current().placement is None
    assert repr(placement) == "jobflow.scope.placement('gpu', ['0:0-7'])"
    assert scope.current().root is before.root


def test_a_hierarchy_that_the_devices_do_not_fill(inside: Any) -> None:
    message = r"placement\('cpu', \['0:0-3'\], \(2, 3\)\) at test_scope\.py:\d+: hierarchy \(2, 3\) needs 6 devices; got 4"
    with pytest.raises(PlacementError, match=message), scope.placement("cpu", "0:0-3", (2, 3)):
        pass


@pytest.mark.parametrize(
    ("tag", "devices", "message"),
    [
        ("cpu", "0-3", r'placement\(\'cpu\', \[\'0-3\'\]\) at test_scope\.py:\d+: cannot read "0-3"; write "machine:device" or "machine:first-last"'),
        ("cpu", ["0:0", "0:0"], r"a device occurs twice"),
        ("gpu", "0:9", r"device 9 does not exist, because there are 4"),
        ("gpu", "3:0", r'"3:0" names machine 3, but there is 1 machine; write "0:device" or a rank'),
        ("cpu", [[0, 1], [2]], r"the rows of a mesh must have equal lengths; got rows of 2, 1 devices"),
        ("cpu", [[0, 1], 2], r"the list mixes lists and single devices; write a mesh as lists of equal length"),
        ("cpu", [0.5], r"cannot read 0\.5; write"),
        ("cpu", [-1], r"cannot read -1; write"),
    ],
)
def test_devices_that_make_no_placement(inside: Any, tag: str, devices: Any, message: str) -> None:
    with pytest.raises(PlacementError, match=message), scope.placement(tag, devices):
        pass
    assert scope.current() is inside


def test_a_namespace_is_a_text() -> None:
    for wrong in ("", 3):
        with pytest.raises(JobError, match=r"namespace at test_scope\.py:\d+: the name must be a nonempty string, not"):
            scope.namespace(wrong)  # type: ignore[arg-type]


def test_a_placement_needs_a_session() -> None:
    with scope.using(root=scope.Root()), pytest.raises(JobError, match="no session provides the devices"):
        scope.placement("cpu", "0:0").resolve()


@pytest.mark.parametrize("on", [True, False])
def test_collection_is_paused_and_then_as_before(on: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        switches: list[bool] = [on]
        patch.setattr(gc, "isenabled", lambda: switches[-1])
        patch.setattr(gc, "disable", lambda: switches.append(False))
        patch.setattr(gc, "enable", lambda: switches.append(True))
        with pytest.raises(ZeroDivisionError), collection_paused():
            assert switches[-1] is False
            raise ZeroDivisionError
        assert switches[-1] is on


def test_a_placement_names_devices_of_each_machine() -> None:
    assert ranks_of("gpu", "1:0-1", 2, 4, "placement") == [4, 5]
    for entry, message in (("0:5", "device 5 of machine 0, but each machine has 4 devices"), ("2:0", r"machine 2, but there are 2 machines; set")):
        with pytest.raises(PlacementError, match=message):
            ranks_of("gpu", entry, 2, 4, "placement")
    assert ranks_of("cpu", "2:5", 2, 4, "placement") == [13]  # wraps around later
