"""Readers of Megatron's files in the body of a job: samples, resumption, and errors of damaged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reading import LENGTHS, megatron, results_of_job

import jobflow as flow
import jobflow.typing as tp
from jobflow.legacy.extras.megatron import TokenFiles


def test_megatron_tokens(devices: int, tmp_path: Path) -> None:
    """Without shuffling sample k begins at token 10 k; the samples restart after num_samples."""
    prefix = megatron(tmp_path)

    def body() -> Any:
        x = flow.data.megatron_gpt_mmap_data_loader(prefix, 10, num_samples=7, batch_size=4, dtype=flow.int32, shuffle=False)
        with flow.scope.mirrored_view():
            y = flow.data.MegatronGPTMMapDataLoader(prefix, 10, num_samples=7, batch_size=1, shuffle=False) + 0
        return [x, y]

    for run, (x, y) in enumerate(results_of_job(body, 2, tp.Bundle[tp.ListNumpy])):
        first = 10 * (np.arange(4 * run, 4 * run + 4) % 7)
        assert (x[0] == (first[:, None] + np.arange(11)) % sum(LENGTHS)).all() and x[0].dtype == np.int32
        assert [each[0, 0] for each in y] == [10 * ((devices * run + i) % 7) for i in range(devices)]


@pytest.mark.parametrize("load", [lambda path: flow.load_variables(flow.checkpoint.get(path)), lambda path: flow.train.CheckPoint().load(path)])
def test_megatron_resumes_from_saved_progress(devices: int, load: Callable[[str], None], tmp_path: Path) -> None:
    """Resume from a checkpoint of the older format on request, else start at the beginning. Accumulation reads several batches per run."""
    prefix = megatron(tmp_path)

    def reading(goes_on: bool, passes: int) -> Any:
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        flow.config.checkpoint_format("oneflow")
        config = flow.function_config()
        config.train.num_gradient_accumulation_steps(passes)

        @flow.global_function("train", config)
        def job() -> tp.Numpy:
            x = flow.data.megatron_gpt_mmap_data_loader(prefix, 2, 100, 4, shuffle=False, start_from_saved_progress=goes_on, name="text")
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(flow.cast(x, flow.float) * w)
            return x

        return job

    for goes_on in (True, False):
        job, path = reading(goes_on, 1), str(tmp_path / f"at-{goes_on}")
        first = [job()[0, 0] for _ in range(4)]
        flow.checkpoint.save(path)
        following = [job()[0, 0], job()[0, 0]]
        for passes in (1, 2):
            job = reading(goes_on, passes)
            assert job()[0, 0] == first[0]  # nothing is loaded yet
            load(path)
            assert job()[0, 0] == (following[0] if goes_on else first[passes]), passes
            assert job()[0, 0] != first[0] and (not goes_on or flow.get_all_variables()["text-iteration"].numpy() == [4 + 2 * passes])


def test_megatron_shuffles_documents_and_samples(tmp_path: Path) -> None:
    """Check that each sample is a run of tokens of the shuffled documents.

    Each epoch has all samples, and the splits share no documents.
    """
    prefix = megatron(tmp_path, 5)
    files = TokenFiles(prefix, 6, 18, shuffle=True, seed=3)
    files.check()
    samples = [files.sample(i) for i in range(18)]
    steps = np.concatenate([np.diff(each) for each in samples])
    assert (steps == 1).sum() > 80 and np.bincount(np.concatenate([each[:-1] for each in samples])).max() == 2  # of two epochs
    assert [each.tolist() for each in samples] != [TokenFiles(prefix, 6, 18, True, seed=4).sample(i).tolist() for i in range(18)]
    whole = TokenFiles(prefix, 55, 1, shuffle=True, seed=3).sample(0)
    assert sorted(whole.tolist()) == list(range(56)) and whole.tolist() != list(range(56))
    first, second = (TokenFiles(prefix, 3, 2, False, split=((6, 2), which)).sample(0)[0] for which in (0, 1))
    assert (first, second) == (0, sum(LENGTHS[:6]))


HEAD = 34
WRONG_TOKENS = {
    "no index": (lambda b, i: (b, None), "no such file"),
    "other letters": (lambda b, i: (b, b"X" + i[1:]), "is not an index"),
    "a cut head": (lambda b, i: (b, i[:20]), "is not an index"),
    "a kind that is none": (lambda b, i: (b, i[:17] + b"\x63" + i[18:]), "is not an index"),
    "floats": (lambda b, i: (b, i[:17] + b"\x06" + i[18:]), "is not an index"),
    "a cut index": (lambda b, i: (b, i[:-3]), r"documents require \d+ bytes, but the file has \d+"),
    "more documents than there are": (lambda b, i: (b, i[:18] + b"\xff" * 8 + i[26:]), "documents require"),
    "a length below 0": (lambda b, i: (b, i[:HEAD] + b"\xff" * 4 + i[HEAD + 4 :]), "document 0, at byte 34 and 66, has -1 tokens"),
    "cut tokens": (lambda b, i: (b[:-1], i), r"document 7, .* has 11 tokens from byte 90 on, and .* has 111 bytes"),
    "too few tokens": (lambda b, i: (b, i), "have 56 tokens, but a sample requires 65"),
}


@pytest.mark.parametrize(("damage", "message"), WRONG_TOKENS.values(), ids=list(WRONG_TOKENS))
def test_damaged_token_files(damage: Callable[[bytes, bytes], tuple[bytes, bytes | None]], message: str, session: None, tmp_path: Path) -> None:
    prefix = megatron(tmp_path)
    files = [tmp_path / "text.bin", tmp_path / "text.idx"]
    for file, content in zip(files, damage(files[0].read_bytes(), files[1].read_bytes()), strict=True):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
    with pytest.raises(flow.DataError, match=message):
        results_of_job(lambda: flow.data.megatron_gpt_mmap_data_loader(prefix, 64, num_samples=7, batch_size=1))
