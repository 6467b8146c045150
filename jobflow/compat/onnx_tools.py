"""`oneflow_onnx.oneflow2onnx.util`: predict jobs as ONNX files, and checks of these files against the jobs.

These functions are those of a tools package that was published separately; `flow.onnx.export` does the work.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import jobflow.legacy.onnx as onnx_files
from jobflow.core.extras import optional
from jobflow.engine.job import job_of

__all__ = ["convert_to_onnx_and_check", "export_onnx_model"]

#: the name of the file in the folder `onnx_model_path`
FILE = "model.onnx"


def export_onnx_model(
    job_func: Any, external_data: bool = False, opset: int | None = None, flow_weight_dir: str | None = None, onnx_model_path: str = "/tmp"
) -> str:
    """Write a predict job into the folder `onnx_model_path`; return the file's path."""
    path = os.path.join(onnx_model_path, FILE)
    onnx_files.export(job_func, flow_weight_dir or "", path, opset=opset, external_data=external_data)
    return path


def convert_to_onnx_and_check(
    job_func: Any,
    print_outlier: bool = False,
    explicit_init: bool = True,
    external_data: bool = False,
    ort_optimize: bool = True,
    opset: int | None = None,
    flow_weight_dir: str | None = None,
    onnx_model_path: str = "/tmp",
) -> None:
    """Export a predict job; raise AssertionError unless ONNX's reference and the job agree on random inputs.

    `print_outlier` adds the differing numbers to the error; `explicit_init` and `ort_optimize` have no effect.
    """
    path = export_onnx_model(job_func, external_data, opset, flow_weight_dir, onnx_model_path)
    generator = np.random.default_rng()
    arguments = {name: d.type for name, d in job_of(job_func).signature.placeholders()}
    drawn = {name: generator.uniform(-10, 10, type.shape).astype(type.dtype.numpy) for name, type in arguments.items()}
    given = job_func(*drawn.values())
    given = given.get() if hasattr(given, "get") and not isinstance(given, dict) else given
    ours = [np.asarray(one) for one in (given if isinstance(given, list | tuple) else [given])]
    theirs = optional("onnx.reference", "oneflow_onnx").ReferenceEvaluator(path).run(None, drawn)
    for mine, other in zip(ours, theirs, strict=True):
        if print_outlier:
            np.testing.assert_allclose(other, mine, rtol=1e-2, atol=1e-5)
        assert np.allclose(other, mine, rtol=1e-2, atol=1e-5), f"{path} computes other numbers than job {job_func.__name__}"
