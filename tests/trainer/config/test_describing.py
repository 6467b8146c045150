"""Help, schema and documentation match the configurations that load."""

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
    """Write the first example of the page to the current folder."""
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
    shown, printed = (" ".join(re.sub(r"\w+\.yaml:\d+:\d+", "FILE", each).split()) for each in (text, raised.value.told))
    assert shown == printed  # the page wraps long lines
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
    assert main(["config", "check", lenet]) == 0 and capsys.readouterr().out == "lenet.yaml: valid\n"
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


def test_help_imports_no_slow_module() -> None:
    heavy = "('pydantic', 'numpy', 'yaml')"
    program = "import sys; from jobflow.cli import main\ntry: main(['config', '--help'])\n"
    program += f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.splitlines()[-1] == "[]"


# -------------------------------------------------------------------- JSON Schema


def _fits(value: Any, constraint: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Return True if the value matches the constraint, for the subset of JSON Schema in use."""
    if "$ref" in constraint:
        return _fits(value, definitions[constraint["$ref"].rpartition("/")[2]], definitions)
    if not all(_fits(value, part, definitions) for part in constraint.get("allOf", ())):
        return False
    if "anyOf" in constraint and not any(_fits(value, choice, definitions) for choice in constraint["anyOf"]):
        return False
    if ("const" in constraint and value != constraint["const"]) or ("enum" in constraint and value not in constraint["enum"]):
        return False
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    kind = constraint.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        return False
    if isinstance(value, str) and "pattern" in constraint and not re.search(constraint["pattern"], value):
        return False
    if isinstance(value, int | float) and not constraint.get("minimum", value) <= value <= constraint.get("maximum", value):
        return False
    if isinstance(value, list):
        return all(_fits(entry, constraint["items"], definitions) for entry in value) if "items" in constraint else True
    if isinstance(value, dict):
        known = constraint.get("properties", {})
        if constraint.get("additionalProperties") is False and set(value) - set(known):
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
def test_the_schema_accepts_valid_values(text: str, fits: bool) -> None:
    document = schema()
    value = yaml.safe_load(text.replace("1e-3", "0.001"))  # a text to YAML 1.1
    assert _fits(value, document, document["$defs"]) == fits


def test_everything_is_described() -> None:
    document = TrainConfig.model_json_schema()
    sections = {"the top": document, **document["$defs"]}
    bare = [f"{name}.{key}" for name, section in sections.items() for key, one in section.get("properties", {}).items() if not one.get("description")]
    assert bare == []
    # sections that are chosen by their name are described there, layers at their kind
    kinds = [choice.get("$ref") for kind in document["$defs"]["Layer"]["properties"].values() for choice in kind["anyOf"]]
    elsewhere = [name for name, section in sections.items() if "name" in section["properties"] or f"#/$defs/{name}" in kinds]
    assert [name for name, section in sections.items() if not section.get("description") and name not in elsewhere] == []
