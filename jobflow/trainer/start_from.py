"""Initial values of a run from other files: the section `start_from`.

The source is a run, a checkpoint, or a file of safetensors, NumPy or `torch.save`. Names in the file are renamed, and compared with the variables
of the model. Every process reads the file, because a rank needs its own parts only. The values become part of the first checkpoint, so a resumed
run, `jobflow eval` and `jobflow predict` do not need the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, ConfigError, FileError, counted, did_you_mean, patterns_like
from jobflow.core.filters import matches
from jobflow.core.notices import notice
from jobflow.core.tables import TextTable
from jobflow.core.types import Array, TensorType
from jobflow.functional import foreign_files
from jobflow.functional.typed import Tensor
from jobflow.graph.ir import Variable
from jobflow.models.weight_names import KNOWN, WeightNames, renamed
from jobflow.storage.checkpoint_reader import Stored, variable_type
from jobflow.storage.export import open_any
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.safetensors import bytes_of
from jobflow.storage.safetensors_index import ENDING, INDEX, SINGLE
from jobflow.storage.series import Series
from jobflow.trainer.config import Loaded
from jobflow.trainer.config.schema import StartFrom
from jobflow.trainer.element_types import converted
from jobflow.trainer.jobs import Jobs
from jobflow.trainer.resume import check_alike, everywhere, together

#: suffixes of files of `torch.save`
TORCH = (".pt", ".pth", ".bin", ".ckpt")
#: suffixes of all files with initial values
FILES = (".safetensors", ENDING, ".npz", *TORCH)
#: maximum number of rows of one kind in the table, and of problems in a message
MOST = 20
#: (a key of start_from) -> the key with its position, for messages; "" is the section
Key: TypeAlias = Callable[[str], str]
#: variables are set in groups of about this many bytes
GROUP = 2**28


@dataclass(frozen=True)
class TorchTensor(Stored):
    """A tensor in a file of `torch.save`, which is in memory."""

    name: str
    file: AnyPath
    array: Array

    @property
    def type(self) -> TensorType:
        return variable_type(f'{self.file}: tensor "{self.name}"', self.array.shape, self.array.dtype)

    def numpy(self) -> Array:
        return self.array


@dataclass(frozen=True)
class Transposed(Stored):
    """A matrix in a file, transposed."""

    name: str
    file: AnyPath
    matrix: Stored

    @property
    def type(self) -> TensorType:
        type = self.matrix.type
        if type.ndim != 2:
            raise ConfigError(f'{self.file}: tensor "{self.name}" is {type}, but only matrices can be transposed; correct the patterns of transpose')
        return TensorType(type.shape[::-1], type.dtype)

    def numpy(self) -> Array:
        return np.ascontiguousarray(self.matrix.numpy().T)


@dataclass(frozen=True)
class Match:
    """The comparison of a model with a file: the variables by state, and the tensors of the file without a variable."""

    #: variable -> tensor in the file
    loaded: Mapping[str, str]
    skipped: tuple[str, ...]
    initialized: tuple[str, ...]
    unused: tuple[str, ...]


# -------------------------------------------------------------------- files


def located(path: AnyPath, key: str) -> AnyPath:
    """Return the checkpoint or file for a path: a file, or the folder of a run or of safetensors files; `key` begins messages.

    Raises: ConfigError if the path is missing, or a folder without an intact checkpoint.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        near = did_you_mean(path.name, (other.name for other in path.parent.iterdir())) if path.parent.is_dir() else ""
        raise ConfigError(f"{key}: there is no run, checkpoint or file {path}{near or '; pass an existing path'}")
    if (path / "manifest.json").is_file():
        return path
    for name in (INDEX, SINGLE):
        if (path / name).is_file():
            return path / name
    skipped: list[str] = []
    for folder in (path / "checkpoints", path):
        newest = Series(folder).newest_good()
        if newest.path is not None:
            for each in newest.skipped:
                notice(str(each))
            return newest.path
        skipped += map(str, newest.skipped)
    if any((entry / "out").is_file() for entry in path.iterdir()):
        return path
    listed = "".join(f"\n  {line}" for line in skipped)
    raise ConfigError(f"{key}: {path} has no intact checkpoint; pass a run, a checkpoint, or a {', '.join(FILES)} file{listed}")


def opened(path: AnyPath, key: str, types: Mapping[str, TensorType]) -> Mapping[str, Stored]:
    """Return the tensors of a checkpoint or file by name; `types` applies to tensors of OneFlow's directories without a type.

    Raises: ConfigError for an unknown suffix, CheckpointError for a damaged file.
    """
    if path.is_file() and not path.name.endswith(FILES):
        raise ConfigError(f'{key}: {path} has the unknown suffix "{path.suffix}"; pass a run, a checkpoint, or a {", ".join(FILES)} file')
    try:
        if path.suffix in TORCH and path.is_file():
            tree = foreign_files.read(path, foreign_files.DeviceMap(key, None))
            return {name: TorchTensor(name, path, array) for name, array in _tensors(tree, "")}
        return open_any(path, types).stored
    except (CheckpointError, FileError) as error:
        raise CheckpointError(f"{key}: {error}") from error


def _tensors(tree: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Yield the names and arrays of the tensors in a structure; names are joined by dots, as in "state_dict.head.weight"."""
    if isinstance(tree, Tensor):
        yield name, tree.array
    elif isinstance(tree, Mapping | list | tuple):
        for step, inner in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _tensors(inner, f"{name}.{step}" if name else str(step))


# -------------------------------------------------------------------- names


def names_of(options: StartFrom, key: Key, tensors: Mapping[str, Stored]) -> tuple[dict[str, str], Mapping[str, Stored]]:
    """Return {name in the model: name in the file}, and the tensors of the file with transposed matrices where the configuration requests them."""
    known = KNOWN[options.rename] if isinstance(options.rename, str) else WeightNames(options.rename)
    names = renamed(tensors, known.rename, key("rename"), strict=not isinstance(options.rename, str))
    for pattern in options.transpose:
        if not any(matches(pattern, name) for name in names):
            raise ConfigError(f'{key("transpose")}: no tensor matches "{pattern}"{did_you_mean(pattern, patterns_like(pattern, names))}')
    chosen = [names[name] for name in names if matches((*known.transpose, *options.transpose), name)]
    turned = {old: Transposed(old, tensors[old].file, tensors[old]) for old in chosen}
    return names, {**tensors, **turned}


def matched(
    options: StartFrom, key: Key, path: AnyPath, variables: Mapping[str, Variable], names: Mapping[str, str], tensors: Mapping[str, Stored]
) -> Match:
    """Compare the variables of the model with the tensors of the file; `names` is {name in the model: name in the file}.

    Raises: ConfigError with all variables that do not fit, and with the setting that would accept each.
    """
    for name in ("only", "skip"):
        for pattern in getattr(options, name):
            if not any(matches(pattern, variable) for variable in variables):
                raise ConfigError(
                    f'{key(name)}: no variable of the model matches "{pattern}"{did_you_mean(pattern, patterns_like(pattern, variables))}'
                )
    selected = [name for name in variables if matches(options.only, name) and not matches(options.skip, name)]
    problems = list(_problems(options, variables, selected, names, tensors))
    if problems:
        more = [f"  and {len(problems) - MOST} more"] if len(problems) > MOST else []
        raise ConfigError("\n".join([f"{key('')}: {path} does not fit the model:", *(f"  {line}" for line in problems[:MOST]), *more]))
    loaded = {name: names[name] for name in selected if name in names}
    if not loaded:
        raise ConfigError(f"{key('')}: {path} has no value for any selected variable of the model{_prefix_advice(variables, names)}")
    used = {names[name] for name in variables if name in names}
    skipped = tuple(name for name in variables if name not in selected)
    return Match(loaded, skipped, tuple(name for name in selected if name not in names), tuple(name for name in tensors if name not in used))


def _problems(
    options: StartFrom, variables: Mapping[str, Variable], selected: list[str], names: Mapping[str, str], tensors: Mapping[str, Stored]
) -> Iterator[str]:
    """Yield one line for each selected variable with another type in the file, or without a value if `strict` is set."""
    # a counter of batches that only training reads
    lacking = [name for name in selected if name not in names and not name.endswith("num_batches_tracked")]
    for name in selected:
        if name not in names:
            continue
        mine, saved = variables[name].type, tensors[names[name]].type
        if mine.shape != saved.shape:
            yield f"{name}: the model has {mine}, the file {saved}; to keep the initial value, write skip: [{_siblings(name)!r}]".replace("'", '"')
        elif mine.dtype is not saved.dtype and not (mine.dtype.is_float and saved.dtype.is_float):
            yield f"{name}: the model has {mine}, the file {saved}; convert the file"
    if lacking and options.strict:
        prefix = _prefix_advice(lacking, names)
        for name in lacking:
            near = did_you_mean(name, [other for other in names if other not in variables])
            yield f"{name}: the file has no value{near}"
        yield f"write rename, skip or strict: false{prefix}"


def _siblings(name: str) -> str:
    """Return the pattern for all variables of a layer: "head.*" for "head.weight", "head-*" for "head-weight"."""
    cut = max(name.rfind("."), name.rfind("-"))
    return f"{name[: cut + 1]}*" if cut > 0 else name


def _prefix_advice(lacking: Any, names: Mapping[str, str]) -> str:
    """Return advice if names of the file and of the model differ only by a prefix, such as "state_dict."; else ""."""
    for name in lacking:
        for other in names:
            if other.endswith(f".{name}"):
                return f'; the file has "{other}": write rename: {{"{other.removesuffix(name)}*": "*"}}'
            if name.endswith(f".{other}"):
                return f'; the file has "{other}": write rename: {{"*": "{name.removesuffix(other)}*"}}'
    return ""


# -------------------------------------------------------------------- loading


def compared(jobs: Jobs) -> tuple[AnyPath, Mapping[str, Stored], Match]:
    """Return the file that `start_from` names, its tensors, and their comparison with the variables of the model. Collective.

    Raises: ConfigError or CheckpointError, on all ranks.
    """
    options = jobs.loaded.config.start_from
    assert options is not None, "the configuration has no start_from"
    key = _placed(jobs.loaded, "path").removesuffix(".path")
    path = together(jobs.session, lambda: located(path_of(options.path), key))
    types = {name: variable.type for name, variable in jobs.variables.items()}

    def compare() -> tuple[Mapping[str, Stored], Match]:
        placed = partial(_placed, jobs.loaded)
        names, tensors = names_of(options, placed, opened(path, key, types))
        return tensors, matched(options, placed, path, jobs.variables, names, tensors)

    return path, *everywhere(jobs.session, compare)


def comparison(jobs: Jobs) -> str:
    """Return the table of what a run would load; the variables of the model do not change. Raises: as `start`."""
    path, tensors, match = compared(jobs)
    return table(path, match, jobs.variables, tensors)


def start(jobs: Jobs) -> str:
    """Set the variables of the model as `start_from` describes, and return the table of what was loaded. Collective.

    Raises: ConfigError or CheckpointError, on all ranks; no step has run then.
    """
    session, types = jobs.session, {name: variable.type for name, variable in jobs.variables.items()}
    path, tensors, match = compared(jobs)
    key = _placed(jobs.loaded, "")
    check, odd = 0, dict[str, int]()
    for group in _groups(match.loaded, types):
        values = everywhere(session, lambda group=group: {name: _value(tensors[match.loaded[name]], name, types[name], key) for name in group})  # type: ignore[misc]
        for name, array in values.items():
            check = zlib.crc32(bytes_of(array), check)
            if array.dtype.kind not in "biu" and (count := array.size - int(np.count_nonzero(np.isfinite(array)))):
                odd[name] = count
        session.write(values)
    check_alike(session, {f"{key}: {path}": f"the checksum {check:08x}"})
    return table(path, match, jobs.variables, tensors) + _not_finite(odd)


def _not_finite(counts: Mapping[str, int]) -> str:
    """Return a line with the numbers of loaded values that are NaN or infinite, by variable; "" without such values."""
    listed = ", ".join(f"{name} ({count:,})" for name, count in [*counts.items()][:MOST])
    more = f" and {counted(len(counts) - MOST, 'more variable')}" if len(counts) > MOST else ""
    return f"\nNaN or infinite values in the file: {listed}{more}; correct the file unless they are intended" if counts else ""


def _placed(loaded: Loaded, name: str) -> str:
    """Return a key of start_from, or the section for "", with its position: that of a setting, if a setting changes the section."""
    settings = [path for path, at in loaded.origins.items() if path.startswith("start_from.") and not at.line]
    paths = [f"start_from.{name}", *([] if name else settings), "start_from.path", "start_from"]
    at = loaded.origin(next((path for path in paths if path in loaded.origins), paths[0]))
    return f"{at}: start_from{name and f'.{name}'}"


def _groups(names: Mapping[str, str], types: Mapping[str, TensorType]) -> Iterator[list[str]]:
    """Yield the names in groups of about GROUP bytes."""
    group: list[str] = []
    size = 0
    for name in names:
        group.append(name)
        size += types[name].nbytes
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def _value(stored: Stored, name: str, type: TensorType, key: str) -> Array:
    """Read a tensor, and convert it to the element type of the variable `name`.

    Raises: CheckpointError for a damaged file; ConfigError for a value beyond the range of the element type.
    """
    try:
        array, beyond = converted(stored.numpy(), type.dtype.numpy)
    except OSError as error:
        raise CheckpointError(f"{stored.file}: {error.strerror or error}") from error
    if beyond is not None:
        raise ConfigError(
            f'{key}: {stored.file}: tensor "{stored.name}" has the value {beyond:g}, beyond the range of {type.dtype.name} of the variable {name}; '
            f"correct the file"
        )
    return array.reshape(type.shape)


# -------------------------------------------------------------------- table


def table(path: AnyPath, match: Match, variables: Mapping[str, Variable], tensors: Mapping[str, Stored]) -> str:
    """Return the table of the variables that were loaded, skipped and initialized, and of the unused tensors of the file."""
    states = [name for name in match.unused if name.startswith("System-") or name.rpartition("-")[0] in tensors]
    rows: dict[str, list[list[str]]] = {
        "loaded": [[name, str(variables[name].type), _source(name, old, variables, tensors)] for name, old in match.loaded.items()],
        "skipped": [[name, str(variables[name].type), "initial value"] for name in match.skipped],
        "not in the file": [[name, str(variables[name].type), "initial value"] for name in match.initialized],
        "unused": [[name, "", ""] for name in match.unused if name not in states],
    }
    lines = [
        [state, *row]
        for state, every in rows.items()
        for row in [*every[:MOST], *([[f"... {len(every) - MOST} more", "", ""]] if every[MOST:] else [])]
    ]
    values = sum(variables[name].type.size for name in match.loaded)
    head = f"start from {path}: {len(match.loaded)} of {counted(len(variables), 'variable')} loaded, {counted(values, 'value')}"
    more = f"; {counted(len(states), 'optimizer state')} not loaded" if states else ""
    return f"{head}{more}\n{TextTable(['', 'variable', 'type', 'from'], lines)}"


def _source(name: str, old: str, variables: Mapping[str, Variable], tensors: Mapping[str, Stored]) -> str:
    """Return the tensor's name in the file if it differs, and its element type if it was converted."""
    saved = tensors[old].type.dtype
    converted = f"({saved.name})" if saved is not variables[name].type.dtype else ""
    return " ".join(filter(None, [old if old != name else "", converted]))
