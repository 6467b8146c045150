"""A configuration is what its files and settings say, and says where each value is from."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobflow.trainer.config import DEFAULT, ConfigErrors, Origin, load

GOOD = """\
model:
  builder: jobflow.models:lenet
data:
  train: {reader: digits, split: train}
  validation: {reader: digits, split: validation}
  batch_size: 64
optimizer: {name: adam, lr: 1e-3}
training: {epochs: 2}
"""


def written(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{next(iter(files))}.yaml")


def test_values_have_places_and_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, good=GOOD)
    loaded = load(file)
    assert loaded.config.optimizer.lr == 0.001 and loaded.origin("optimizer.lr") == Origin(file, 7, 29)
    assert loaded.config.name == "good" and loaded.config.output == "runs/good" and loaded.config.checkpoint.directory == "runs/good/checkpoints"
    assert loaded.config.data.evaluation_batch_size == 64 and loaded.config.evaluation.every_epochs == 1
    assert loaded.origin("name") == loaded.origin("logging.every_steps") == DEFAULT
    assert loaded.builder is not None and loaded.builder.__name__ == "lenet"


def test_a_wrong_key_reads_as_documented(tmp_path: Path) -> None:
    file = written(tmp_path, lenet=GOOD.replace("batch_size", "bach_size"))
    with pytest.raises(ConfigErrors) as raised:
        load(file)
    assert str(raised.value).startswith(f'{file}:6:3: unknown key "bach_size" in data; did you mean "batch_size"?')
