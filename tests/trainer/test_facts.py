"""Facts of the training samples in model arguments, splits that inherit a reader, and identities of predicted samples."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import loaded, run

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import ConfigError
from jobflow.data import samples_of
from jobflow.trainer.config import ConfigErrors, load
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.facts import sizes_of
from jobflow.trainer.predict import predict

CITIES = ("Bonn", "Trier", "Ulm")
CONFIG = """
model: {builder: "test_facts:Prices", arguments: {cities: "${facts.city.size}", features: "${facts.features.size}"}}
data:
  train:
    reader: csv
    path: PATH
    split: train
    fields: {features: [area, sold.month], city: city, labels: sold_twice}
    dtypes: {labels: int32}
    categories: [city]
    unknown: {city: index}
    missing: {area: mean}
    scale: standard
    dates: {sold: [month]}
  validation: {split: validation}
  batch_size: 9
optimizer: {name: adam, lr: 0.01}
training: {epochs: 1}
logging: {progress: none, report: false}
checkpoint: {asynchronous: false}
"""


class Prices(nn.Module):
    def __init__(self, cities: int, features: int) -> None:
        super().__init__()
        self.cities = nn.Embedding(cities, 3)
        self.scores = nn.Linear(3 + features, 2)

    def forward(self, features: Any, city: Any) -> Any:
        return self.scores(flow.cat([features, self.cities(city)], 1))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("houses")
    rows = [f"h{i},{'' if i % 7 == 1 else i * 3},{CITIES[i % 3]},2024-{i % 12 + 1:02d}-03,{i % 2}" for i in range(40)]
    (folder / "houses.csv").write_text("\n".join(["id,area,city,sold,sold_twice", *rows]) + "\n")
    (folder / "run.yaml").write_text(CONFIG.replace("PATH", str(folder / "houses.csv")))
    return folder / "run.yaml"


def test_facts_size_the_model_of_training_evaluation_and_prediction(config: Path, tmp_path: Path) -> None:
    one = loaded(config, tmp_path / "one")
    assert one.config.data.validation is not None and one.config.data.validation.arguments["missing"] == {"area": "mean"}
    _, recorder = run(one)
    _, other = run(loaded(config, tmp_path / "two", "strategy.devices=2"))
    np.testing.assert_allclose([*recorder.losses.values()], [*other.losses.values()], rtol=1e-6)
    assert len(recorder.losses) == 4 and evaluate(one, place="validation").samples == 4
    new = tmp_path / "new.csv"
    new.write_text("area,city,sold\n30,Rom,2024-01-01\n,Ulm,2024-05-05\n")
    ids = predict(one, Path(str(one.config.data.train.arguments["path"])), tmp_path / "all.csv").identities
    assert ids == {"row": list(range(40))} and predict(one, "validation", tmp_path / "held.npz").identities == {"row": [0, 10, 20, 30]}
    assert np.load(tmp_path / "held.npz")["row"].tolist() == [0, 10, 20, 30]
    named = loaded(config, tmp_path / "one", "data.train.ids=id")
    assert predict(named, "validation", tmp_path / "held.csv").identities == {"id": ["h0", "h10", "h20", "h30"]}
    table = list(csv.DictReader((tmp_path / "held.csv").read_text().splitlines()))
    assert [row["id"] for row in table] == ["h0", "h10", "h20", "h30"] and list(table[0]) == ["id", "class", "scores_0", "scores_1"]
    assert predict(one, new).outputs["scores"].shape == (2, 2), "an unknown city has an index, and the missing area the mean of training"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("model.arguments.cities=${facts.cit.size}",),
            'the training samples have no fact cit.size; did you mean "city.size"',
        ),
        (("model.arguments.cities=['${facts.city.size}']",), "model.arguments.cities must be a whole number; got the list [4]"),
    ],
)
def test_wrong_facts_raise_when_the_readers_are_open(config: Path, tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        run(loaded(config, tmp_path / "out", *settings))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.arguments.cities=${facts.city.width}", "is not a fact\n    write such as ${facts.city.size}"),
        ("model.arguments.cities=n${facts.city.size}", "only whole values in model.arguments may refer to it"),
        ("data.batch_size=${facts.city.size}", "only whole values in model.arguments may refer to it"),
        ("model.arguments.citis=${facts.city.size}", 'takes no argument "citis"; did you mean "cities"'),
        ("data.train.split=all", "data.validation has the split validation of data.train, and data.train reads all samples"),
        ("data.test={}", "data.test inherits the reader of data.train, and would read the same samples"),
        ("data.test={readr: csv}", 'unknown key "readr" in data.test; did you mean "reader"'),
        ("data.validation.spilt=x", 'reader csv takes no argument "spilt"; did you mean "split"'),
        ("data.train.path=none.csv", "there is no file or folder none.csv"),
    ],
)
def test_wrong_references_and_splits_are_reported(config: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigErrors, match=re.escape(message)) as raised:
        load(config, (setting,))
    assert len(raised.value.problems) == 1


def test_fields_classes_and_vocabularies_have_sizes(tmp_path: Path) -> None:
    assert sizes_of(samples_of({"x": np.zeros((4, 3, 2)), "labels": np.zeros(4)})) == {"x.size": 6, "labels.size": 1}
