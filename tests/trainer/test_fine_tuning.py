"""Fine-tuning: initial values from runs and files, frozen variables, and the errors of both."""

from __future__ import annotations

import json
import re
import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_command, under_mpiexec
from short_runs import CONFIG, Recorder, check_same, loaded, run, samples, write_config
from test_processes_that_train import PATHS

from jobflow import models
from jobflow.core.errors import CheckpointError, ConfigError
from jobflow.storage import store
from jobflow.storage.export import open_any, to_npz, to_safetensors
from jobflow.storage.safetensors import read_header
from jobflow.trainer import resume
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.predict import predict
from jobflow.trainer.preview import preview

REFERENCES = Path(__file__).parents[1] / "checkpoint" / "references"
LAYERS = "model: {loss: softmax_cross_entropy, layers: [dense: {units: 5}, batch_norm, activation: {function: tanh}, dense: {units: CLASSES}]}"
MODELS = {
    "module": 'model: {builder: "nets_to_train:Backbone", arguments: {classes: CLASSES}}',
    "builder": 'model: {builder: "nets_to_train:backbone", arguments: {classes: CLASSES}}',
    "layers": LAYERS,
}
#: patterns of backbone and head
PARTS = {"module": ("backbone.*", "head.*"), "builder": ("backbone-*", "head-*"), "layers": ("*[12]-*", "dense4-*")}


def text(model: str, classes: int = 4, more: str = "") -> str:
    own = MODELS.get(model, model).replace("CLASSES", str(classes))
    return f"{CONFIG[: CONFIG.index('model:')]}{own}\n{more}\n{CONFIG[CONFIG.index('data:') :]}"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run each model for 2 steps; return the outputs."""
    outputs = {}
    for model in MODELS:
        folder = tmp_path_factory.mktemp(model)
        outputs[model] = folder / "out"
        run(loaded(write_config(folder, text(model)), outputs[model], "training.steps=2", "optimizer.warmup_steps=0"))
    return outputs


def values(output: Path, step: int) -> dict[str, Any]:
    checkpoint = store.load(output / "checkpoints" / f"step-{step:08d}")
    return {name: checkpoint[name] for name in checkpoint}


def before(recorder: Recorder) -> str:
    assert recorder.info is not None
    return recorder.info.before


@pytest.mark.parametrize("model", MODELS)
def test_a_run_with_a_new_head_and_a_frozen_backbone(model: str, bases: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(bases[model], base)
    backbone, head = PARTS[model]
    more = f'start_from: {{path: {base}, skip: ["{head}"]}}\nfreeze: ["{backbone}"]'
    file = write_config(tmp_path, text(model, 3, more))
    for name in ("train", "validation"):
        arrays = dict(np.load(tmp_path / f"{name}.npz"))
        np.savez(tmp_path / f"{name}.npz", x=arrays["x"], labels=arrays["labels"] % 3)
    outcome, whole = run(loaded(file, tmp_path / "out"))
    assert outcome.step == 9
    old, new = values(base, 2), values(tmp_path / "out", 9)
    heads = {name for name in new if re.match(head.replace("*", ".*"), name)}
    frozen = new.keys() & old.keys() - heads - {name for name in new if name.startswith("System-")}
    assert len(frozen) == 6
    for name in frozen:
        np.testing.assert_array_equal(new[name], old[name], err_msg=name)
    slots = {name for name in new if name.endswith("-momentum")}
    assert slots and slots < heads
    assert len(re.findall("^loaded  ", before(whole), re.MULTILINE)) == 6 and "frozen: 6 of 8 variables" in before(whole)
    assert len(re.findall("^skipped  ", before(whole), re.MULTILINE)) == 2 and "optimizer states not loaded" in before(whole)

    shutil.rmtree(base)
    shutil.copytree(tmp_path / "out" / "checkpoints" / "step-00000004", tmp_path / "again" / "checkpoints" / "step-00000004")
    again, rest = run(loaded(file, tmp_path / "again"))
    check_same(rest, whole, range(5, 10))
    assert again.metrics == outcome.metrics and "loaded" not in before(rest) and "frozen: 6" in before(rest)
    assert evaluate(loaded(file, tmp_path / "out")).metrics == pytest.approx(whole.evaluations[9].metrics)
    assert predict(loaded(file, tmp_path / "out"), "validation").outputs["scores"].shape == (26, 3)
    with pytest.raises(ConfigError, match=r"freeze: it was \[.*\], it is \[\]"):
        run(loaded(file, tmp_path / "out", "freeze=[]"))


@pytest.mark.parametrize(
    "how",
    [
        ("devices=2", "view=mirrored"),
        ("devices=2", "zero=3"),
        *(pytest.param(how, marks=pytest.mark.full) for how in (("devices=2",), ("devices=2", "tensor=2"), ("devices=2", "pipeline=2"))),
    ],
    ids=" ".join,
)
def test_ranks_start_with_equal_values(how: tuple[str, ...], bases: dict[str, Path], tmp_path: Path) -> None:
    file = write_config(tmp_path, text("layers", more=f"start_from: {bases['layers']}\nfreeze: ['*[12]-*']"))
    sets = ("training.steps=2", "optimizer.warmup_steps=0")
    _, one = run(loaded(file, tmp_path / "one", *sets))
    _, two = run(loaded(file, tmp_path / "two", *sets, *(f"strategy.{setting}" for setting in how)))
    check_same(two, one, [1, 2], close=2e-5)
    np.testing.assert_array_equal(values(tmp_path / "two", 2)["dense1-weight"], values(bases["layers"], 2)["dense1-weight"])


@pytest.mark.full
@pytest.mark.mpi
def test_two_processes_start_from_a_run(bases: dict[str, Path], tmp_path: Path) -> None:
    file = write_config(tmp_path, text("module", more=f"start_from: {bases['module']}\nfreeze: [backbone.*]"))
    command = [*under_mpiexec(2), sys.executable, "-m", "jobflow", "train", str(file), f"--set=output={tmp_path / 'two'}"]
    done = run_command([*command, "--set=logging.progress=plain"], environment=PATHS)
    assert done.code == 0, done.out + done.err
    assert done.out.count("8 of 9 variables loaded") == 1 or done.out.count("variables loaded") == 1, done.out
    _, one = run(loaded(file, tmp_path / "one"))
    assert evaluate(loaded(file, tmp_path / "two")).metrics == pytest.approx(one.evaluations[9].metrics, rel=2e-5)
    done = run_command([*command[:-1], f"--set=output={tmp_path / 'three'}", "--set=start_from=nowhere"], environment=PATHS)
    assert done.code != 0 and "there is no run, checkpoint or file nowhere" in done.err


@pytest.mark.parametrize(
    "kind", ["checkpoint", "npz", "half", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("checkpoints", "safetensors"))]
)
def test_kinds_of_sources(kind: str, bases: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = bases["module"] / "checkpoints" / "step-00000002"
    path = {"checkpoint": checkpoint, "checkpoints": checkpoint.parent, "half": tmp_path / "half.npz"}.get(kind, tmp_path / f"weights.{kind}")
    if kind == "npz":
        to_npz(open_any(checkpoint), path, ["*[!m]"])
    if kind == "safetensors":
        to_safetensors(open_any(checkpoint), path, ["*[!m]"])
    if kind == "half":
        np.savez(path, **{f"net/{name}": array.astype(np.float16) for name, array in values(bases["module"], 2).items() if array.dtype == np.float32})
    rename = 'rename: {"net/*": "*"}' if kind == "half" else "strict: true"
    file = write_config(tmp_path, text("module", more=f"start_from: {{path: {path}, {rename}}}\nfreeze: [backbone.*]"))
    _, recorder = run(loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0"))
    old, new = values(bases["module"], 2), values(tmp_path / "out", 1)
    np.testing.assert_allclose(new["backbone.0.weight"], old["backbone.0.weight"], rtol=1e-3 if kind == "half" else 0)
    assert ("net/head.weight (float16)" in before(recorder)) == (kind == "half")


def test_a_folder_of_safetensors_files_is_loaded_and_shown_by_dry_run(bases: dict[str, Path], tmp_path: Path) -> None:
    folder, entries = tmp_path / "llama", {}
    folder.mkdir()
    for number, part in enumerate(("backbone.*[!m]", "head.*[!m]")):
        file = folder / f"model-{number}.safetensors"
        to_safetensors(open_any(bases["module"] / "checkpoints" / "step-00000002"), file, [part])
        entries |= dict.fromkeys(read_header(file), file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": entries}))
    config = loaded(
        write_config(tmp_path, text("module", more=f"start_from: {folder}\nfreeze: [backbone.*]")), tmp_path / "out", "training.steps=1",
        "optimizer.warmup_steps=0", "logging.report=true",
    )  # fmt: skip
    previewed = preview(config).text()
    assert not (tmp_path / "out").exists()
    _, recorder = run(config)
    assert "model.safetensors.index.json: " in before(recorder) and re.search("loaded +backbone.0.weight", before(recorder))
    assert before(recorder) in previewed and "frozen: " in previewed
    assert escape(before(recorder)) in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    np.testing.assert_array_equal(values(tmp_path / "out", 1)["backbone.0.weight"], values(bases["module"], 2)["backbone.0.weight"])
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"start_from: .*index\.json: 1 of 2 files is missing, such as model-1\.safetensors"):
        preview(config)


def test_a_checkpoint_of_an_earlier_release_has_no_frozen_variables(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    then = {key: value for key, value in loaded(file, tmp_path).plain.items() if key not in ("freeze", "start_from")}
    resume.check_same(tmp_path, then, loaded(file, tmp_path))
    with pytest.raises(ConfigError, match=r"freeze: it was \[\], it is "):
        resume.check_same(tmp_path, then, loaded(file, tmp_path, "freeze=[dense1-*]"))


@pytest.mark.parametrize("name", ["zip.pt", "old.pt"])
def test_files_of_pytorch(name: str, tmp_path: Path) -> None:
    more = f'start_from: {{path: {REFERENCES / name}, rename: {{"model.*": "*"}}, only: [fc.weight]}}\nfreeze: [fc.weight]'
    file = write_config(tmp_path, text('model: {builder: "nets_to_train:Small"}', more=more))
    for split in ("train", "validation"):
        arrays = samples(26, 0)
        np.savez(tmp_path / f"{split}.npz", x=arrays["x"][:, :2], labels=arrays["labels"] % 3)
    _, recorder = run(loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0"))
    np.testing.assert_array_equal(values(tmp_path / "out", 1)["fc.weight"], np.full((3, 2), 0.5, np.float32))
    assert "model.fc.weight" in before(recorder) and "unused" in before(recorder)


WRONG = {
    "start_from: nowhere": "run.yaml:4: start_from: there is no run, checkpoint or file nowhere; pass an existing path",
    "start_from: {path: FOLDER}": "FOLDER has no intact checkpoint; pass a run, a checkpoint, or a .safetensors",
    "start_from: {path: FOLDER/run.yaml}": 'run.yaml has the unknown suffix ".yaml"',
    "start_from: {path: FOLDER/broken.pt}": "start_from: .*broken.pt is damaged",
    "start_from: {path: CODE}": "start_from: .*module.pt",
    "start_from: {path: FOLDER/broken.npz}": "start_from: .*broken.npz",
    "start_from: {path: FOLDER/broken.safetensors}": "start_from: .*broken.safetensors",
    "start_from: BASE": r'head.weight: the model has float32\[3,5\], the file float32\[4,5\]; to keep the initial value, write skip: \["head.\*"\]',
    "start_from: {path: BASE, skip: [heed.*]}": r'start_from.skip: no variable of the model matches "heed.\*"; did you mean "head.\*"\?',
    "start_from: {path: BASE, only: [backbone.0.wight]}": 'did you mean "backbone.0.weight"',
    "start_from: {path: BASE, rename: {bone.*: a.*}}": r'start_from.rename: no name in the file matches "bone.\*"; did you mean "backbone.\*"',
    "start_from: {path: BASE, rename: {head.weight: head.bias}}": '"head.weight" and "head.bias" both become "head.bias"',
    "start_from: {path: BASE, rename: {head.weight: a.*}}": r"more \* than the pattern",
    "start_from: {path: BASE, skip: [head.*], rename: {backbone.0.weight: backbone.0.wight}}": (
        'backbone.0.weight: the file has no value; did you mean "backbone.0.wight".*\n.*write rename, skip or strict: false'
    ),
    "start_from: {path: BASE, rename: {'*': state.*}}": r'the file has "state.backbone.0.weight": write rename: \{"state.\*": "\*"\}',
    "start_from: {path: FOLDER/ints.npz, strict: false}": "float32.*, the file int32.*convert the file",
    "start_from: {path: FOLDER/large.npz, strict: false}": (
        r'start_from: .*large.npz: tensor "head.bias" has the value 1e\+300, beyond the range of float32 of the variable head.bias; correct the file'
    ),
    "start_from: {path: FOLDER/other.npz, strict: false}": "has no value for any selected variable",
    "freeze: [heed.*]": r'run.yaml:4: freeze: no variable of the model matches "heed.\*"; did you mean "head.\*"\? The var',
    "freeze: ['*']": "freeze: the patterns match every parameter",
}


@pytest.mark.parametrize("more", WRONG)
def test_wrong_sources_and_patterns(more: str, bases: dict[str, Path], tmp_path: Path) -> None:
    for suffix in ("pt", "npz", "safetensors"):
        (tmp_path / f"broken.{suffix}").write_bytes(b"PK broken")
    ints: dict[str, Any] = {"head.bias": np.zeros(3, np.int32)}
    np.savez(tmp_path / "ints.npz", **ints)
    large: dict[str, Any] = {"head.bias": np.array([0.0, 1e300, 2])}
    np.savez(tmp_path / "large.npz", **large)
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    written = more.replace("FOLDER", str(tmp_path)).replace("BASE", str(bases["module"]))
    written = written.replace("CODE", str(REFERENCES / "module.pt"))
    file = write_config(tmp_path, text("module", 3, written))
    with pytest.raises((ConfigError, CheckpointError)) as raised:
        run(loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0"))
    assert re.search(WRONG[more].replace("FOLDER", str(tmp_path)), str(raised.value)), str(raised.value)


def test_a_setting_that_the_file_does_not_fit_is_named(bases: dict[str, Path], tmp_path: Path) -> None:
    file = write_config(tmp_path, text("module", 3, f"start_from: {{path: {bases['module']}, skip: [head.*]}}"))
    with pytest.raises(ConfigError, match=r"^--set start_from.skip=\[\]: start_from: .* does not fit the model"):
        run(loaded(file, tmp_path / "out", "start_from.skip=[]"))


def test_a_file_may_lack_variables_if_strict_is_false(bases: dict[str, Path], tmp_path: Path) -> None:
    part: dict[str, Any] = {"head.bias": np.arange(4.0)}
    np.savez(tmp_path / "part.npz", **part)
    file = write_config(tmp_path, text("module", more=f"start_from: {{path: {tmp_path / 'part.npz'}, strict: false}}\nfreeze: [head.bias]"))
    _, recorder = run(loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0"))
    assert values(tmp_path / "out", 1)["head.bias"].tolist() == [0, 1, 2, 3]
    assert "not in the file" in before(recorder)
    record = json.dumps(loaded(file, tmp_path / "out").plain["start_from"])
    assert '"strict": false' in record and '"only": ["*"]' in record


@pytest.mark.full
def test_values_that_are_not_finite_are_listed(tmp_path: Path) -> None:
    part: dict[str, Any] = {"head.bias": np.array([0.0, np.nan, np.inf, 1])}
    np.savez(tmp_path / "part.npz", **part)
    file = write_config(tmp_path, text("module", more=f"start_from: {{path: {tmp_path / 'part.npz'}, strict: false}}"))
    _, recorder = run(loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0"))
    assert "\nNaN or infinite values in the file: head.bias (2); correct the file" in before(recorder)


def test_files_of_gpt2_are_renamed_and_transposed(tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("abcdefgh " * 20)
    arguments = {"words": 256, "length": 8, "width": 4, "heads": 2, "blocks": 1}
    random, shapes = np.random.default_rng(0), {name: value.shape for name, value in models.GPT(**arguments).state_dict().items()}
    drawn = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    names = {
        "token_embedding.": "wte.", "position_embedding.": "wpe.", "blocks.": "h.", "norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj", "up.": "mlp.c_fc.", "down.": "mlp.c_proj.", "norm.": "ln_f.",
    }  # fmt: skip
    matrices = re.compile(r"qkv.weight|out.weight|up.weight|down.weight")
    file: dict[str, Any] = {}
    for name, array in drawn.items():
        old = name
        for mine, its in names.items():
            old = old.replace(mine, its)
        file[f"transformer.{old}"] = np.ascontiguousarray(array.T) if matrices.search(name) else array
    np.savez(tmp_path / "gpt2.npz", **file)
    text = f"""
model: {{builder: "jobflow.models:GPT", arguments: {json.dumps(arguments)}}}
data: {{train: {{reader: text, path: {tmp_path}/here.txt, length: 8}}, batch_size: 4, drop_last: true}}
optimizer: {{name: sgd, lr: 0.1}}
training: {{steps: 1}}
freeze: [token_embedding.weight, position_embedding.weight, "blocks.*", norm.weight]
start_from: {{path: {tmp_path}/gpt2.npz, rename: NAMES}}
"""
    (tmp_path / "run.yaml").write_text(text.replace("NAMES", "gpt2"))
    _, recorder = run(loaded(tmp_path / "run.yaml", tmp_path / "out"))
    assert f"{len(drawn)} of {len(drawn)} variables loaded" in before(recorder)
    trained = values(tmp_path / "out", 1)
    for name in drawn.keys() - {"norm.bias"}:
        np.testing.assert_array_equal(trained[name], drawn[name], err_msg=name)

    for more, words in (
        ('transpose: ["blocks.*.norm1.*"]', "float32[4], but only matrices can be transposed"),
        ('transpose: ["blocks.*.nrm1.*"]', 'start_from.transpose: no tensor matches "blocks.*.nrm1.*"'),
    ):
        (tmp_path / "run.yaml").write_text(text.replace("NAMES", f"gpt2, {more}"))
        with pytest.raises(ConfigError, match=re.escape(words)):
            run(loaded(tmp_path / "run.yaml", tmp_path / "other"))
