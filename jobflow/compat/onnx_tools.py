"""The module `oneflow_onnx.oneflow2onnx.util`: export of predict jobs to ONNX files, and comparison of the files with the jobs.

OneFlow published these functions in a separate package; `flow.onnx.export` implements the export.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import jobflow.legacy.onnx as onnx_files
from jobflow.core.extras import optional
from jobflow.engine.job import job_of

__all__ = ["convert_to_onnx_and_check", "export_onnx_model"]

#: file name in the folder `onnx_model_path`
FILE = "model.onnx"


def export_onnx_model(
    job_func: Any, external_data: bool = False, opset: int | None = None, flow_weight_dir: str | None = None, onnx_model_path: str = "/tmp"
) -> str:
    """Write a predict job to an ONNX file in the folder `onnx_model_path`, and return the path of the file."""
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
    """Export a predict job, and compare ONNX's reference evaluator with the job for random inputs from -10 to 10.

    `print_outlier` adds the differing elements to the error; `explicit_init` and `ort_optimize` have no effect.

    Raises: AssertionError if results differ by more than rtol=1e-2 and atol=1e-5.
    """
    path = export_onnx_model(job_func, external_data, opset, flow_weight_dir, onnx_model_path)
    generator = np.random.default_rng()
    arguments = {name: d.type for name, d in job_of(job_func, "convert_to_onnx_and_check").signature.placeholders()}
    inputs = {name: generator.uniform(-10, 10, type.shape).astype(type.dtype.numpy) for name, type in arguments.items()}
    result = job_func(*inputs.values())
    result = result.get() if hasattr(result, "get") and not isinstance(result, dict) else result
    ours = [np.asarray(one) for one in (result if isinstance(result, list | tuple) else [result])]
    theirs = optional("onnx.reference", "oneflow_onnx").ReferenceEvaluator(path).run(None, inputs)
    for mine, other in zip(ours, theirs, strict=True):
        if print_outlier:
            np.testing.assert_allclose(other, mine, rtol=1e-2, atol=1e-5)
        assert np.allclose(other, mine, rtol=1e-2, atol=1e-5), f"{path} and job {job_func.__name__} compute different results"
