"""Readers of validation and test samples that inherit the reader of the training samples.

`data.validation: {split: validation}` has the reader and all other arguments of `data.train`.  Arguments that choose samples or change them at random
are not inherited: the split, and random flips, crops, colours and orders.
"""

from __future__ import annotations

import difflib
from typing import Any

from jobflow.trainer.config.tree import Path, Problems, Tree, replaced

#: sections that may inherit, and arguments of `data.train` that they do not
PLACES, OWN = ("validation", "test"), ("split", "flip", "crop", "rotation", "colour", "rand_augment", "shuffle")
_TRAIN: Path = ("data", "train")


def inherited(tree: Tree, problems: Problems) -> Tree:
    """Return the tree with the keys of data.train in each section without `reader`; report sections that read the training samples again."""
    train = tree.get("data.train")
    if not isinstance(train, dict) or not isinstance(train.get("reader"), str):
        return tree
    for part in PLACES:
        own = tree.get(f"data.{part}")
        if isinstance(own, dict) and "reader" not in own and not difflib.get_close_matches("reader", list(own), cutoff=0.7):
            _check(tree, problems, part, train, own)
            path = ("data", part)
            values = {key: value for key, value in train.items() if key not in OWN and key not in own}
            marks = {(*path, *inner[2:]): mark for inner, mark in tree.marks.items() if inner[:2] == _TRAIN and len(inner) > 2 and inner[2] in values}
            tree = Tree(replaced(tree.plain, path, {**values, **own}), {**marks, **tree.marks})
    return tree


def _check(tree: Tree, problems: Problems, part: str, train: dict[str, Any], own: dict[str, Any]) -> None:
    path = ("data", part)
    if not own.keys() - {"validation_every"}:
        message = f"data.{part} inherits the reader of data.train, and would read the same samples"
        problems.add(tree.place(path), path, message, f"data.{part}: {{split: validation}}, another path, or a reader")
    elif own.get("split") == "validation" and train.get("split", "all" if _reads_all(train["reader"]) else "train") == "all":
        message = f"data.{part} has the split validation of data.train, and data.train reads all samples, these included"
        problems.add(tree.place(_TRAIN), _TRAIN, message, "data.train.split: train")


def _reads_all(reader: str) -> bool:
    """Return True for readers whose split is "all" by default."""
    return reader not in ("text", "digits", "idx")
