"""Recorder of PyTorch's results, in a separate environment.

Usage:

    python record.py list FILE               the names that PyTorch has samples for
    python record.py record WANTED FOLDER    their samples and results, for the entries of the list in WANTED
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "conformance"))

import torch
import torch_modules
import torch_operators
import torch_optimizers
from conformance_format import write
from torch_trees import Recording

#: by kind: the names, and what records one of them
LISTS: dict[str, tuple[Callable[[], list[dict[str, Any]]], Callable[[dict[str, Any]], Recording]]] = {
    "operators": (torch_operators.listed, torch_operators.recorded),
    "modules": (torch_modules.listed, torch_modules.recorded),
    "optimizers": (torch_optimizers.listed, torch_optimizers.recorded),
    "schedules": (torch_optimizers.schedules_listed, torch_optimizers.schedule_recorded),
}


def listed() -> dict[str, Any]:
    return {"version": torch.__version__, **{kind: listing() for kind, (listing, _) in LISTS.items()}}


def record(entries: dict[str, Any], folder: Path) -> None:
    left_out: dict[str, dict[str, int]] = {}
    for kind, (_, recorded) in LISTS.items():
        for entry in entries.get(kind, ()):
            recorder = recorded(entry)
            name = "-".join(filter(None, (kind, entry["name"], entry.get("variant"))))
            write(folder / f"{name}.jsonl", [entry | {"kind": kind}, *recorder.lines], recorder.encode.data)
            left_out[name] = recorder.left_out
    (folder / "left_out.json").write_text(json.dumps(left_out), encoding="utf-8")


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    if sys.argv[1] == "list":
        Path(sys.argv[2]).write_text(json.dumps(listed()), encoding="utf-8")
    else:
        record(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), Path(sys.argv[3]))


if __name__ == "__main__":
    main()
