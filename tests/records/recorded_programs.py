"""The recorded programs: every example, every configuration, every program of README and docs that compiles or trains, and the cases.

A program has several runs: on 1, 2 and 4 devices of a job's session, on as many ranks of tensors, and under its strategies.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import cases
import numpy as np
import pages
import recording
import shortened
from cases import SIZES, STEPS, Way
from recording import Record

from jobflow.data.digits import originals
from jobflow.trainer.config import Loaded
from jobflow.trainer.loop import train
from jobflow.trainer.preview import preview

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
#: how an example is run, with the example's own options; those of tensors run on ranks.  gpt.py trains on Python's own source, which
#: differs between versions, so its jobs are among the cases instead
DIRECT = ("--convolution", "direct")
OF_JOBS = {
    "consistent_strategy": DIRECT,
    "hybrid_lenet": DIRECT,
    "hybrid_mlp": (),
    "hybrid_mlp_optimizer": (),
    "lenet_digits": DIRECT,
    "mirrored_strategy": (),
}
OF_TENSORS: dict[str, dict[str, tuple[str, ...]]] = {
    "global_mlp": {sbp: ("--sbp", sbp) for sbp in ("broadcast", "split0", "split1")},
    "mixed_graph": {"4 parts": ("--parts", "4")},
}
NOT_RUN = {"gpt", "mnist_util"}
#: pages whose programs say themselves how many devices there are, or where tensors and a job meet, which is in one process
ITSELF = ("strategies.md", "jobs_and_tensors.md")
#: how far numbers may lie apart on another class of machine or in another tier, at the first and at the last step, where it is more than usual
FAR = {
    # another of two nearly equal candidates of a pooling window wins: decision 0008; rates are high, and numbers are means with accuracies
    **dict.fromkeys(("configs/lenet_digits", "docs/reports-1", "docs/training-1"), (1e-4, 5e-2)),
    # a bias before a batch norm has a gradient of rounding alone, whose sign Adam takes for a step
    "docs/modules-3": (1e-3, 1e-3),
}
#: programs whose layouts and plans are recorded: four examples, two configurations, and the cases, which have every strategy,
#: optimizer, schedule and kind of step. Of the others, the losses, random streams and variables are recorded
PLANNED = {
    "examples/hybrid_lenet",
    "examples/hybrid_mlp_optimizer",
    "examples/mirrored_strategy",
    "examples/mixed_graph",
    "configs/char_gpt_2x2",
    "configs/resnet_images",
    "cases/graphs",
    "cases/optimizers",
    "cases/steps",
    "cases/strategies",
}
#: programs for so many devices
FOR = {
    # ranks as threads compile forward and backward in any order
    "compiled_functions-1": (1,),
    "compiled_functions-2": (1,),
    "job_functions-1": (2,),
}


@dataclass(frozen=True)
class Program:
    """A program, and the ways in which it is recorded."""

    name: str
    ways: tuple[Way, ...]


def programs() -> dict[str, Program]:
    """All of them, by name."""
    all_programs = [*examples(), *configurations(), *documents(), *(Program(f"cases/{name}", tuple(runs)) for name, runs in cases.CASES.items())]
    return {program.name: replace(program, ways=tuple(_as_far(program.name, way) for way in program.ways)) for program in all_programs}


def _as_far(program: str, way: Way) -> Way:
    return replace(way, tolerance=FAR[program]) if program in FAR else way


# -------------------------------------------------------------------- examples


def examples() -> Iterator[Program]:
    """Yield the programs in examples/; an example without an entry raises."""
    listed = {*OF_JOBS, *OF_TENSORS, *NOT_RUN}
    there = {path.stem for path in EXAMPLES.glob("*.py")}
    if there != listed:
        raise LookupError(f"tests/records/recorded_programs.py lists other examples than there are: {sorted(there ^ listed)}")
    steps = ("--steps", str(STEPS), "--every", "1")
    for name, options in OF_JOBS.items():
        runs = [Way(devices(n), _example(name, "--devices", str(n), *steps, *options), slow=bool(options)) for n in SIZES]
        yield Program(f"examples/{name}", tuple(runs))
    for name, variants in OF_TENSORS.items():
        runs = [Way(f"{ranks(n)}, {how}", _example(name, *steps, *own), ranks=n) for n in SIZES for how, own in variants.items()]
        yield Program(f"examples/{name}", tuple(runs))


def _example(name: str, *options: str) -> Callable[[], None]:
    path = EXAMPLES / f"{name}.py"
    return partial(run_text, path.read_text(encoding="utf-8"), path, (str(path), *options))


def devices(n: int) -> str:
    return f"{n} device{'s' * (n > 1)}"


def ranks(n: int) -> str:
    return f"{n} rank{'s' * (n > 1)}"


def run_text(text: str, path: Path, argv: tuple[str, ...]) -> None:
    """Run a program as `python path` would, in this process."""
    with mock.patch.object(sys, "argv", list(argv)):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})


# -------------------------------------------------------------------- configurations


def configurations() -> Iterator[Program]:
    """Yield the configurations in configs/: all without running, and small ones that train, on their own devices and on others."""
    for name in shortened.NAMES:
        runs = [Way("as it is, not run", partial(_previewed, name), brief=True)]
        if name.startswith("char_gpt_"):
            runs.append(Way("own devices", partial(_trained, name)))
        else:
            runs += [Way(devices(n), partial(_trained, name, f"strategy.devices={n}")) for n in SIZES]
        yield Program(f"configs/{name}", tuple(runs))


def _previewed(name: str) -> None:
    preview(shortened.whole(name, Path("images"), *_text(name)))


def _trained(name: str, *settings: str) -> None:
    with tempfile.TemporaryDirectory() as output:
        loaded: Loaded = shortened.shortened(name, Path("images"), Path(output), STEPS, *_text(name), *settings)
        train(loaded)


def _text(name: str) -> tuple[str, ...]:
    return ("data.train.path=text.txt", "data.validation.path=text.txt") if name.startswith("char_gpt") else ()


# -------------------------------------------------------------------- README and docs


def documents() -> Iterator[Program]:
    """Programs of README and docs, numbered within their page."""
    count: dict[str, int] = {}
    for block in pages.programs():
        count[block.page] = count.get(block.page, 0) + 1
        if pages.COMPILES.search(block.text):
            name = f"{Path(block.page).stem}-{count[block.page]}"
            yield Program(f"docs/{name}", tuple(_ways_of(block, name)))


def _ways_of(block: pages.Block, name: str) -> Iterator[Way]:
    run = partial(run_text, block.text, Path(f"{name}.py"), (f"{name}.py",))
    if block.page in ITSELF or "load(" in block.text:
        yield Way("as it is", run)
        return
    for n in FOR.get(name, SIZES):
        if "global_function" in block.text:
            yield Way(devices(n), partial(_with_devices, run, n))
        else:
            yield Way(ranks(n), run, ranks=n)


def _with_devices(run: Callable[[], None], n: int) -> None:
    with mock.patch.dict(os.environ, JOBFLOW_DEVICES=str(n)):
        run()


# -------------------------------------------------------------------- where they run


@contextmanager
def surroundings() -> Iterator[None]:
    """A folder of its own with the data that programs read, and silence."""
    before, path = os.getcwd(), list(sys.path)
    sys.path[:0] = [str(EXAMPLES), str(ROOT / "configs")]
    with tempfile.TemporaryDirectory(prefix="jobflow-records-") as folder:
        try:
            os.chdir(folder)
            _write_data(Path(folder))
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                yield
        finally:
            os.chdir(before)
            sys.path[:] = path


def _write_data(folder: Path) -> None:
    """Small files of fixed content: digits in MNIST's format and as folders of images, and a text."""
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    images, labels = originals()
    large = np.pad(np.kron(images.astype(np.uint8) * 15, np.ones((1, 3, 3), np.uint8)), ((0, 0), (2, 2), (2, 2)))
    for part, rows in (("train", slice(0, 1600)), ("t10k", slice(1600, 1700))):
        _write_idx(folder / f"{part}-images-idx3-ubyte", large[rows])
        _write_idx(folder / f"{part}-labels-idx1-ubyte", labels[rows].astype(np.uint8))
    shortened.images_in(folder / "images")
    words = np.array(["the", "rank", "holds", "a", "part", "of", "each", "tensor,", "and", "sends", "what", "others", "need.\n"])
    (folder / "text.txt").write_text(" ".join(words[np.random.RandomState(0).randint(0, len(words), 8000)]), encoding="utf-8")


def _write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    path.write_bytes(head + array.tobytes())


def recorded(chosen: Iterable[Program], fast: bool = False) -> dict[str, dict[str, Record]]:
    """The records of programs, by name and way, made in this process; `fast` leaves out what takes seconds."""
    results: dict[str, dict[str, Record]] = {}
    with surroundings():
        for program in chosen:
            for way in program.ways:
                if not (fast and way.slow):
                    results.setdefault(program.name, {})[way.name] = recording.recorded(way.run, way.ranks)
    check_modules()
    return results


def check_modules() -> None:
    """ImportError if jobflow's modules are not all of this checkout: another one may be installed, and be asked for what this one lacks."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name.partition(".")[0] == "jobflow"}
    others = [f"{name} from {file}" for name, file in files.items() if file is not None and not Path(file).resolve().is_relative_to(ROOT)]
    if others:
        raise ImportError(f"records of {ROOT} were made with modules of another checkout: {', '.join(others)}")
