"""Examples in docstrings: the most used names have them, and they print what the API reference shows."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow

#: shared with job functions: the docstring of the function of tensors counts
SHARED = ("zeros", "ones", "matmul", "reshape", "stack", "where")
MOST_USED = [
    "tensor",
    "randn",
    "arange",
    "from_numpy",
    "sum",
    "mean",
    "max",
    "cat",
    "softmax",
    "relu",
    "argmax",
    "topk",
    "einsum",
    "to_global",
    "to_local",
    "placement",
    "sbp",
    "manual_seed",
    "save",
    "load",
    "compile",
    "inference_mode",
    "no_grad",
    "autograd.grad",
    "nn.Module",
    "nn.Linear",
    "nn.Conv2d",
    "nn.BatchNorm2d",
    "nn.LayerNorm",
    "nn.Dropout",
    "nn.Embedding",
    "nn.Sequential",
    "nn.ModuleList",
    "nn.ReLU",
    "nn.MaxPool2d",
    "nn.Flatten",
    "nn.LSTM",
    "nn.MultiheadAttention",
    "nn.CrossEntropyLoss",
    "nn.MSELoss",
    "nn.Graph",
    "nn.functional.cross_entropy",
    "nn.functional.mse_loss",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.one_hot",
    "nn.utils.clip_grad_norm_",
    "optim.SGD",
    "optim.Adam",
    "optim.AdamW",
    "optim.lr_scheduler.CosineAnnealingLR",
    "optim.lr_scheduler.StepLR",
    "utils.data.DataLoader",
    "utils.data.TensorDataset",
    "data.Batches",
    "trainer.train",
    "trainer.config.load",
    "global_function",
    "get_variable",
    "function_config",
    "layers.dense",
    "optimizer.SGD",
    "strategies.data_parallel",
    "distributions.Normal",
    "distributed.all_reduce",
]
NAMES = [*MOST_USED, *(f"functional.{name}" for name in SHARED)]
#: what examples name beside the imports: a folder, and a configuration
CONFIGURATION = """
model: {layers: [flatten, {dense: {units: 10}}], loss: cross_entropy}
data: {train: {reader: digits, split: train, edge: 8}, batch_size: 50}
optimizer: {name: adam, lr: 0.002}
training: {steps: 2}
logging: {progress: none, report: false}
"""


def named(path: str) -> Any:
    value: Any = flow
    words = path.split(".")
    for end, word in enumerate(words, 1):
        if not hasattr(value, word):
            importlib.import_module(".".join(["jobflow", *words[:end]]))
        value = getattr(value, word)
    return value


@functools.cache
def examples() -> dict[str, doctest.DocTest]:
    parser = doctest.DocTestParser()
    texts = {path: inspect.cleandoc(named(path).__doc__ or "").partition("\nExamples:\n") for path in NAMES}
    assert [path for path, (_, _, text) in texts.items() if not text] == [], "these names have no section `Examples:` in their docstrings"
    return {path: parser.get_doctest(text, {}, path, None, None) for path, (_, _, text) in texts.items()}


def test_examples_print_what_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    assert len(NAMES) >= 60
    (tmp_path / "run.yaml").write_text(CONFIGURATION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runner, printed = doctest.DocTestRunner(verbose=False), []
    for path, example in examples().items():
        flow.clear_default_session()
        names = {"flow": flow, "nn": flow.nn, "np": np, "path": str(tmp_path / path), "__name__": "__main__"}
        example.globs = names
        runner.run(example, out=printed.append, clear_globs=False)
    assert not runner.failures, "".join(printed)
