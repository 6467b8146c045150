"""Prediction: scores for files of samples, and generated text."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, ConfigError
from jobflow.core.types import Array, TensorType, int32
from jobflow.data.describe import FOLDERS
from jobflow.data.readers import READERS, is_table, open_reader
from jobflow.data.samples import Samples, Stream
from jobflow.data.vocabulary import Vocabulary, vocabulary_of
from jobflow.models.generation.decoding import Reader, WindowReader, continued
from jobflow.models.generation.token_sampling import Sampling, call_text
from jobflow.storage.remote import AnyPath, path_of
from jobflow.trainer.class_names import classes_of, labels_of
from jobflow.trainer.config import Loaded, TrainConfig
from jobflow.trainer.criterion import LABELS
from jobflow.trainer.evaluate import batches_of, restore, rows_of, trained
from jobflow.trainer.job_reader import JobReader
from jobflow.trainer.jobs import TOKENS, Jobs, open_place
from jobflow.trainer.network import Network, layered

#: names of samples in a configuration, accepted in place of an input file
PLACES = ("train", "validation", "test")
#: reader by file name suffix
_BY_SUFFIX = {suffix: name for name, made in READERS.items() for suffix in getattr(made, "suffixes", ())}
#: formats of prediction files
OUTPUTS = (".npz", ".csv")
#: arguments and facts of tables by column
BY_COLUMN = ("categories", "missing", "scale", "empty", "unknown", "dates")
#: arguments of readers for labels, splits and random changes of training samples
OF_TRAINING = ("split", "validation_every", "classes", "labels", "crop", "flip", "rotation", "colour", "rand_augment", "shuffle")
#: the largest number of bytes of a character
LONGEST = 4
#: the target field of language models, which a prompt lacks
TARGETS = "targets"


@dataclass(frozen=True)
class Predicted:
    """Predictions: arrays by name, whose rows are the samples in order."""

    outputs: Mapping[str, Array]
    samples: int
    path: Path | None
    #: columns that identify the samples, such as "file", "row" or an id
    identities: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)


def predict(
    loaded: Loaded, source: str | Path, output: str | Path | None = None, checkpoint: str | Path | None = None, *, probabilities: bool = False
) -> Predicted:
    """Run a checkpoint's predict job on samples: a file or folder, or "train", "validation" or "test" of the configuration.

    Rank 0 writes the outputs to `output`, an .npz or .csv file, unless `output` is None.  With `probabilities`, scores become probabilities.
    """
    if output is not None and Path(output).suffix not in OUTPUTS:
        raise ArgumentError(f"--output {output}: the suffix of predictions must be {' or '.join(OUTPUTS)}")
    with trained(loaded, checkpoint) as (jobs, path, extra):
        samples = opened(jobs, source, extra.get("facts", {}))
        check_fields(jobs, samples, extra.get("fields"), source)
        jobs.take(samples)
        outputs = run_over(jobs, samples, path)
        if probabilities:
            outputs = {"probabilities" if name == "scores" else name: array for name, array in with_probabilities(jobs, outputs).items()}
        count = len(next(iter(outputs.values())))
        identities = identified(samples, count, outputs)
        if output is not None and jobs.session.writes_files:
            write(Path(output), outputs, classes_of(jobs, extra.get("facts", {})), identities)
        return Predicted(outputs, count, None if output is None else Path(output), identities)


def run_over(jobs: Jobs, samples: Samples | Stream, path: AnyPath) -> dict[str, Array]:
    """Load the checkpoint `path`, and return the outputs for all samples by name."""
    restore(jobs, path, jobs.prediction(rows_of(samples, jobs.config.data.evaluation_batch_size)))
    batches: list[dict[str, Array]] = []
    jobs.over(batches_of(jobs, samples, jobs.network.inputs(jobs.fields)), jobs.prediction, lambda _, outputs: batches.append(outputs))
    return {name: np.concatenate([outputs[name] for outputs in batches]) for name in batches[0]}


# -------------------------------------------------------------------- input


def opened(jobs: Jobs, source: str | Path, facts: Mapping[str, Any]) -> Samples | Stream:
    """Open the samples of a file or folder without labels, or of data.<source> if `source` is such a key and not a path."""
    if str(source) in PLACES and not Path(source).exists():
        return open_place(jobs.config, str(source), facts)
    name = reader_for(jobs.config, path_of(source))
    training = jobs.config.data.train.arguments if jobs.config.data.train.reader == name else {}
    arguments = arguments_for(name, path_of(source), training, jobs.network.needed)
    known = dict(facts)
    if isinstance(arguments.get("fields"), Mapping):  # only entries of columns that are read
        columns = {column for named in arguments["fields"].values() for column in ([named] if isinstance(named, str) else named)}
        columns |= {column.rpartition(".")[0] for column in columns}  # parts of dates
        for entries in (known, arguments):
            for key in BY_COLUMN if is_table(name) else ():
                if isinstance(entries.get(key), Mapping):
                    entries[key] = {column: value for column, value in entries[key].items() if column in columns}
    return open_reader(name, known or None, **arguments)


def check_fields(jobs: Jobs, samples: Samples | Stream, trained: Any, source: str | Path) -> None:
    """Raise ArgumentError if samples differ in shape or type from the training samples recorded in the checkpoint."""
    if not isinstance(trained, Mapping):
        return  # a checkpoint of an earlier release
    for name, field in samples.fields.items():
        if name in trained and name not in labels_of(jobs, trained):
            shape, dtype = trained[name]
            if [list(field.shape), field.dtype.name] != [list(shape), dtype]:
                raise ArgumentError(
                    f'--input {source}: a sample\'s field "{name}" is {field}, and the model was trained on {dtype}{list(shape)}; '
                    f"pass samples of this shape and type (arguments of data.train.reader may convert samples)"
                )


def with_probabilities(jobs: Jobs, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs with the softmax of the scores in place of the scores; raise ConfigError if the outputs have no class scores."""
    scores = outputs.get("scores")
    if scores is None or scores.ndim != 2 or scores.shape[1] < 2 or jobs.config.model.loss == "mean_squared_error":
        outputs_text = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
        raise ConfigError(f"--probabilities: the model returns {outputs_text} instead of class scores float[samples, classes]; omit --probabilities")
    wide = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return {**outputs, "scores": (wide / wide.sum(axis=1, keepdims=True)).astype(np.float32)}


def reader_for(config: TrainConfig, source: AnyPath) -> str:
    """Return the name of the reader for the file or folder `source`, by its suffix, else the reader of the training data.

    Raises: ArgumentError if the path is missing, or if its suffix is unknown and the reader of the training data has no argument `path`.
    """
    if not source.exists():
        raise ArgumentError(f"--input {source}: there is no such file; pass an existing file or folder, or one of {', '.join(PLACES)}")
    trained = config.data.train.reader
    if source.is_file() and FOLDERS.get(trained) == (True,) and not source.name.endswith(tuple(_BY_SUFFIX)):
        raise ArgumentError(
            f"--input {source} is a file, and the reader {trained} of this model reads a folder; pass the folder, or one of {', '.join(PLACES)}"
        )
    known = next((name for suffix, name in _BY_SUFFIX.items() if source.name.endswith(suffix)), None) if source.is_file() else None
    if known is None and "path" in inspect.signature(READERS[trained]).parameters:
        return trained
    if known is None:
        raise ArgumentError(
            f"--input {source}: a model that was trained with the reader {trained} reads only {', '.join(_BY_SUFFIX)} files; convert the input"
        )
    return known


def arguments_for(name: str, source: AnyPath, training: Mapping[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of the reader `name` for the input `source`.

    `training` are the arguments of the training reader. The result omits arguments for labels, data splits and random flips.
    """
    legal = inspect.signature(READERS[name]).parameters
    arguments = {key: value for key, value in training.items() if key in legal and key not in OF_TRAINING}
    for key in ("fields", "dtypes", "scale", "columns", "features"):
        if (key != "scale" or not is_table(name)) and isinstance(arguments.get(key), Mapping):
            arguments[key] = {field: value for field, value in arguments[key].items() if (field in needed if needed else field != LABELS)}
    arguments.pop("categories", None)  # the categories of training are among the facts
    arguments["path"] = str(source)
    if name == "images":
        arguments["labels"] = False
    return arguments


# -------------------------------------------------------------------- output


def identified(samples: Samples | Stream, count: int, outputs: Mapping[str, Array]) -> dict[str, list[Any]]:
    """Return the columns that identify samples; a column with the name of an output is named "input_NAME"."""
    columns = samples.identities(np.arange(count)) if isinstance(samples, Samples) else {}
    return {f"input_{name}" if name in outputs or name in ("class", "classes") else name: values for name, values in columns.items()}


def write(path: Path, outputs: Mapping[str, Array], classes: Sequence[str], identities: Mapping[str, Sequence[Any]]) -> None:
    """Write the outputs to an .npz or .csv file atomically, with the columns that identify samples; an .npz file also contains the class names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        if path.suffix == ".npz":
            known = {name: np.array(values if name == "row" else list(map(str, values))) for name, values in identities.items()}
            arrays: dict[str, Any] = {**known, **outputs, **({"classes": np.array(classes)} if classes else {})}
            np.savez(fresh, **arrays)
        else:
            with open(fresh, "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(rows(outputs, classes, identities))
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def rows(outputs: Mapping[str, Array], classes: Sequence[str], identities: Mapping[str, Sequence[Any]] | None = None) -> Iterator[list[Any]]:
    """Yield the header and the rows of a table: columns that identify samples, and one column per output element.

    If there are class scores or probabilities, the first column of outputs is the best class.
    """
    names, flat = list(identities or {}), [list(values) for values in (identities or {}).values()]
    scores = outputs.get("scores", outputs.get("probabilities"))
    if scores is not None and scores.ndim == 2 and scores.shape[1] > 1:
        best = scores.argmax(axis=1)
        names.append("class")
        flat.append([classes[i] for i in best] if classes and len(classes) == scores.shape[1] else best.tolist())
    for name, array in outputs.items():
        wide = array.reshape(len(array), -1)
        each = classes if array is scores and len(classes) == wide.shape[1] else range(wide.shape[1])
        names += [name] if wide.shape[1] == 1 else [f"{name}_{i}" for i in each]
        flat += wide.T.tolist()
    yield names
    yield from map(list, zip(*flat, strict=True))


# -------------------------------------------------------------------- text


def is_of_text(config: TrainConfig) -> bool:
    """Return True if the model was trained on text, so that it can continue a prompt."""
    return config.data.train.reader == "text"


def generate(
    loaded: Loaded,
    prompt: str,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: Sequence[str] = (),
    seed: int = 0,
    checkpoint: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Return a continuation of the prompt by `count` characters (bytes for a model of bytes); `say` receives the continuation in pieces.

    The continuation ends before the first of the texts `stop`.
    """
    config = loaded.config
    if not all(stop):
        raise ArgumentError(f"{call_text()}: a text of stop is empty; pass at least one character")
    if not is_of_text(config):
        raise ConfigError(
            f"data.train.reader is {config.data.train.reader}, but only models that were trained on text can continue a prompt; pass --input"
        )
    length = int(config.data.train.arguments.get("length", inspect.signature(READERS["text"]).parameters["length"].default))
    with trained(loaded, checkpoint) as (jobs, path, extra):
        words = vocabulary_of(extra.get("facts", {}))
        fields = {TOKENS: TensorType((length,), int32)}
        jobs.network = _of_prompts(layered(jobs.network, fields | {TARGETS: fields[TOKENS]}))
        reader = _reader(jobs, path, length, words.size)
        prompts = [[int(token) for token in words.encode(prompt, "the prompt")]]
        sampling = Sampling(temperature, top_k, top_p, seed=seed)
        tokens = (int(token) for (token,) in continued(reader, prompts, count, sampling, sliding=True) if token is not None)
        pieces = []
        for piece in before_stop(texts(words, tokens), stop):
            say(piece)
            pieces.append(piece)
    return "".join(pieces)


def _reader(jobs: Jobs, path: AnyPath, length: int, words: int) -> Reader:
    """Load the checkpoint `path`, and return the model's predict job: with a cache if the model accepts one, else for whole windows."""

    def scores_of(outputs: Mapping[str, Array]) -> Array:
        # the model may have more tokens than its text, which never occur in training
        return _scores(jobs.network, outputs)[..., :words]

    if jobs.network.cached:
        reader = JobReader(jobs, length, scores_of)
        restore(jobs, path, jobs.generation(reader.chunk, length))
        return reader
    job = jobs.prediction(1, {TOKENS: TensorType((length,), int32)})
    restore(jobs, path, job)
    return WindowReader(lambda tokens: scores_of(jobs.call(job, {TOKENS: tokens})), length)


def before_stop(pieces: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """Yield the text of the pieces before the first of the texts `stop`; the possible beginning of such a text waits for the next piece."""
    pending = ""
    for piece in pieces:
        pending += piece
        ends = [pending.index(text) for text in stop if text in pending]
        if ends:
            pending = pending[: min(ends)]
            break
        begins = (size for size in range(min(len(pending), max(map(len, stop), default=0)), 0, -1) if _begins(pending[-size:], stop))
        ready = len(pending) - next(begins, 0)
        if ready:
            yield pending[:ready]
        pending = pending[ready:]
    if pending:
        yield pending


def _begins(end: str, stop: Sequence[str]) -> bool:
    return any(text.startswith(end) for text in stop)


def _scores(network: Network, outputs: Mapping[str, Array]) -> Array:
    """Return the output "scores", the scores of the next tokens; raise ConfigError if the model returns no such output."""
    if "scores" not in outputs:
        raise ConfigError(f'{network.named} returned {", ".join(outputs)}; return a dict with "scores" to generate text')
    return outputs["scores"]


def _of_prompts(network: Network) -> Network:
    """Return the network; raise ConfigError if it requires other fields than tokens."""
    more = [name for name in network.needed if name != TOKENS]
    if more:
        raise ConfigError(
            f"{network.where}: {network.what} needs the field{'s' if len(more) > 1 else ''} {', '.join(more)}, but a prompt has {TOKENS} only; "
            f"give the parameter a default, such as {more[0]}=None, and return the scores if it is None"
        )
    return network


def texts(words: Vocabulary, tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of the tokens in pieces; a multi-byte character is one piece."""
    pending: list[int] = []
    for token in tokens:
        pending.append(token)
        text = words.decode(pending)
        if not text.endswith("\ufffd") or len(pending) == LONGEST:
            pending = []
            yield text
    if pending:
        yield words.decode(pending)
