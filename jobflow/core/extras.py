"""Optional packages, and the extras of jobflow that install them."""

from __future__ import annotations

import importlib
from typing import Any

from jobflow.core.dataclass import dataclass


@dataclass(frozen=True)
class Package:
    """An optional package: name, import name, minimum version, purpose, and the extra of jobflow-sbp that installs it ("" for none)."""

    name: str
    module: str
    least: str
    purpose: str
    extra: str = ""

    @property
    def command(self) -> str:
        """The command that installs the package."""
        return f'pip install "jobflow-sbp[{self.extra}]"' if self.extra else f"pip install {self.name}"


#: the versions equal the versions in setup.py
PACKAGES = (
    Package("rich", "rich", "13", "tables and progress"),
    Package("jinja2", "jinja2", "3.1", "pages"),
    Package("psutil", "psutil", "5.9", "memory and disks"),
    Package("pydantic", "pydantic", "2.7", "configurations", "train"),
    Package("matplotlib", "matplotlib", "3.8", "charts", "train"),
    Package("shtab", "shtab", "1.7", "shell completion", "train"),
    Package("pillow", "PIL", "10.3", "images", "train"),
    Package("protobuf", "google.protobuf", "5.26", "OFRecord files", "train"),
    Package("xxhash", "xxhash", "3.4", "OneRec files", "train"),
    Package("pyarrow", "pyarrow", "17", "Parquet files", "parquet"),
    Package("fsspec", "fsspec", "2024.6", "files in stores of objects", "remote"),
    Package("s3fs", "s3fs", "2024.6", "s3://", "remote"),
    Package("llvmlite", "llvmlite", "0.50", "fused loops", "jit"),
    Package("ml_dtypes", "ml_dtypes", "0.5", "bfloat16", "half"),
    Package("scikit-learn", "sklearn", "1.4", "data of the examples", "examples"),
    Package("tensorboardX", "tensorboardX", "2.6", "TensorBoard", "tensorboard"),
    Package("optuna", "optuna", "4", "sweeps by TPE", "optuna"),
    Package("mlflow-skinny", "mlflow", "3", "the callback MLflow", "mlflow"),
    Package("wandb", "wandb", "0.19", "the callback WandB", "wandb"),
    Package("tokenizers", "tokenizers", "0.21", "tokenizer files", "tokenizers"),
    Package("onnx", "onnx", "1.17", "ONNX files", "onnx"),
    Package("mkdocs-material", "material", "9.6", "the documentation site", "docs"),
    Package("einops", "einops", "0.8", "patterns of axes"),
    Package("nvidia-cublas", "nvidia.cu13", "13.1", "products on GPUs", "gpu-fast"),
    Package("nvidia-cudnn-frontend", "cudnn", "1.23", "attention and convolutions on GPUs", "gpu-fast"),
    Package("nvidia-cudnn-cu13", "nvidia.cudnn", "9.19", "attention and convolutions on GPUs", "gpu-fast"),
)


def package_of(module: str) -> Package | None:
    """Return the entry of `PACKAGES` that contains the module, or None."""
    return next((package for package in PACKAGES if f"{module}.".startswith(f"{package.module}.")), None)


def optional(module: str, what: str) -> Any:
    """Import a module of an optional package for the feature `what`.

    Raises ModuleNotFoundError with the install command if the package is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = package_of(module)
        if package is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ModuleNotFoundError(f"{what} needs {package.name}: {package.command}", name=package.module) from error
