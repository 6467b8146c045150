"""Tensors in several safetensors files, with an index `model.safetensors.index.json` as in models of Hugging Face.

The index has {"weight_map": {"tensor": "model-00001-of-00002.safetensors"}}; all files are in its folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from jobflow.core.errors import CheckpointError, counted, did_you_mean
from jobflow.storage.remote import AnyPath
from jobflow.storage.safetensors import ITEMS, TensorInfo, read_header
from jobflow.storage.untrusted import HEADER, content, json_tree, plain_name

#: the ending of an index, and the usual names of an index and of a single file in a folder
ENDING = ".safetensors.index.json"
INDEX, SINGLE = f"model{ENDING}", "model.safetensors"


def read_index(path: AnyPath) -> dict[str, tuple[AnyPath, TensorInfo]]:
    """Return the file and the type of each tensor of an index; raise CheckpointError if the index and the files differ."""
    shards = _shards(path)
    if lost := [name for name in shards if not (path.parent / name).exists()]:
        missing = f"{len(lost)} of {counted(len(shards), 'file')} {'is' if len(lost) == 1 else 'are'}"
        raise CheckpointError(f"{path}: {missing} missing, such as {lost[0]}; copy the complete folder")
    tensors: dict[str, tuple[AnyPath, TensorInfo]] = {}
    for shard, names in shards.items():
        infos = read_header(path.parent / shard)
        if absent := [name for name in names if name not in infos]:
            near = did_you_mean(absent[0], infos)
            raise CheckpointError(f'{path}: {shard} has no tensor "{absent[0]}"{near or ";"} copy index and files of one model')
        for name, info in infos.items():
            if name in tensors:
                raise CheckpointError(f'{path}: tensor "{name}" is in {tensors[name][0].name} and in {shard}; keep one of them')
            tensors[name] = path.parent / shard, info
    indexed = set().union(*shards.values())
    if more := [name for name in tensors if name not in indexed]:
        raise CheckpointError(f'{path}: tensor "{more[0]}" of {tensors[more[0]][0].name} is not in the index; copy index and files of one model')
    return tensors


def _shards(path: AnyPath) -> dict[str, set[str]]:
    """Return the names of tensors by the name of their file."""
    try:
        text = content(path, HEADER, CheckpointError)
        ITEMS.check(text.count(b","), "it", ValueError)
        json_tree(text)  # checks the depth
        tree = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique)
        if not isinstance(tree, Mapping) or "weight_map" not in tree:
            raise ValueError("it must be a map with weight_map, a map of file names by tensor")
        entries = tree["weight_map"]
        if not isinstance(entries, Mapping) or not entries:
            raise ValueError("weight_map must be a map of file names by tensor")
        shards: dict[str, set[str]] = {}
        for name, shard in entries.items():
            shards.setdefault(_shard_name(shard), set()).add(name)
    except FileNotFoundError:
        raise CheckpointError(f"there is no index {path}; correct the path, or copy the folder again") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not an index of safetensors files: {error}; copy it again") from None
    return shards


def _shard_name(name: Any) -> str:
    if not plain_name(name).endswith(".safetensors"):
        raise ValueError(f"{name!r:.80} is not a .safetensors file")
    return str(name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raise ValueError for a name that occurs twice."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f'the name "{twice}" occurs twice')
    return tree
