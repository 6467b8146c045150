"""The programs of examples/zoo that read OFRecord files: the same losses on one device and two."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from zoo_programs import program, size_of

import jobflow as flow
from jobflow.data.ofrecord import record_classes

PARTS, COUNT, STEPS = 2, 16, 3


def write(folder: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """Part files of samples, of which a feature is an array or the bytes of an image."""
    kinds, all_samples, each = record_classes(), iter(samples), COUNT // PARTS
    for part in range(PARTS):
        with open(folder / f"part-{part:05d}", "wb") as file:
            for sample in islice(all_samples, each):
                features = {name: kinds["Feature"](**_feature(value)) for name, value in sample.items()}
                record = kinds["OFRecord"](feature=features).SerializeToString()
                file.write(len(record).to_bytes(8, "little") + record)


def _feature(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"bytes_list": {"value": [value]}}
    array = np.asarray(value)
    return {"int32_list" if array.dtype.kind == "i" else "float_list": {"value": array.reshape(-1).tolist()}}


def jpeg(random: np.random.Generator) -> bytes:
    content = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (40, 48, 3), np.uint8)).save(content, "JPEG")
    return content.getvalue()


def rows(names: Iterable[str], batches: Iterable[Iterable[Any]]) -> Iterable[Mapping[str, Any]]:
    """Batches as samples."""
    for batch in batches:
        for row in zip(*batch, strict=True):
            yield dict(zip(names, row, strict=True))


def files(case: str, folder: Path) -> str:
    """The samples of a program, as files."""
    random, size, zoo = np.random.default_rng(3), size_of(case), program(case)
    batches = range(COUNT // size.batch)
    if case == "resnet50":
        write(folder, ({"encoded": jpeg(random), "class/label": np.int32(i % size.classes)} for i in range(COUNT)))
    elif case == "bert_pretrain":
        names = [zoo.IN_RECORDS[field] for field in zoo.PRETRAINING]
        write(folder, rows(names, (zoo.random_batch("pretrain", size, random) for _ in batches)))
    else:
        write(folder, rows(zoo.NAMES, ((labels, *others) for labels, *others in (zoo.random_batch(size, random) for _ in batches))))
    return str(folder)


def losses(case: str, folder: str, devices: int) -> list[float]:
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    zoo, size = program(case), size_of(case)
    if case == "resnet50":
        train, classify = zoo.make_jobs(size, folder, folder, PARTS)
        curve = [float(train().mean()) for _ in range(STEPS)]
        logits, labels = classify()
        assert labels.tolist() == [i % size.classes for i in range(size.batch)], "validation reads the files in order"
        return [*curve, *np.asarray(logits).reshape(-1).tolist()]
    job = zoo.make_job("pretrain", size, folder, PARTS) if case == "bert_pretrain" else zoo.make_job(size, folder, PARTS)
    return [float(np.mean(curve[0] if isinstance(curve, tuple) else curve)) for curve in (job() for _ in range(STEPS))]


@pytest.mark.parametrize("case", ["resnet50", "bert_pretrain", "wide_and_deep"])
def test_from_files(case: str, tmp_path: Path) -> None:
    folder = files(case, tmp_path)
    alone, together = losses(case, folder, 1), losses(case, folder, 2)
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
