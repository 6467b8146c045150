"""Samples per second of each reader in shuffled batches, and the share of the reading that steps hide.

    python benchmarks/read_data.py --peer-python ~/torch/bin/python

Files are in a temporary folder and in the page cache, so this measures the readers and not the disk.  With a Python that has PyTorch and
Pillow, job images (`images.py`) are timed next to those of a DataLoader with one worker (`peers/torch_images.py`).  The time is processor
time per image with all overhead, on one core per side, in alternating rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import images
import numpy as np
from side import Side
from step_time import HERE, running

from jobflow.data import Batches, Order, Samples, open_reader

BATCH, SECONDS = 64, 1.0
#: batches of a round; seconds in which a side reads ahead as far as it does
STEPS, SETTLED = 12, 1.5


def readers(folder: Path) -> Iterator[tuple[str, Samples]]:
    """Yield (description, samples) of each reader, over files that are written first."""
    random = np.random.RandomState(0)
    yield "digits [1,28,28]", opened("digits", copies=20)
    np.save(folder / "x.npy", random.rand(20_000, 784).astype(np.float32))
    yield "numpy float32[784], mapped", opened("numpy", path=str(folder / "x.npy"))
    images = random.randint(0, 256, (20_000, 28, 28)).astype(np.uint8)
    (folder / "i").write_bytes(bytes([0, 0, 8, 3]) + np.array(images.shape, ">i4").tobytes() + images.tobytes())
    yield "idx [1,28,28], mapped", opened("idx", path=str(folder), images="i")
    table = random.rand(20_000, 10).round(4)
    (folder / "t.csv").write_text(",".join("abcdefghij") + "\n" + "\n".join(",".join(map(str, row)) for row in table.tolist()))
    yield "csv, 10 columns", opened("csv", path=str(folder / "t.csv"), fields={"x": list("abcdefghij")})
    if importlib.util.find_spec("pyarrow"):
        from pyarrow import parquet
        from pyarrow import table as columns

        parquet.write_table(columns(dict(zip("abcdefghij", table.T, strict=True))), folder / "t.parquet", row_group_size=2000)
        yield "parquet, 10 columns", opened("parquet", path=str(folder / "t.parquet"), fields={"x": list("abcdefghij")})
    yield "text, 128 characters", opened("text", length=128)
    yield "text, 1024 bytes", opened("text", length=1024, level="byte", stride=64)
    row = record(images[0].astype("<f4").tobytes())
    (folder / "part-0").write_bytes((struct.pack("<q", len(row)) + row) * 5000)
    yield "ofrecord float32[784]", opened("ofrecord", path=str(folder))
    try:
        from PIL import Image
    except ImportError:
        return
    (folder / "images" / "one").mkdir(parents=True)
    for i in range(64):
        noise = Image.fromarray(random.randint(0, 256, (32, 32, 3)).astype(np.uint8)).resize((256, 256))
        noise.save(folder / "images" / "one" / f"{i}.jpg")
    yield "images, JPEG 256 to 224", opened("images", path=str(folder / "images"), size=224, resize=256, crop="random", flip=True)


def opened(name: str, **arguments: object) -> Samples:
    samples = open_reader(name, **arguments)
    assert isinstance(samples, Samples)
    return samples


def record(values: bytes) -> bytes:
    """A record with the feature "x" of floats."""
    content = field_of(1, values)
    return field_of(1, field_of(1, b"x") + field_of(2, field_of(2, content)))


def field_of(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def rate(samples: Samples, prefetch: int) -> float:
    """Samples a second, when nothing else is done: of the processor's time if the caller reads, since others may use the machine."""
    clock = time.perf_counter if prefetch else time.process_time
    count, began = 0, clock()
    with Batches(samples, Order(0, len(samples)), BATCH, prefetch=prefetch).start() as reading:
        while clock() - began < SECONDS:
            count += next(reading).size
    return count / (clock() - began)


def hidden(samples: Samples, ahead: float) -> float:
    """Which part of the reading is not waited for, beside steps that take as long as reading a batch and leave the interpreter to others."""
    step = BATCH / ahead
    batches = max(8, min(200, int(SECONDS / step)))
    with Batches(samples, Order(0, len(samples)), BATCH, prefetch=2).start() as reading:
        next(reading)
        first = reading.waited
        for _ in range(batches):
            time.sleep(step)
            next(reading)
    return 1 - min(1.0, (reading.waited - first) / (step * batches))


def compared_with_torch(folder: Path, peer: str, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time for an image, and the median of the rounds' ratios."""
    images.write(folder)
    core = sorted(os.sched_getaffinity(0))[-1:]
    sides = [Side("jobflow", [[sys.executable, str(HERE / "images.py"), str(folder)]], core)]
    sides += [Side("torch", [[peer, str(HERE / "peers" / "torch_images.py"), str(folder)]], core)]
    milliseconds: dict[str, list[float]] = {side.name: [] for side in sides}
    with running(sides):
        for side in sides:
            facts = side.ask(do="facts")
            side.ask(do="round", steps=STEPS)
            print(f"{side.name}: Pillow {facts['pillow']}, mean {facts['mean']:.3f}")
        for _ in range(rounds):
            for side in sides:
                time.sleep(SETTLED)
                before = side.cpu_seconds()
                side.ask(do="round", steps=STEPS)
                time.sleep(SETTLED)
                milliseconds[side.name].append((side.cpu_seconds() - before) / STEPS / images.BATCH * 1e3)
    ratio = median(ours / theirs for ours, theirs in zip(*milliseconds.values(), strict=True))
    return {name: round(median(times), 3) for name, times in milliseconds.items()} | {"ratio": round(ratio, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python that has PyTorch and Pillow")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.peer_python:
        with tempfile.TemporaryDirectory() as folder:
            print("images, JPEG to 224, CPU ms each:", json.dumps(compared_with_torch(Path(folder), options.peer_python, options.rounds)))
    results = {}
    print(f"{'reader':28} {'samples/s':>10} {'ahead':>10} {'MB/s':>8} {'hidden':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for what, samples in readers(Path(folder)):
            size = sum(field.batch(1).nbytes for field in samples.fields.values())
            alone, ahead = rate(samples, 0), rate(samples, 2)
            results[what] = {"samples_per_second": round(alone), "read_ahead": round(ahead), "hidden": round(hidden(samples, ahead), 3)}
            print(f"{what:28} {alone:10.0f} {ahead:10.0f} {alone * size / 1e6:8.1f} {results[what]['hidden']:7.0%}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
