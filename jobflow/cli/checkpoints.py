"""The implementation of `jobflow ckpt`; its options are in ckpt_command.py."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from jobflow.core.errors import CheckpointError, ReplacedError, counted
from jobflow.core.tables import UNLIMITED, TextTable
from jobflow.storage import manifest
from jobflow.storage.checkpoint_reader import Checkpoint, Stored, StoredShard, problems
from jobflow.storage.difference import Difference, differences, extra_differences, selected, type_text
from jobflow.storage.drafts import unfinished_in
from jobflow.storage.export import open_any, to_checkpoint, to_legacy, to_npz, to_safetensors
from jobflow.storage.remote import AnyPath, RemotePath, path_of
from jobflow.storage.series import TRIES
from jobflow.trainer.units import metric_text, number_text, size_text

T = TypeVar("T")

#: maximum number of shards of a tensor that `show` prints; it counts the others
MOST_SHARDS = 8


# ---- ls ------------------------------------------------------------------------------------------------------------------------------


def ls(options: argparse.Namespace) -> int:
    """Print a table of the checkpoints in a directory, sorted by step."""
    directory = path_of(options.directory)
    looked = (_calmly(path, partial(_row, path, options.quick)) for path in checkpoints_in(directory))
    rows = sorted((row for row in looked if row is not None), key=lambda row: row[:2])
    heads = ["name", "step", "time", "size", "tensors", "metrics", "files" if options.quick else "state"]
    TextTable(heads, [[name, *rest] for _, name, *rest in rows], right={1, 3, 4}).print()
    if unfinished := _unfinished(directory):
        print(unfinished)
    left = sorted(unfinished_in(directory))
    if left:
        print(f"{len(left)} unfinished: {', '.join(left)}; the next save removes those of dead processes")
    return 0


def _calmly(path: AnyPath, look: Callable[[], T]) -> T | None:
    """Return the result of `look`, repeated while a running training replaces files at `path`; None if the path was removed."""
    there = path.exists()
    for left in reversed(range(TRIES)):
        try:
            result = look()
        except (ReplacedError, FileNotFoundError):
            if not left:
                raise
        else:
            return None if there and not path.exists() else result
        if not path.exists():
            break
    return None


def checkpoints_in(directory: AnyPath) -> list[AnyPath]:
    """Return the checkpoints in a directory, or the directory itself if it is a checkpoint; raise CheckpointError for other paths."""
    if not directory.is_dir():
        raise CheckpointError(f"jobflow ckpt: {directory} is not a directory; pass a directory of checkpoints")
    if _is_checkpoint(directory):
        return [directory]
    checkpoints = [entry for entry in directory.iterdir() if entry.is_dir() and not entry.name.startswith(".") and _is_checkpoint(entry)]
    if not checkpoints:
        raise CheckpointError(f"jobflow ckpt: {directory} has no checkpoint (a directory with a {manifest.NAME}); pass a directory of checkpoints")
    return sorted(checkpoints)


def _is_checkpoint(path: AnyPath) -> bool:
    return _has_manifest(path) or any((entry / "out").is_file() for entry in path.iterdir() if entry.is_dir())


def _has_manifest(path: AnyPath) -> bool:
    file = path / manifest.NAME
    return file.exists() or file.is_symlink()


def _row(path: AnyPath, quick: bool) -> list[Any]:
    """Return (sort key, name, step, time, size, tensors, metrics, state) for one checkpoint, which may be damaged."""
    size = size_text(sum(_sizes(path)))
    newest = (path / manifest.NAME) if _has_manifest(path) else path
    time = datetime.fromtimestamp(newest.lstat().st_mtime).isoformat(" ", "seconds")
    try:
        checkpoint = open_any(path)
    except ReplacedError:
        raise
    except manifest.NewerFormatError as error:
        return [float("inf"), path.name, "?", time, size, "?", "", f"newer format: {error}"]
    except CheckpointError as error:
        return [float("inf"), path.name, "?", time, size, "?", "", f"damaged: {error}"]
    damaged = "" if quick else next(problems(path), "")
    state = f"damaged: {damaged}" if damaged else "complete" if quick else "intact"
    step = checkpoint.extra.get("step")
    metrics = " ".join(
        f"{key}={metric_text(key, value) if isinstance(value, float) else _leaf(value)}" for key, value in _below(checkpoint.extra, "metrics").items()
    )
    return [step if isinstance(step, int) else float("inf"), path.name, "" if step is None else step, time, size, len(checkpoint), metrics, state]


def _sizes(path: AnyPath) -> list[int]:
    """Return the sizes of the files below a directory in bytes."""
    if isinstance(path, RemotePath):
        return [status.st_size for status in path.objects().values()]
    return [file.stat().st_size for file in path.rglob("*") if file.is_file()]


def _unfinished(directory: AnyPath) -> str:
    """Return a sentence if the newest checkpoint belongs to an unfinished training, else ""."""
    newest: dict[str, Any] = {}
    for path in checkpoints_in(directory):
        with suppress(CheckpointError):  # its row is marked as damaged
            extra = dict(open_any(path).extra)
            if isinstance(extra.get("step"), int) and extra["step"] >= newest.get("step", 0):
                newest = extra
    own = _below(newest, "trainer")
    if own.get("ended", True):
        return ""
    return f"the training has not finished: step {newest['step']:,} of {own.get('steps', '?')}; `jobflow train` with the same file resumes it"


def _below(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the subtree at a key of an unchecked tree; {} if it is missing or not a mapping."""
    subtree = tree.get(key)
    return subtree if isinstance(subtree, Mapping) else {}


# ---- show ----------------------------------------------------------------------------------------------------------------------------


def show(options: argparse.Namespace) -> int:
    """Print a table of tensors, then the saved JSON tree as YAML."""
    checkpoint = open_any(options.checkpoint)
    names = selected(options.names, checkpoint)
    print(f"{checkpoint.path}: {len(names)} of {len(checkpoint)} tensors, {size_text(sum(checkpoint.stored[name].type.nbytes for name in names))}")
    layouts = _below(_below(checkpoint.extra, "layout"), "variables")
    rows = [line for name in names for line in _tensor_lines(checkpoint.stored[name], layouts.get(name, ""))]
    TextTable(["tensor", "type", "bytes", "layout", "where"], rows, right={2}).print()
    if checkpoint.extra:
        print("\n" + yaml.safe_dump(dict(checkpoint.extra), sort_keys=False, allow_unicode=True, width=UNLIMITED), end="")
    return 0


def _tensor_lines(stored: Stored, layout: str) -> Iterator[list[str]]:
    """Yield the table rows of one tensor: one with its type and saved layout, and one per shard if there are several."""
    shards: Sequence[StoredShard] = getattr(stored, "shards", ())
    first = [stored.name, type_text(stored), str(stored.type.nbytes), layout]
    if len(shards) < 2:
        yield [*first, stored.file.name]
        return
    yield [*first, f"{len(shards)} shards"]
    for shard in shards[:MOST_SHARDS]:
        yield ["", "", "", "", f"{manifest.box_text(shard.box)} {shard.file_path.name}"]
    if len(shards) > MOST_SHARDS:
        yield ["", "", "", "", f"... {len(shards) - MOST_SHARDS} more"]


# ---- verify and diff -----------------------------------------------------------------------------------------------------------------


def verify(options: argparse.Namespace) -> int:
    """Verify every hash of the checkpoints; return 1 if one is damaged."""
    bad = 0
    for path in (path for start in options.checkpoints for path in (checkpoints_in(path_of(start)) if path_of(start).is_dir() else [path_of(start)])):
        damages = _calmly(path, partial(_damages, path))
        if damages is None:
            print(f"{path}: removed during the read")
            continue
        bad += bool(damages)
        state = "NEWER FORMAT" if _is_newer(path) else "DAMAGED" if damages else "intact"
        print(f"{path}: {state}" + "".join(f"\n  {line}" for line in damages))
    return int(bool(bad))


def _is_newer(path: AnyPath) -> bool:
    """Return True for a checkpoint of a format that this release cannot verify."""
    try:
        open_any(path)
    except manifest.NewerFormatError:
        return True
    except (CheckpointError, OSError):
        return False
    return False


def _damages(path: AnyPath) -> list[str]:
    """Return one message per damaged tensor of a checkpoint, or the first error of a file of tensors."""
    if not path.is_file():
        return list(problems(path))
    try:
        for stored in open_any(path).stored.values():
            stored.numpy()
    except CheckpointError as error:
        return [str(error)]
    return []


def diff(options: argparse.Namespace) -> int:
    """Print a table of the tensors and other entries that differ between two checkpoints; return 1 if tensors differ."""
    first, second = open_any(options.first), open_any(options.second)
    names = [*first, *(name for name in second if name not in first)]
    different = list(differences(first, second, options.names, rtol=options.rtol, atol=options.atol))
    if different:
        heads = ["tensor", "first", "second", "unequal elements", "max |a-b|", "max |a-b|/max(|a|,|b|)"]
        TextTable(heads, [*map(_difference, different)], right={3, 4, 5}).print()
    extras = [
        [key, *("" if value is None else value if isinstance(value, str) else json.dumps(value) for value in (a, b))]
        for key, a, b in extra_differences(first.extra, second.extra)
    ]
    if extras:
        print(end="\n" if different else "")
        TextTable(["other entries", "first", "second"], extras).print()
    print(f"{len(different)} of {len(selected(options.names, names))} tensors differ")
    return int(bool(different))


def _difference(difference: Difference) -> list[str]:
    if difference.of_type:
        return [difference.name, difference.first or "missing", difference.second or "missing", "", "", ""]
    return [difference.name, difference.first or "", "same type", str(difference.unequal), f"{difference.absolute:.3g}", f"{difference.relative:.3g}"]


# ---- export and convert --------------------------------------------------------------------------------------------------------------


def export(options: argparse.Namespace) -> int:
    """Write tensors to a .npz or a .safetensors file."""
    if Path(options.file).suffix not in FILES:
        raise CheckpointError(f"export to {options.file}: unsupported suffix; pass a name that ends in {' or '.join(FILES)}")
    return _export(_open(options.checkpoint, options.types_from), options.file, options.names, options.force)


def _export(source: Checkpoint, target: str, names: Sequence[str], replace: bool) -> int:
    became = FILES[Path(target).suffix](source, target, names, replace=replace)
    print(f"wrote {target}: {counted(len(selected(names, source)), 'tensor')}")
    if became:
        print(f"bfloat16 tensors were written as float32, because NumPy has no bfloat16: {', '.join(became)}")
    return 0


def convert(options: argparse.Namespace) -> int:
    """Convert a checkpoint or file between the supported formats."""
    source = _open(options.source, options.types_from)
    is_ours = (source.path / manifest.NAME).is_file()
    suffix = Path(options.target).suffix
    if options.to in ("npz", "safetensors") and suffix != f".{options.to}":
        raise CheckpointError(
            f"convert to {options.target} --to {options.to}: the suffix differs from the format; pass a name that ends in .{options.to}"
        )
    if options.to is None and suffix not in FILES and any(map(str.isalpha, suffix)):
        raise CheckpointError(
            f"convert to {options.target}: {suffix} is not a supported format; pass a name that ends in {' or '.join(FILES)}, "
            f"a directory name without a suffix, or any directory name with --to jobflow or --to legacy"
        )
    to = options.to or (suffix[1:] if suffix in FILES else "legacy" if is_ours else "jobflow")
    if f".{to}" in FILES:
        return _export(source, options.target, options.names, False)
    if to == "legacy":
        to_legacy(source, options.target, options.names)
    else:
        to_checkpoint(source, options.target, options.names)
    kind = "a legacy directory" if to == "legacy" else "a checkpoint"
    print(f"wrote {options.target}: {counted(len(selected(options.names, source)), 'tensor')}, {kind}")
    return 0


def _open(path: str, types_from: str | None) -> Checkpoint:
    types = {name: stored.type for name, stored in open_any(types_from).stored.items()} if types_from else None
    return open_any(path, types)


#: writer by file name suffix
FILES: dict[str, Callable[..., list[str]]] = {".npz": to_npz, ".safetensors": to_safetensors}

# ---- words ---------------------------------------------------------------------------------------------------------------------------


def _leaf(value: Any) -> str:
    return value if isinstance(value, str) else number_text(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
