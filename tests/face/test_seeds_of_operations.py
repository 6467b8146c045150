"""Seeds of operations: equal seeds give equal numbers, different seeds different ones."""

from __future__ import annotations

import io
import itertools
import json
import re
import struct
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reading import megatron

import jobflow as flow
import jobflow.typing as tp
from jobflow.data import Order, open_reader
from jobflow.data.ofrecord import record_classes
from jobflow.legacy.extras.op_types import OP_TYPES
from jobflow.legacy.extras.op_types_on_host import OP_TYPES_ON_HOST
from jobflow.legacy.extras.user_ops import op_type
from jobflow.models import GPT, generate
from jobflow.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, random_split

NAMES = Path(__file__).parents[1] / "public" / "names.txt"


def ones(*shape: int) -> Any:
    return flow.constant(0.5, flow.float, shape)


def variable(seed: int) -> Any:
    return flow.get_variable(f"v{next(CALLS)}", (64,), initializer=flow.random_normal_initializer(), random_seed=seed)


def records() -> Any:
    return flow.data.ofrecord_reader(str(FOLDER[0]), batch_size=4)


def image() -> Any:
    return flow.data.OFRecordImageDecoder(records(), "image", "RGB")


def aligned(images: Any) -> Any:
    return flow.image.batch_align(images, (32, 32, 3), flow.uint8, 32)


FOLDER: list[Path] = [Path()]
CALLS = itertools.count()
#: by the last part of the name of a function of jobs: a call of it with a seed
JOBS: dict[str, Callable[[int], Any]] = {
    "dropout": lambda seed: flow.nn.dropout(ones(64), 0.5, seed=seed),
    "fused_bias_add_dropout": lambda seed: flow.nn.fused_bias_add_dropout(ones(4, 64), ones(64), rate=0.5, seed=seed),
    "fused_scale_tril_softmax_dropout": lambda seed: flow.nn.fused_scale_tril_softmax_dropout(ones(1, 16, 16), rate=0.5, seed=seed),
    "random_mask_like": lambda seed: flow.nn.random_mask_like(ones(64), 0.5, seed=seed),
    "CoinFlip": lambda seed: flow.random.CoinFlip(64, seed, name=f"coins{next(CALLS)}"),
    "bernoulli": lambda seed: flow.random.bernoulli(ones(64), seed, name=f"bernoulli{next(CALLS)}"),
    "generate_random_batch_permutation_indices": lambda seed: flow.random.generate_random_batch_permutation_indices(ones(64), seed),
    "shuffle": lambda seed: flow.random.shuffle(flow.range(64, name=f"range{next(CALLS)}"), seed),
    "get_variable": variable,
    "random_crop": lambda seed: aligned(flow.image.random_crop(image(), 10, seed, name=f"crop{next(CALLS)}")),
    "ofrecord_image_decoder_random_crop": lambda seed: aligned(
        flow.data.OFRecordImageDecoderRandomCrop(records(), "image", seed=seed, name=f"crop{next(CALLS)}")
    ),
    "image_decoder_random_crop_resize": lambda seed: flow.data.ImageDecoderRandomCropResize(
        flow.data.OFRecordBytesDecoder(records(), "image"), 8, 8, seed=seed, name=f"crop{next(CALLS)}"
    ),
    "megatron_gpt_mmap_data_loader": lambda seed: flow.data.megatron_gpt_mmap_data_loader(
        megatron(FOLDER[0]), 2, 64, 8, random_seed=seed, name=f"text{next(CALLS)}"
    ),
    "coco_reader": lambda seed: flow.data.coco_reader(str(FOLDER[0] / "coco.json"), str(FOLDER[0]), 6, True, seed, False, name=f"coco{next(CALLS)}")[
        1
    ],
}
#: by operation type: inputs and attributes besides the seed
TYPES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "random_mask_like": (lambda: [ones(64)], {"rate": 0.5}),
    "bernoulli": (lambda: [ones(64)], {}),
    "coin_flip": (list, {"batch_size": 64}),
    "generate_random_batch_permutation_indices": (lambda: [ones(64)], {}),
    "distributed_partial_fc_sample": (lambda: [ones(64, 2), flow.constant(3, flow.int32, (1,))], {"num_sample": 8}),
    "OFRecordReader": (list, {"batch_size": 6, "random_shuffle": True}),
    "ofrecord_image_classification_reader": (
        list,
        {"batch_size": 6, "random_shuffle": True, "image_feature_name": "image", "label_feature_name": "label"},
    ),
    "image_random_crop": (lambda: [image()], {}),
    "ofrecord_image_decoder_random_crop": (lambda: [records()], {"name": "image"}),
    "megatron_gpt_mmap_data_loader": (list, {"seq_length": 2, "num_samples": 64, "batch_size": 8}),
    "COCOReader": (list, {"batch_size": 6, "shuffle_after_epoch": True, "group_by_ratio": False}),
}
#: outside of jobs
OTHERS: dict[str, Callable[[int], Any]] = {
    "RandomSampler": lambda seed: list(RandomSampler(range(64), seed=seed)),
    "SubsetRandomSampler": lambda seed: list(SubsetRandomSampler(range(64), seed=seed)),
    "WeightedRandomSampler": lambda seed: list(WeightedRandomSampler(range(64), 64, seed=seed)),
    "DistributedSampler": lambda seed: list(DistributedSampler(range(64), 1, 0, seed=seed)),
    "random_split": lambda seed: [list(part.indices) for part in random_split(range(64), [32, 32], seed=seed)],
    "Order": lambda seed: Order(seed, 64).indices(0, 0, 64),
    "READERS['images']": lambda seed: open_reader("images", path=str(FOLDER[0]), size=4, resize=8, crop="random", seed=seed, labels=False).read(
        range(6)
    )["images"],
    "READERS['parquet']": lambda seed: cropped("parquet", "table.parquet", seed),
    "READERS['arrow']": lambda seed: cropped("arrow", "dataset", seed),
    "generate": lambda seed: generate(language_model(), [1], 32, seed=seed),
    "READERS['webdataset']": lambda seed: [int(each["labels"]) for each in shards(seed).samples(0)],
}
#: functions that take a seed and do not sample, or only with another argument, and a callback that samples in a run (test_report_samples.py)
NOT_DRAWING = {"manual_seed", "manual_seed_all", "seed", "gen_seed", "op", "random_normal_initializer", "order_of", "TextSamples"}
ALIASES = {
    "coin_flip": "CoinFlip",
    "image_random_crop": "random_crop",
    "OFRecordImageDecoderRandomCrop": "ofrecord_image_decoder_random_crop",
    "ImageDecoderRandomCropResize": "image_decoder_random_crop_resize",
    "MegatronGPTMMapDataLoader": "megatron_gpt_mmap_data_loader",
}


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Write records and images whose pixels are all different."""
    pillow = pytest.importorskip("PIL.Image")
    FOLDER[0] = folder = tmp_path_factory.mktemp("seeds")
    matches, images = b"", []
    for i in range(64):
        pixels, content = np.random.default_rng(i).integers(0, 256, (32, 32, 3)).astype(np.uint8), io.BytesIO()
        pillow.fromarray(pixels).save(content, "png")
        record = record_classes()["OFRecord"]()
        record.feature["image"].bytes_list.value.append(content.getvalue())
        record.feature["label"].int32_list.value.append(i)
        whole = record.SerializeToString()
        matches += struct.pack("<q", len(whole)) + whole
        if i < 16:
            (folder / f"{i}.png").write_bytes(content.getvalue())
            images.append({"id": i, "file_name": f"{i}.png", "height": 32, "width": 32})
    (folder / "part-0").write_bytes(matches)
    with tarfile.open(folder.with_name("numbers.tar"), "w") as archive:
        for i in range(10, 74):
            entry = tarfile.TarInfo(f"{i:02d}.cls")
            entry.size = 2
            archive.addfile(entry, io.BytesIO(str(i).encode()))
    write_tables(folder, [(folder / f"{i}.png").read_bytes() for i in range(16)])
    boxes = [{"image_id": each["id"], "category_id": 1, "bbox": [1, 1, 9, 9], "iscrowd": 0, "segmentation": [[1, 1, 5, 1, 5, 5]]} for each in images]
    (folder / "coco.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1}]}))


def write_tables(folder: Path, images: list[bytes]) -> None:
    """Write a Parquet file and a folder of Arrow files with a column of images."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"image": images})
    parquet.write_table(table, folder.with_name("table.parquet"))
    dataset = folder.with_name("dataset")
    dataset.mkdir()
    with arrow.OSFile(str(dataset / "data.arrow"), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (dataset / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def cropped(reader: str, name: str, seed: int) -> Any:
    path = str(FOLDER[0].with_name(name))
    return open_reader(reader, path=path, fields={"images": "image"}, size=4, resize=8, crop="random", seed=seed).read(range(6))["images"]


@cache
def language_model() -> Any:
    return GPT(words=32, length=64, width=8, heads=2, blocks=1)


def shards(seed: int) -> Any:
    return open_reader("webdataset", path=str(FOLDER[0].with_name("numbers.tar")), fields={"labels": "cls"}, shuffle=16, seed=seed)


def taking(word: str) -> set[str]:
    """Return the public functions with this parameter, by the last part of their names."""
    lines = NAMES.read_text().splitlines()
    return {matches[1].rpartition(".")[2] for line in lines if (matches := re.match(rf"\*?\s+jobflow\.(\S+?)\((.*\b)?{word}\b", line))}


def holds(results: list[Any], name: str) -> None:
    first, same, other = (np.asarray(each) for each in results)
    np.testing.assert_array_equal(first, same, err_msg=f"{name}: equal seeds")
    assert not np.array_equal(first, other), f"{name}: different seeds"


def test_every_function_with_a_seed_is_in_the_table() -> None:
    matches = {ALIASES.get(name, name) for name in taking("seed") | taking("random_seed")}
    assert matches - NOT_DRAWING == set(JOBS) | set(OTHERS)
    types = {key.partition(" ")[0] for key in (*OP_TYPES, *OP_TYPES_ON_HOST)}
    assert {word for word in types if {"seed", "random_seed"} & set(op_type(word).attributes)} == set(TYPES) | {
        "OneRecReader"
    }  # which is in test_data_readers.py


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Any]]:
    """Return the results of all functions and types with the seeds 1, 1 and 2 in one job."""
    flow.clear_default_session()
    names = [*JOBS, *(f"type {word}" for word in TYPES)]

    @flow.global_function(type="train")  # where dropout draws
    def job() -> tp.Bundle[tp.Numpy]:
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(
            flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
        )
        return [dense(name, seed) for name in names for seed in (1, 1, 2)]

    results = job()
    flow.clear_default_session()
    return {name: results[3 * i : 3 * i + 3] for i, name in enumerate(names)}


def dense(name: str, seed: int) -> Any:
    word = name.removeprefix("type ")
    if name == word:
        return JOBS[name](seed)
    result = typed(word, seed)
    if word in ("image_random_crop", "ofrecord_image_decoder_random_crop"):
        return aligned(result)
    if word == "OFRecordReader":
        return flow.data.OFRecordRawDecoder(result, "label", (), flow.int32)
    return aligned(result) if word == "ofrecord_image_classification_reader" else result


def typed(word: str, seed: int) -> Any:
    inputs, attributes = TYPES[word]
    kind = op_type(word)
    builder = flow.user_op_builder(f"{word}-{next(CALLS)}").Op(word)
    for key, value in zip(kind.inputs, inputs(), strict=False):
        builder.Input(key, [value])
    own = {
        "data_dir": str(FOLDER[0]),
        "data_file_prefix": str(FOLDER[0] / "text"),
        "annotation_file": str(FOLDER[0] / "coco.json"),
        "image_dir": str(FOLDER[0]),
    }
    seeded = {"seed": seed, "random_seed": seed, "has_seed": True}
    for key, value in {**own, **seeded, **attributes}.items():
        if key in kind.attributes:
            builder.Attr(key, value)
    for key in kind.outputs:
        builder.Output(key)
    matches = builder.Build().InferAndTryRun().RemoteBlobList()
    return matches[1 if word in ("distributed_partial_fc_sample", "COCOReader") else 0]


@pytest.mark.parametrize("name", [*JOBS, *(f"type {word}" for word in TYPES)])
def test_seeds_of_job_functions_and_types(name: str, drawn: dict[str, list[Any]]) -> None:
    holds(drawn[name], name)


@pytest.mark.parametrize("name", OTHERS)
def test_seeds_of_data(name: str) -> None:
    holds([OTHERS[name](seed) for seed in (1, 1, 2)], name)
