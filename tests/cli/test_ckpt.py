"""`jobflow ckpt`: output and exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import jobflow as flow
from jobflow.cli import main
from jobflow.storage import checkpoint_reader as reading
from jobflow.storage.store import load, save


@pytest.fixture
def series(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    for step in (20, 3):
        tensors = {"conv-weight": random.normal(size=(3, 2)).astype(np.float32), "bias": np.ones(3), "train_step": np.array([step])}
        save(tmp_path / "all" / f"step-{step}", tensors, {"step": step, "metrics": {"loss": 0.25}, "position": {"epoch": 1, "sample": 64}})
    return tmp_path / "all"


def damage(checkpoint: Path) -> None:
    file = load(checkpoint).stored["bias"].file
    file.write_bytes(file.read_bytes().replace(np.float64(1).tobytes(), np.float64(2).tobytes(), 1))


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_ls_is_a_table_by_step(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "ls", str(series)]) == 0
    head, *lines = rows(capsys.readouterr().out)
    assert head == ["name", "step", "time", "size", "tensors", "metrics", "state"]
    assert [(line[0], line[1], line[-3:]) for line in lines] == [
        ("step-3", "3", ["3", "loss=0.25", "intact"]),
        ("step-20", "20", ["3", "loss=0.25", "intact"]),
    ]


def test_ls_shows_damaged_and_unfinished_checkpoints(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(series / "step-3")
    (series / "step-20" / "manifest.json").write_text("{}")
    (series / ".step-21.saving.host.1.abc").mkdir()
    assert main(["ckpt", "ls", str(series)]) == 0
    _, third, twentieth, left = capsys.readouterr().out.splitlines()
    assert "step-3" in third and "damaged: " in third and '"bias"' in third
    assert "step-20" in twentieth and "manifest.json is damaged" in twentieth
    assert left.startswith("1 unfinished: .step-21.saving.host.1.abc;")
    text = (series / "step-3" / "manifest.json").read_text()
    (series / "step-20" / "manifest.json").write_text(text.replace('"version": 2', '"version": 3'))
    assert main(["ckpt", "ls", str(series)]) == 0
    twentieth = capsys.readouterr().out.splitlines()[2]
    assert "newer format: " in twentieth and "damaged:" not in twentieth
    assert main(["ckpt", "verify", str(series / "step-20")]) == 1
    assert "step-20: NEWER FORMAT\n" in capsys.readouterr().out
    assert main(["ckpt", "ls", "--quick", str(series)]) == 0
    assert "complete" in capsys.readouterr().out.splitlines()[1]


def test_show(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "show", str(series / "step-20")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{series / 'step-20'}: 3 of 3 tensors, 56 B\n")
    assert ["conv-weight", "float32[3,2]", "24"] in [line[:3] for line in rows(out)]
    assert "\nposition:\n  epoch: 1\n  sample: 64\n" in out
    assert main(["ckpt", "show", str(series / "step-20"), "--names", "b*"]) == 0
    out = capsys.readouterr().out
    assert "1 of 3 tensors" in out and "conv-weight" not in out


def test_verify(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "verify", str(series)]) == 0
    assert [line[-1] for line in rows(capsys.readouterr().out)] == ["intact", "intact"]
    damage(series / "step-3")
    assert main(["ckpt", "verify", str(series / "step-20"), str(series / "step-3")]) == 1
    intact, damaged, what = capsys.readouterr().out.splitlines()
    assert intact.endswith("step-20: intact") and damaged.endswith("step-3: DAMAGED")
    assert '"bias"' in what and ".safetensors" in what and "at bytes " in what
    assert main(["ckpt", "verify", str(series / "step-4")]) == 1


def test_diff(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "diff", str(series / "step-3"), str(series / "step-20")]) == 1
    out = capsys.readouterr().out
    assert ["train_step", "int64[1]", "same", "type", "1", "17", "0.85"] in rows(out)
    assert ["step", "3", "20"] in rows(out) and "metrics" not in out and "bias" not in out
    assert out.endswith("2 of 3 tensors differ\n")
    assert main(["ckpt", "diff", str(series / "step-3"), str(series / "step-20"), "--names", "bias"]) == 0
    assert main(["ckpt", "diff", str(series / "step-3"), str(series / "step-20"), "--atol", "20"]) == 0
    assert main(["ckpt", "diff", str(series / "step-3"), str(series / "step-20"), "--names", "weight"]) == 1
    assert 'no tensor matches "weight"' in capsys.readouterr().err


def test_export_and_convert_and_back(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root = series / "step-20", series.parent
    for words in (
        ["export", source, root / "a.npz"],
        ["convert", source, root / "old"],
        ["convert", root / "a.npz", root / "b"],
        ["convert", root / "old", root / "c"],
        ["convert", root / "old", root / "d.npz"],
        ["convert", root / "d.npz", root / "e", "--to", "legacy"],
    ):
        assert main(["ckpt", *map(str, words)]) == 0, capsys.readouterr().err
    assert (root / "old" / "bias" / "meta").exists() and (root / "e" / "bias" / "meta").exists()
    for name in ("a.npz", "old", "b", "c", "d.npz", "e"):
        assert main(["ckpt", "diff", str(source), str(root / name)]) == 0, name


def test_types_of_another_checkpoint(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, old = series / "step-3", series.parent / "old"
    assert main(["ckpt", "convert", str(source), str(old)]) == 0
    for meta in old.glob("*/meta"):
        meta.unlink()
    assert main(["ckpt", "convert", str(old), str(series.parent / "new")]) == 1
    assert "the type of tensor" in capsys.readouterr().err
    assert main(["ckpt", "convert", str(old), str(series.parent / "new"), "--types-from", str(source)]) == 0
    assert main(["ckpt", "diff", str(source), str(series.parent / "new")]) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ls", "nowhere"], "nowhere is not a directory"),
        (["ls", "."], ". has no checkpoint"),
        (["show", "nowhere"], "there is no such directory"),
        (["export", "nowhere", "x.txt"], "ends in .npz or .safetensors"),
    ],
)
def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ckpt", *words]) == 1
    assert text in capsys.readouterr().err


def test_errors_of_the_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "ls", "x" * 300]) == 1
    assert "CheckpointError: jobflow ckpt ls: [Errno 36] File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["list"], ["diff", "a"], ["diff", "a", "b", "--rtol", "-1"], ["convert", "a", "b", "--to", "zip"]])
def test_wrong_command_lines(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["ckpt", *words])
    assert stopped.value.code == 2
    assert "usage: jobflow ckpt" in capsys.readouterr().err


def test_show_lists_the_shards_of_several_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(2)

    @flow.global_function("predict")
    def job() -> flow.typing.Numpy:
        return flow.math.reduce_sum(flow.get_variable("split", (5, 3), flow.float32, flow.ones_initializer(), distribute=flow.distribute.split(0)))

    job()
    flow.checkpoint.save(str(tmp_path / "c"))
    assert main(["ckpt", "show", str(tmp_path / "c")]) == 0
    table = rows(capsys.readouterr().out)
    assert ["split", "float32[5,3]", "60", "cpu[0-1]:S(0)", "2", "shards"] in table
    assert ["[0:3,", "0:3]", "tensors-00000-00001.safetensors"] in table and ["[3:5,", "0:3]", "tensors-00001-00001.safetensors"] in table
    for target in ("w.npz", "old"):
        assert main(["ckpt", "convert", str(tmp_path / "c"), str(tmp_path / target)]) == 0
        assert main(["ckpt", "diff", str(tmp_path / "c"), str(tmp_path / target)]) == 0


def test_all_extra_fields_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "c", {"w": np.zeros(1)}, {"step": "last", "layout": "free", "metrics": [1, None], "on": True})
    save(tmp_path / "d", {"w": np.zeros(1)}, {"step": 3})
    assert main(["ckpt", "ls", str(tmp_path)]) == 0 and main(["ckpt", "show", str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out.endswith("\nstep: last\nlayout: free\nmetrics:\n- 1\n- null\n'on': true\n")


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_checkpoint_that_a_training_removes_or_replaces_meanwhile_is_not_damaged(
    command: str, series: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training does so between the reads of the manifest and of the tensors."""
    opened = reading.Opened.check

    def late(self: reading.Opened) -> None:
        opened(self)
        if self.root.name == "step-3" and self.root.exists():
            shutil.rmtree(self.root)
        if self.root.name == "step-20" and not (series / "once").exists():
            (series / "once").touch()
            save(self.root, {"bias": np.full(3, 7.0)}, {"step": 20}, replace=True)

    monkeypatch.setattr(reading.Opened, "check", late)
    assert main(["ckpt", command, str(series)]) == 0
    output = capsys.readouterr().out
    assert "amaged" not in output and "DAMAGED" not in output and "intact" in next(line for line in output.splitlines() if "step-20" in line)
