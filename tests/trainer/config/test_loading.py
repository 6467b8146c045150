"""Loading: the merge of files and settings, and the source of each value."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import yaml

from jobflow.core.errors import ConfigError
from jobflow.trainer.config import DEFAULT, ConfigErrors, Origin, Problem, load

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
    assert loaded.origin("name") == loaded.origin("checkpoint") == loaded.origin("logging.every_steps") == DEFAULT
    assert loaded.builder is not None and loaded.builder.__name__ == "lenet"


def test_a_wrong_key_reads_as_documented(tmp_path: Path) -> None:
    file = written(tmp_path, lenet=GOOD.replace("batch_size", "bach_size"))
    with pytest.raises(ConfigErrors) as raised:
        load(file)
    assert str(raised.value).startswith(f'{file}:6:3: unknown key "bach_size" in data; did you mean "batch_size"?')


def test_origins_lead_through_files_settings_references_and_lists(tmp_path: Path) -> None:
    over = "extends: base.yaml\noptimizer:\n  lr: 0.5\noutput: ${name}-${env:HOME}\nmodel: {arguments: {classes: 3}}\n"
    file = written(tmp_path, over=over, base=GOOD)
    base = str(tmp_path / "base.yaml")
    loaded = load(file, ["seed=3", "data.batch_size=32"])
    places = {
        key: str(loaded.origin(key)) for key in ("optimizer.lr", "optimizer.name", "output", "model.arguments.classes", "seed", "data.batch_size")
    }
    assert places == {
        "optimizer.lr": f"{file}:3",
        "optimizer.name": f"{base}:7",
        "output": f"{file}:4",
        "model.arguments.classes": f"{file}:5",
        "seed": "--set seed=3",
        "data.batch_size": "--set data.batch_size=32",
    }
    assert {key: str(loaded.origin(key)) for key in places} == places
    assert loaded.files == (file, base) and loaded.config.name == "over" and loaded.config.data.evaluation_batch_size == 32


def test_messages_name_files_as_the_user_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs" / "deep").mkdir(parents=True)
    Path("configs/base.yaml").write_text(GOOD)
    Path("configs/deep/over.yaml").write_text("extends: ../base.yaml\n")
    assert load(Path("configs/deep/over.yaml")).files == ("configs/deep/over.yaml", "configs/base.yaml")


def test_a_file_that_two_others_extend_is_read_and_judged_once(tmp_path: Path) -> None:
    wrong = GOOD.replace("1e-3", "fast")
    file = written(tmp_path, top="extends: [left.yaml, right.yaml]\n", left="extends: base.yaml\n", right="extends: base.yaml\n", base=wrong)
    with pytest.raises(ConfigErrors) as raised:
        load(file)
    assert [(problem.file, problem.line, problem.column) for problem in raised.value.problems] == [(str(tmp_path / "base.yaml"), 7, 29)]


def test_what_settings_get_wrong_is_at_the_setting(tmp_path: Path) -> None:
    file = written(tmp_path, good=GOOD)
    with pytest.raises(ConfigErrors) as raised:
        load(file, ["optimizer.lr=fast", "strategy.accumulation=3", "optimiser.beta1=0.5", "training.steps=3"])
    assert [str(problem).splitlines()[0] for problem in raised.value.problems] == [
        '--set optimizer.lr=fast: optimizer.lr must be a number; got the text "fast"',
        "--set strategy.accumulation=3: data.batch_size 64 does not divide into strategy.accumulation 3",
        '--set optimiser.beta1=0.5: unknown key "optimiser" at the top; did you mean "optimizer"?',
        "--set training.steps=3: training has epochs and steps; remove one of them, with null if another file contains it",
    ]


def test_values_inside_of_a_list_that_a_setting_replaced_are_at_the_setting(tmp_path: Path) -> None:
    file = written(tmp_path, good=f"{GOOD}callbacks:\n  - callback: own:Stop\n")
    for setting in ("callbacks=[json:Stob]", "callbacks.0={callback: json:Stob}"):
        with pytest.raises(ConfigErrors, match=re.escape(f"--set {setting}: json has no Stob")):
            load(file, [setting])


def test_the_environment_is_checked_only_on_request(tmp_path: Path) -> None:
    before = list(sys.path)
    file = written(tmp_path, good=GOOD.replace("jobflow.models:lenet", "nowhere:net").replace("reader: digits", "reader: rods"))
    loaded = load(file, look_outside=False)
    assert (
        loaded.builder is None and loaded.config.model.builder == "nowhere:net" and loaded.config.data.train.reader == "rods" and sys.path == before
    )
    with pytest.raises(ConfigErrors, match="there is no module nowhere"):
        load(file)
    sys.path[:] = before


def test_builders_in_the_folder_of_the_file_are_imported_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    (tmp_path / "net_beside_the_file.py").write_text("def net(images, labels=None, *, classes: int = 10): ...\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('a module of the same name as one that is installed')\n")
    file = written(tmp_path, good=GOOD.replace("jobflow.models:lenet", "net_beside_the_file:net"))
    loaded = load(file)
    assert loaded.builder is sys.modules.pop("net_beside_the_file").net
    assert sys.path.index(str(tmp_path)) > len(before) - 1, "behind what is installed"


@pytest.mark.parametrize(("setting", "package"), [("strategy.precision=bfloat16", "ml_dtypes"), ("logging.tensorboard=true", "tensorboardX")])
def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, package: str) -> None:
    file, find_spec = written(tmp_path, good=GOOD), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: True if name == package else find_spec(name, *rest))
    load(file, [setting])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find_spec(name, *rest))
    with pytest.raises(ConfigErrors, match=rf"needs the package {package}: pip install"):
        load(file, [setting])


def test_errors_are_config_errors_that_travel_between_processes() -> None:
    error = ConfigErrors([Problem("a.yaml", 3, 5, "b", "b is wrong", "b: c, d"), Problem("--set b=1", 0, 0, "b", "and so is this")])
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ConfigError) and again.problems == error.problems and str(again) == str(error)
    assert error.told == "ConfigError: a.yaml:3:5: b is wrong\n    b: c, d\nConfigError: --set b=1: and so is this"


def test_a_dict_loads_as_the_file_with_its_content(tmp_path: Path) -> None:
    dictionary = {"output": tmp_path, **yaml.safe_load(GOOD.replace("1e-3", "0.001")), "name": "\u2028\U0001f600${seed}"}
    dictionary["optimizer"] = MappingProxyType({**dictionary["optimizer"], "clip_norm": np.float32(0.5)})
    settings = ["seed=3", "training.epochs=5"]
    loaded = load(dictionary, {"seed": 3, "training": {"epochs": 5}})
    file = written(tmp_path, good=GOOD)
    expected = load(file, [*settings, f"output={tmp_path}", "optimizer.clip_norm=0.5", 'name="\\u2028\U0001f600${seed}"'])
    assert loaded.plain == expected.plain and loaded.config.name == "\u2028\U0001f6003" and loaded.files == ("<dict>",)
    extended = load({"extends": os.path.relpath(file)})
    assert extended.config.name == "run" and extended.config.optimizer.lr == 0.001 and extended.origin("optimizer.lr").line == 7


CYCLE: dict[str, Any] = {}
CYCLE["model"] = CYCLE


@pytest.mark.parametrize(
    ("source", "settings", "words"),
    [
        ({"optimizer": {"name": "adam", "lrr": 1}}, [], '<dict>: unknown key "lrr" in optimizer (adam); did you mean "lr"?'),
        ({"optimizer": {"name": "adam", "lr": "0.1"}}, [], '<dict>: optimizer.lr must be a number; got the text "0.1"'),
        ({}, [], "<dict>: "),
        ({"model": {1, 2}}, [], "<dict>: a set is not a value of a configuration; pass texts, numbers"),
        (CYCLE, [], "<dict>: Circular reference detected; pass texts"),
        ({(1, 2): 3}, [], "<dict>: keys must be str"),
        (["run.yaml"], [], "configuration: ['run.yaml'] is a list; pass the path of a YAML file, or a dict with its content"),
        (None, [], "configuration: None is a NoneType; pass the path"),
        ("good.yaml", "seed=3", 'settings: \'seed=3\' is not a list of texts; pass ["optimizer.lr=0.1"] or {"optimizer.lr": 0.1}'),
        ("good.yaml", [("seed", 3)], "settings: [('seed', 3)] is not a list of texts"),
        ("good.yaml", {"seed": {1}}, "settings: seed: a set is not a value of a configuration"),
        ("good.yaml", {"seeed": 1}, '--set seeed=1: unknown key "seeed" at the top; did you mean "seed"?'),
    ],
)
def test_python_values_that_are_no_configuration_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, settings: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, good=GOOD)
    with pytest.raises(ConfigError) as raised:
        load(source, settings)
    assert words in str(raised.value)


def test_a_configuration_does_not_change(tmp_path: Path) -> None:
    config = load(written(tmp_path, good=GOOD)).config
    with pytest.raises(ValueError, match="frozen"):
        config.optimizer.lr = 3.0
    assert config == load(written(tmp_path, good=GOOD)).config


def test_pydantic_stays_in_its_place() -> None:
    package = Path(__file__).parents[3] / "jobflow"
    users = {
        path.relative_to(package).parent for path in package.rglob("*.py") if re.search(r"^\s*(from|import) pydantic", path.read_text(), re.MULTILINE)
    }
    assert users == {Path("trainer/config")}
