"""What is shown, described and documented is what is loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobflow.cli import main
from jobflow.trainer.config import ConfigErrors, load
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.showing import schema, show, show_json

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "configuration.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def lenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first example of the page, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("lenet.yaml").write_text(EXAMPLES[0])
    return "lenet.yaml"


def test_the_tables_of_the_page_are_fresh() -> None:
    assert subprocess.run([sys.executable, ROOT / "scripts" / "refresh_configuration", "--check"]).returncode == 0, (
        "run scripts/refresh_configuration"
    )


def test_the_examples_of_the_page_are_good(lenet: str) -> None:
    Path("four.yaml").write_text(EXAMPLES[1])
    loaded = load("four.yaml", ["training.epochs=null", "training.steps=100", "optimizer.lr=0.1"])
    assert loaded.config.training.steps == 100 and loaded.config.strategy.zero == 1 and loaded.files == ("four.yaml", "lenet.yaml")
    assert str(loaded.origin("optimizer.lr")) == "--set optimizer.lr=0.1" and str(loaded.origin("data.batch_size")) == "lenet.yaml:7"


def test_the_messages_of_the_page_are_those_of_the_program(lenet: str, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    wrong = EXAMPLES[0].replace("  lr: 1e-3", "  lr: 1e-3\n  lerning_rate: 1e-3").replace("training:", "strategy: {data: 3, devices: 4}\ntraining:")
    Path("lenet.yaml").write_text(wrong)
    with pytest.raises(ConfigErrors) as raised:
        load(lenet)
    places = re.compile(r"(configs/)?lenet.yaml:\d+:\d+")
    assert places.sub("FILE", raised.value.told) == places.sub("FILE", text.strip())
    assert [problem.key for problem in raised.value.problems] == ["optimizer.lerning_rate", "strategy.devices"]
    assert main(["config", "check", lenet]) == 2
    assert raised.value.told in capsys.readouterr().err


def test_every_value_is_shown_with_its_origin(lenet: str) -> None:
    shown = show(load(lenet, ["seed=3"]))
    assert all(line.endswith(":") or "  # " in line for line in shown.splitlines())
    assert (
        re.search(r"lr: 0.001 +# lenet.yaml:10\n", shown)
        and re.search(r"seed: 3 +# --set seed=3\n", shown)
        and re.search(r"steps: null +# default\n", shown)
    )
    # a reader of YAML 1.1 understands it alike
    assert yaml.safe_load(shown) == load(lenet, ["seed=3"]).plain
    as_json = json.loads(show_json(load(lenet)))
    assert as_json["origins"]["optimizer.lr"] == {"file": "lenet.yaml", "line": 10, "column": 7} and as_json["config"]["optimizer"]["name"] == "adam"


def test_the_command_shows_checks_and_describes(lenet: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", lenet, "--set", "optimizer.lr=0.5"]) == 0
    assert "lr: 0.5" in capsys.readouterr().out
    assert main(["config", "show", lenet, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["name"] == "lenet"
    assert main(["config", "check", lenet]) == 0 and capsys.readouterr().out == "lenet.yaml: good\n"
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


def test_help_imports_nothing_that_takes_long() -> None:
    heavy = "('pydantic', 'numpy', 'yaml')"
    program = "import sys; from jobflow.cli import main\ntry: main(['config', '--help'])\n"
    program += f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.splitlines()[-1] == "[]"


# -------------------------------------------------------------------- JSON Schema


def _fits(value: Any, wanted: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """The part of JSON Schema that is used."""
    if "$ref" in wanted:
        return _fits(value, definitions[wanted["$ref"].rpartition("/")[2]], definitions)
    if not all(_fits(value, part, definitions) for part in wanted.get("allOf", ())):
        return False
    if "anyOf" in wanted and not any(_fits(value, choice, definitions) for choice in wanted["anyOf"]):
        return False
    if ("const" in wanted and value != wanted["const"]) or ("enum" in wanted and value not in wanted["enum"]):
        return False
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    kind = wanted.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        return False
    if isinstance(value, str) and "pattern" in wanted and not re.search(wanted["pattern"], value):
        return False
    if isinstance(value, int | float) and not wanted.get("minimum", value) <= value <= wanted.get("maximum", value):
        return False
    if isinstance(value, list):
        return all(_fits(entry, wanted["items"], definitions) for entry in value) if "items" in wanted else True
    if isinstance(value, dict):
        known = wanted.get("properties", {})
        if wanted.get("additionalProperties") is False and set(value) - set(known):
            return False
        return all(_fits(entry, known[name], definitions) for name, entry in value.items() if name in known)
    return True


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (EXAMPLES[0], True),
        (EXAMPLES[1], True),
        ("optimizer: {lr: '${env:RATE}'}", True),
        ("optimizer: {name: adam, momentum: null, lr: 0.1}", False),
        ("model: {layers: [flatten, {dense: {units: 10}}], loss: mean_squared_error}", True),
        ("model: {layers: [flaten]}", False),
        ("optimizer: {lerning_rate: 0.1}", False),
        ("optimizer: {lr: fast}", False),
        ("data: {train: {reader: digits, split: train}}", True),
        ("data: {train: {reader: digits, splitt: train}}", False),
        ("data: {train: {reader: digits, split: valid}}", False),
        ("strategy: {zero: 4}", False),
        ("strategy: {devices: all, data: 2}", True),
        ("training: {epochs: null, steps: 3}", True),
        ("lr: 0.1", False),
    ],
)
def test_the_schema_says_what_fits(text: str, fits: bool) -> None:
    made = schema()
    value = yaml.safe_load(text.replace("1e-3", "0.001"))  # a text to YAML 1.1
    assert _fits(value, made, made["$defs"]) == fits


def test_everything_is_described() -> None:
    made = TrainConfig.model_json_schema()
    sections = {"the top": made, **made["$defs"]}
    bare = [f"{name}.{key}" for name, section in sections.items() for key, one in section.get("properties", {}).items() if not one.get("description")]
    assert bare == []
    # sections that are chosen by their name are described there, layers at their kind
    kinds = [choice.get("$ref") for kind in made["$defs"]["Layer"]["properties"].values() for choice in kind["anyOf"]]
    elsewhere = [name for name, section in sections.items() if "name" in section["properties"] or f"#/$defs/{name}" in kinds]
    assert [name for name, section in sections.items() if not section.get("description") and name not in elsewhere] == []
