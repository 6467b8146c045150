"""What a trained model says of samples that nobody has told it about: scores for files of samples, and text that goes on."""

from __future__ import annotations

import csv
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.data.batches import Batches
from jobflow.data.readers import READERS, open_reader
from jobflow.data.samples import Samples, Stream
from jobflow.data.vocabulary import Vocabulary, vocabulary_of
from jobflow.errors import ArgumentError, ConfigError, at_line
from jobflow.models.generate import tokens_after
from jobflow.trainer.config import Loaded, TrainConfig
from jobflow.trainer.evaluate import newest, restore, rows_of
from jobflow.trainer.jobs import Prepared, open_place, prepared
from jobflow.trainer.network import line_of
from jobflow.types import Array, TensorType, int32

#: the places of a configuration's samples, which may stand for a file of input
PLACES = ("train", "validation", "test")
#: the reader of a file, by the end of its name
_BY_SUFFIX = {".npz": "numpy", ".npy": "numpy", ".csv": "csv", ".tsv": "csv", ".ofrecord": "ofrecord"}
#: what files of predictions there are
OUTPUTS = (".npz", ".csv")
#: bytes of a character, at most
LONGEST = 4
#: the field that models of text take
TOKENS = "tokens"


@dataclass(frozen=True)
class Predicted:
    """What was predicted: arrays by name, whose rows are the samples in their order."""

    outputs: Mapping[str, Array]
    samples: int
    path: Path | None


def predict(loaded: Loaded, source: str | Path, output: str | Path | None = None, checkpoint: str | Path | None = None) -> Predicted:
    """Run a checkpoint's predict job on samples: a file or folder, or "train", "validation" or "test" for those of the configuration.

    Written by rank 0 to `output`, an .npz or .csv file, if that is given.
    """
    if output is not None and Path(output).suffix not in OUTPUTS:
        raise ArgumentError(f"--output {output}: predictions are written as {' or '.join(OUTPUTS)}")
    with at_line(line_of(loaded, "")), prepared(loaded, only=()) as run:
        path, extra = newest(run, checkpoint)
        samples = opened(run, source, extra.get("facts", {}))
        run.take("input", samples)
        outputs = run_over(run, samples, path)
        count = len(next(iter(outputs.values())))
        if output is not None and run.session.writes_files:
            write(Path(output), outputs, extra.get("facts", {}))
        return Predicted(outputs, count, None if output is None else Path(output))


def run_over(run: Prepared, samples: Samples | Stream, path: Path) -> dict[str, Array]:
    """The outputs for all samples."""
    size, jobs = run.config.data.evaluation_batch_size, run.jobs
    restore(run, path, jobs.prediction(rows_of(samples, size)))
    found: dict[str, list[Array]] = {}
    with Batches(samples, None, size, False, run.config.data.prefetch, fields=list(jobs.network.inputs(jobs.fields))).start(epochs=1) as reading:
        for batch in reading:
            with batch.told():
                outputs = jobs.call(jobs.prediction(batch.size), batch.arguments)
            for name, array in outputs.items():
                found.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


# -------------------------------------------------------------------- input


def opened(run: Prepared, source: str | Path, facts: Mapping[str, Any]) -> Samples | Stream:
    """The samples of a file or folder, read as those of training are, but for the labels."""
    if str(source) in PLACES and not Path(source).exists():
        return open_place(run.config, str(source), facts)
    name = reader_for(run.config, Path(source))
    given = run.config.data.train.arguments if run.config.data.train.reader == name else {}
    return open_reader(name, dict(facts) or None, **arguments_for(name, Path(source), given, run.jobs.network.needed))


def reader_for(config: TrainConfig, source: Path) -> str:
    """The kind of reader for a file or folder."""
    if not source.exists():
        raise ArgumentError(f"--input {source}: there is no such file; or say one of {', '.join(PLACES)} for the samples of the configuration")
    trained = config.data.train.reader
    known = _BY_SUFFIX.get(source.suffix) if source.is_file() else None
    if known is None and "path" in inspect.signature(READERS[trained]).parameters:
        return trained
    if known is None:
        raise ArgumentError(
            f"--input {source}: only files of {', '.join(_BY_SUFFIX)} can be read for a model that was trained with the reader {trained}"
        )
    return known


def arguments_for(name: str, source: Path, given: Mapping[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a reader for a file of input: those of training, without what speaks of labels and of parts of the data."""
    legal = inspect.signature(READERS[name]).parameters
    kept = {key: value for key, value in given.items() if key in legal and key not in ("split", "validation_every", "classes", "labels", "flip")}
    for key in ("fields", "dtypes", "scale", "columns", "features", "categories"):
        if isinstance(kept.get(key), Mapping) and needed:
            kept[key] = {field: value for field, value in kept[key].items() if field in needed}
    kept["path"] = str(source)
    if name == "images":
        kept |= {"labels": False, "crop": "center"} if "crop" in legal else {"labels": False}
    return kept


# -------------------------------------------------------------------- output


def write(path: Path, outputs: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """The outputs as a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        if path.suffix == ".npz":
            np.savez(fresh, **outputs)
        else:
            with open(fresh, "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(rows(outputs, facts))
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def rows(outputs: Mapping[str, Array], facts: Mapping[str, Any]) -> Iterator[list[Any]]:
    """A table: a column for each number of a sample; where scores are of classes, the best one first."""
    names, flat = [], []
    scores = outputs.get("scores")
    if scores is not None and scores.ndim == 2 and scores.shape[1] > 1:
        best = scores.argmax(axis=1)
        classes = facts.get("classes")
        names.append("class")
        flat.append([classes[i] for i in best] if classes and len(classes) == scores.shape[1] else best.tolist())
    for name, array in outputs.items():
        wide = array.reshape(len(array), -1)
        names += [name] if wide.shape[1] == 1 else [f"{name}_{i}" for i in range(wide.shape[1])]
        flat += wide.T.tolist()
    yield names
    yield from map(list, zip(*flat, strict=True))


# -------------------------------------------------------------------- text


def is_of_text(config: TrainConfig) -> bool:
    """True if the model was trained on text, which it can continue."""
    return config.data.train.reader == "text"


def generate(
    loaded: Loaded,
    prompt: str,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """The text that continues a prompt, `count` characters (bytes, if the model is of bytes); `say` gets it piece by piece."""
    config = loaded.config
    if not is_of_text(config):
        raise ConfigError(f"data.train.reader is {config.data.train.reader}; only models that were trained on text can continue a prompt")
    length = int(config.data.train.arguments.get("length", inspect.signature(READERS["text"]).parameters["length"].default))
    with at_line(line_of(loaded, "")), prepared(loaded, only=()) as run:
        path, extra = newest(run, checkpoint)
        words = vocabulary_of(extra.get("facts", {}))
        job = run.jobs.prediction(1, {TOKENS: TensorType((length,), int32)})
        restore(run, path, job)

        def scores_of(tokens: Array) -> Array:
            # a model may know more words than its text has: of these it has learned only that they do not come
            return run.jobs.call(job, {TOKENS: tokens})["scores"][..., : words.size]

        given = [int(token) for token in words.encode(prompt, "the prompt")]
        made = tokens_after(scores_of, given, count, length=length, temperature=temperature, top_k=top_k, seed=seed)
        pieces = list(texts(words, made, say))
    return "".join(pieces)


def texts(words: Vocabulary, tokens: Iterator[int], say: Callable[[str], None]) -> Iterator[str]:
    """The text of tokens as it comes; a character of several bytes when it is complete."""
    pending: list[int] = []
    for token in tokens:
        pending.append(token)
        text = words.decode(pending)
        if not text.endswith("\ufffd") or len(pending) == LONGEST:
            pending = []
            say(text)
            yield text
    if pending:
        say(words.decode(pending))
        yield words.decode(pending)
