"""Readers of OneRec, COCO and Megatron token files in the body of a job.

    tokens = flow.data.megatron_gpt_mmap_data_loader("corpus_text_document", seq_length=1024, num_samples=100_000, batch_size=8)

The samples of a batch are a function of the seed and the number of the run, independent of the number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.types import DType, float32, int32, int64
from jobflow.engine.distribute import hierarchical_parallel_cast
from jobflow.host_pipeline import stages as st
from jobflow.host_pipeline.outputs import OnHost, as_padded, as_tensor, body_of, feed_of, on_host
from jobflow.host_pipeline.sample_sources import Indexed, RecordFiles
from jobflow.legacy import arrays
from jobflow.legacy.extras import coco, onerec
from jobflow.legacy.extras import object_stages as ob
from jobflow.legacy.extras.megatron import TokenFiles
from jobflow.legacy.initializers import constant_initializer
from jobflow.legacy.job_dispatch import all_of, of_kinds
from jobflow.legacy.operands import counts, positive_shape
from jobflow.legacy.record_data import batch_rows
from jobflow.legacy.variables import assign, get_variable
from jobflow.ops import elementwise as ew
from jobflow.storage.remote import path_of


def onerec_reader(
    files: Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_mode: str = "instance",
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    verify_example: bool = True,
    name: str | None = None,
) -> OnHost:
    """Read examples of OneRec files repeatedly, `batch_size` per run; in the mirrored view, per device.

    `random_shuffle` samples from a buffer of examples, or of batches with shuffle_mode "batch". With `shuffle_after_epoch` the order of the files
    changes from the second epoch on. `verify_example` compares the checksums of the files with their content.
    """
    what = "onerec_reader"
    counts(what, batch_size=batch_size, shuffle_buffer_size=shuffle_buffer_size)
    if isinstance(files, str) or not files:
        raise ArgumentError(f"{what} at {user_line()}: files must be a list of paths, not {files!r}")
    if shuffle_mode not in ("instance", "batch"):
        raise ArgumentError(f'{what} at {user_line()}: shuffle_mode must be "instance" or "batch", not {shuffle_mode!r}')
    rows = batch_rows(what, batch_size)
    source = RecordFiles(
        [path_of(str(file)) for file in files],
        what,
        partial(onerec.frames_of, verify=verify_example),
        random_shuffle,
        shuffle_buffer_size,
        shuffle_after_epoch,
        body_of(what).seed,
        rows if shuffle_mode == "batch" else 1,
    )
    return OnHost(ob.ReadExample(source), rows, "examples")


def OneRecDecoder(
    input_blob: OnHost,
    key: str,
    dtype: DType,
    shape: Sequence[int],
    is_dynamic: bool = False,
    reshape: Sequence[int] | None = None,
    batch_padding: Sequence[int] | None = None,
    name: str | None = None,
) -> Any:
    """Return the tensor `key` of each example, as [batch, *shape], or with the same elements as [batch, *reshape].

    With `is_dynamic` tensors of examples may be smaller than `shape` and are padded with zeros to the largest size of the batch.
    Nonzero entries of `batch_padding` round this size up to multiples. With `is_dynamic` and `reshape`, tensors are padded to `shape`.
    """
    what = "OneRecDecoder"
    record, own = on_host(what, input_blob, "examples"), positive_shape(what, "shape", shape)
    if batch_padding is not None and (not is_dynamic or len(batch_padding) != len(own) or min(batch_padding, default=0) < 0):
        raise ArgumentError(f"{what} at {user_line()}: batch_padding requires is_dynamic and must have one multiple per axis, not {batch_padding}")
    tensor = ob.ExampleTensor(record.stage, key, dtype)
    if is_dynamic and reshape is None:
        return as_padded(what, tensor, record.rows, own, [n or 1 for n in batch_padding or (0,) * len(own)], dtype, name)
    own = tuple(-(-n // most) * most if most else n for n, most in zip(own, batch_padding or own, strict=True))
    result = as_tensor(what, st.Padded(tensor, own, dtype) if is_dynamic else st.Exactly(tensor, own), record.rows, own, dtype, name)
    return result if reshape is None else arrays.reshape(result, (result.tensor_type.shape[0], *reshape))


def coco_reader(
    annotation_file: str,
    image_dir: str,
    batch_size: int,
    shuffle: bool = True,
    random_seed: int | None = None,
    group_by_aspect_ratio: bool = True,
    stride_partition: bool = True,
    remove_images_without_annotations: bool = True,
    name: str | None = None,
) -> tuple[Any, ...]:
    """Return (images, ids int64 [batch], sizes int32 [batch, 2], boxes, labels, points, point indices).

    Sizes are (height, width). The other results except ids have an array of different shape per image: the encoded file uint8[bytes];
    boxes (left, top, right, bottom), float32[objects, 4]; categories from 1, int32[objects]; points float32[points, 2];
    and (point, polygon, object), int32[points, 3]. With `group_by_aspect_ratio` the images of a batch are either all wider than high,
    or none is. `stride_partition` has no effect, because the images of a batch do not depend on the devices.

    Raises: JobError without `name`, or in the mirrored view.
    """
    what = "coco_reader"
    if name is None or scope.current().view == "mirrored":
        raise JobError(f"{what} at {user_line()}: a name and the consistent view are required; pass name= and call it in scope.consistent_view()")
    counts(what, batch_size=batch_size)
    rows = batch_rows(what, batch_size)
    file = coco.CocoFile(str(annotation_file), str(image_dir), remove_images_without_annotations)
    groups = coco.aspects(file.images) if group_by_aspect_ratio else None
    seed = body_of(what).seed if random_seed is None else random_seed
    sample = ob.CocoSample(file, Indexed(f"{what}: {annotation_file}", len(file.images), shuffle, seed, groups))
    content, number, size, *objects = (st.Part(sample, take) for take in coco.PARTS)
    return (
        OnHost(content, rows, "bytes"),
        as_tensor(what, number, rows, (), int64, f"{name}-image_id"),
        as_tensor(what, size, rows, (2,), int32, f"{name}-image_size"),
        *(OnHost(stage, rows, "arrays", element=dtype) for stage, dtype in zip(objects, (float32, int32, float32, int32), strict=True)),
    )


def megatron_gpt_mmap_data_loader(
    data_file_prefix: str,
    seq_length: int,
    num_samples: int,
    batch_size: int,
    dtype: DType = int64,
    shuffle: bool = True,
    random_seed: int | None = None,
    split_sizes: Sequence[int] | None = None,
    split_index: int | None = None,
    parallel_distribution: Sequence[str] | None = None,
    start_from_saved_progress: bool = False,
    name: str | None = None,
) -> Any:
    """Return tokens [batch, seq_length + 1] of the files `<data_file_prefix>.bin` and `.idx`; after `num_samples` samples the data repeats.

    `split_sizes` divides the documents into splits, and `split_index` selects one. With `start_from_saved_progress` the variable
    `<name>-iteration` counts batches, and reading resumes at its loaded value. Otherwise reading restarts, unless the program loads a checkpoint
    in jobflow's format, which contains the numbers of runs. `parallel_distribution` sets the layout of the result.
    """
    what = "megatron_gpt_mmap_data_loader"
    counts(what, seq_length=seq_length, num_samples=num_samples, batch_size=batch_size)
    if not dtype.is_integer:
        raise ArgumentError(f"{what} at {user_line()}: dtype must be an integer type, not {dtype.name}")
    if split_index is not None and split_sizes is None:
        raise ArgumentError(f"{what} at {user_line()}: split_index {split_index} requires split_sizes; pass both, or neither")
    seed, rows = body_of(what).seed if random_seed is None else random_seed, batch_rows(what, batch_size)
    file = TokenFiles(str(data_file_prefix), seq_length, num_samples, shuffle, seed, (tuple(split_sizes or (1,)), split_index or 0))
    file.check()
    source = Indexed(f"{what}: {data_file_prefix}", num_samples)
    if start_from_saved_progress:
        name = body_of(what).unique_name(what) if name is None else name
        with scope.using(view="consistent"):
            count = get_variable(f"{name}-iteration", (1,), int64, constant_initializer(0, int64), trainable=False, reuse=False)
            assign(count, ew.shift(count, 1))
        feed_of(what).counter = scope.current().full_name(f"{name}-iteration")
    result = as_tensor(what, ob.Tokens(file, source, dtype), rows, (seq_length + 1,), dtype, name)
    return result if parallel_distribution is None else hierarchical_parallel_cast(result, parallel_distribution=list(parallel_distribution))


globals().update(all_of(__name__, globals(), __name__, of_kinds))
onerec_decoder = OneRecDecoder
MegatronGPTMMapDataLoader = megatron_gpt_mmap_data_loader
