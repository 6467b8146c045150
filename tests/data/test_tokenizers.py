"""Texts as parts of words: files tokenizer.json, and their training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from jobflow.cli import main
from jobflow.core.errors import ArgumentError, CheckpointError, DataError, FileError
from jobflow.data.readers import open_reader
from jobflow.data.text import documentation_text
from jobflow.data.tokenizer_training import train_tokenizer
from jobflow.data.vocabulary import TokenizerFile, vocabulary_of
from jobflow.trainer.config import load
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.loop import train

tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
TEXT = documentation_text()[:6000] + "Grüße, 😀\n"
CONFIG = """
model: {builder: "jobflow.models:gpt", arguments: {words: "${facts.vocabulary.size}", length: 8, width: 8, heads: 1, blocks: 1}}
data:
  train: {reader: text, path: FOLDER/a.txt, tokenizer: FOLDER/tokenizer.json, length: 8}
  validation: {split: validation}
  batch_size: 16
optimizer: {name: sgd, lr: 0.1}
training: {steps: 2}
output: FOLDER/run
logging: {progress: none, report: false}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a text and a tokenizer that was trained on it."""
    path = tmp_path_factory.mktemp("texts")
    (path / "a.txt").write_text(TEXT, encoding="utf-8")
    train_tokenizer(str(path / "a.txt"), str(path / "tokenizer.json"), 400)
    return path


def test_a_trained_tokenizer_encodes_any_text_as_the_package_does(folder: Path) -> None:
    samples = open_reader("text", path=str(folder / "a.txt"), tokenizer=str(folder / "tokenizer.json"), length=16, split="all")
    words = samples.vocabulary  # type: ignore[union-attr]
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = reference.encode(TEXT).ids
    assert words.size == 400 == reference.get_vocab_size() and len(ids) < len(TEXT) / 1.5
    first = samples[1]  # type: ignore[index]
    assert first["tokens"].tolist() == ids[16:32] and first["targets"].tolist() == ids[17:33]
    for text in ("", "Ωmega \x00 \n\n x", TEXT):
        assert words.decode(words.encode(text)) == text
    assert vocabulary_of(samples.facts).encode("the end").tolist() == words.encode("the end").tolist()


def test_long_texts_are_encoded_piece_by_piece(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = TokenizerFile((folder / "tokenizer.json").read_text(encoding="utf-8"))
    whole = words.encode(TEXT)
    monkeypatch.setattr("jobflow.data.vocabulary.PIECE", 100)
    assert words.decode(words.encode(TEXT)) == TEXT
    assert abs(len(words.encode(TEXT)) - len(whole)) < 80


def test_truncation_padding_and_special_tokens_of_a_file_do_not_apply(folder: Path, tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = tokenizer.encode(TEXT).ids
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", None, [("<s>", 400)])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "odd.json"))
    words = TokenizerFile((tmp_path / "odd.json").read_text(encoding="utf-8"))
    assert words.size == 401 and words.encode(TEXT).tolist() == expected
    assert words.decode([400]) == "<s>"


def test_a_run_needs_its_tokenizer_file_only_at_the_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "run.yaml"
    file.write_text(CONFIG.replace("FOLDER", str(folder)))
    run = train(file)
    (folder / "tokenizer.json").rename(folder / "away.json")
    try:
        assert evaluate(load(file), place="validation").metrics["validation/loss"] == pytest.approx(run.metrics["validation/loss"], rel=1e-6)
        assert main(["predict", str(file), "--prompt", "The end", "--length", "3"]) == 0
        assert capsys.readouterr().out.startswith("The end")
        assert main(["train", str(file), "--set", "training.steps=3"]) == 1
        assert f"there is no tokenizer file {folder}/tokenizer.json; correct tokenizer, or create the file" in capsys.readouterr().err
    finally:
        (folder / "away.json").rename(folder / "tokenizer.json")


def test_the_command_writes_a_tokenizer_of_a_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tokenizer", str(folder), "--to", str(tmp_path / "deep" / "t.json"), "--size", "50000"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"from {len(TEXT):,} characters of 1 file" in printed and "(50,000 need more text)" in printed
    assert main(command) == 1 and "already exists; pass another name, or replace=True (--force) to replace it" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": 256}, ArgumentError, "tokenizer: size is 256; pass at least 257, because the 256 bytes are tokens"),
        ({"path": "nowhere.txt"}, DataError, "there is no file or folder"),
        ({"output": "{folder}/tokenizer.json"}, FileError, "already exists"),
        ({"output": "{folder}", "replace": True}, CheckpointError, "this path already exists"),
        ({"path": "{folder}/empty.txt"}, DataError, "there is no text in"),
    ],
)
def test_invalid_arguments_raise(change: dict[str, Any], error: Any, message: str, folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    options = {"path": str(folder / "a.txt"), "output": str(tmp_path / "new.json"), "size": 300} | change
    if change.get("path", "").endswith("empty.txt"):
        options["path"] = str(empty)
    with pytest.raises(error, match=message):
        request: dict[str, Any] = {name: value.format(folder=folder) if isinstance(value, str) else value for name, value in options.items()}
        train_tokenizer(**request)


def model(vocab: Any, **more: Any) -> str:
    return json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"} | more})


def split(pattern: str) -> bytes:
    """Return a tokenizer that splits a text at a pattern."""
    return json.dumps(
        {
            **json.loads(model({"a": 0, "?": 1})),
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        }
    ).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02 pickle", "is not UTF-8 at byte 0"),
        (b"", "is not a tokenizer file: JSONDecodeError"),
        (b"[1]", 'it has no key "model"'),
        (b'{"model": {"type": "Other"}}', "is not a tokenizer file: Exception"),
        (b'{"model": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested levels, more than the limit"),
        (model({"a": -1}).encode(), "is not a tokenizer file"),
        (model({"a": 0, "b": 4_000_000_000}).encode(), "has 2 tokens with numbers up to 4,000,000,000; use a file whose tokens are numbered from 0"),
        (model({}).encode(), "has 0 tokens|is not a tokenizer file"),
        (model({"a": 0}, type="BPE", merges=["x y"]).encode(), "is not a tokenizer file"),
        (model({"a": 0}).encode(), "a.txt cannot be encoded: .*; use a tokenizer of bytes, or one with an unknown token"),
        (split("(a|aa)+$"), "a.txt cannot be encoded: .*retry-limit"),
        (split("("), "is not a tokenizer file: Exception: Oniguruma error"),
        (None, "there is no tokenizer file .*; correct tokenizer, or create the file with `jobflow tokenizer`"),
    ],
)
def test_damaged_files_are_refused(content: bytes | None, message: str, folder: Path, tmp_path: Path) -> None:
    file, text = tmp_path / "bad.json", folder / "a.txt"
    if message.endswith("retry-limit"):
        text = tmp_path / "a.txt"
        text.write_text("a" * 60 + "b")
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        open_reader("text", path=str(text), tokenizer=str(file), length=4)
    assert str(raised.value).startswith('reader "text"')


@pytest.mark.parametrize("arguments", [{"level": "token"}, {"level": "byte", "tokenizer": "t.json"}])
def test_level_and_tokenizer_must_fit(arguments: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ArgumentError, match="omit level and pass the path of a tokenizer"):
        open_reader("text", path=str(folder / "a.txt"), **arguments)


def test_texts_and_tokenizers_are_read_from_stores(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "a.txt"), "/texts/a.txt")
    memory.put(str(folder / "tokenizer.json"), "/texts/tokenizer.json")
    here = open_reader("text", path=str(folder / "a.txt"), tokenizer=str(folder / "tokenizer.json"))
    there = open_reader("text", path="memory://texts/a.txt", tokenizer="memory://texts/tokenizer.json")
    assert here.fingerprint == there.fingerprint  # type: ignore[union-attr]
    train_tokenizer("memory://texts/a.txt", str(tmp_path / "same.json"), 400)
    assert (tmp_path / "same.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    with pytest.raises(DataError, match="there is no tokenizer file memory://texts/none"):
        open_reader("text", path="memory://texts/a.txt", tokenizer="memory://texts/none.json")
    memory.store.clear()


def test_facts_replace_the_file(folder: Path) -> None:
    path = str(folder / "a.txt")
    facts = open_reader("text", path=path, tokenizer=str(folder / "tokenizer.json"), length=4).facts
    other = open_reader("text", json.loads(json.dumps(facts)), path=path, tokenizer="nowhere.json", length=4, split="validation")
    assert other.facts == facts and np.all(other.read([0])["tokens"] < 400)  # type: ignore[union-attr]
