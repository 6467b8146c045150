"""Packaging of jobflow: the distribution is called `jobflow-sbp`, the package `jobflow`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
# read, not imported: when a wheel is built NumPy need not be there
VERSION = re.findall(r'__version__ = "(.+)"', (ROOT / "jobflow" / "core" / "version.py").read_text(encoding="utf-8"))[0]
MPI = ["mpich>=4.1"]
EXAMPLES = ["scikit-learn>=1.4", "tqdm>=4.60"]
HALF = ["ml_dtypes>=0.5"]
TRAIN = ["pydantic>=2.7", "matplotlib>=3.8", "shtab>=1.7", "pillow>=10.3", "protobuf>=5.26", "xxhash>=3.4"]
PARQUET = ["pyarrow>=17"]
REMOTE = ["fsspec>=2024.6", "s3fs>=2024.6"]
JIT = ["llvmlite>=0.50"]
TENSORBOARD = ["tensorboardX>=2.6"]
ONNX = ["onnx>=1.17"]
OPTUNA = ["optuna>=4"]
MLFLOW = ["mlflow-skinny>=3"]
WANDB = ["wandb>=0.19"]
TOKENIZERS = ["tokenizers>=0.21"]
DOCS = [*TRAIN, "einops>=0.8", "mkdocs-material>=9.6", "mkdocstrings>=0.29", "mkdocstrings-python>=1.16"]
PYTEST = ["pytest>=8.2", "pytest-xdist>=3.6", "hypothesis>=6.100"]
GPU = ["cupy-cuda13x>=14", "nvidia-nccl-cu13>=2.27.7,<3"]
CUDA_WITHOUT_GPU = ["cupy-cuda13x>=14.2,<15", "nvidia-cuda-nvrtc>=13,<14", "nvidia-cuda-runtime>=13,<14", "nvidia-cuda-crt>=13,<14"]
CUDA_WITHOUT_GPU += ["nvidia-cuda-nvdisasm>=13,<14"]
TEST = [*PYTEST, *EXAMPLES, *MPI, *HALF, *TRAIN, *PARQUET, *REMOTE, *JIT, *TENSORBOARD, *ONNX, *TOKENIZERS]
TEST += ["safetensors>=0.5", "flatbuffers>=24.3", "einops>=0.8", "onnxruntime>=1.20"]

setup(
    name="jobflow-sbp",
    version=VERSION,
    description="Train one program on one process, on threads or under mpirun: job functions over logical tensors, laid out by S/B/P",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The jobflow authors",
    license="Apache-2.0",
    license_files=["LICENSE", "jobflow/tools/templates/uplot/LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["jobflow", "jobflow.*"]),
    package_data={"": ["py.typed", "*.pyi"], "jobflow.tools": ["templates/*", "templates/uplot/*"], "jobflow.data": ["digits.npz"]},
    include_package_data=False,
    python_requires=">=3.11",
    install_requires=["numpy>=2.1", "pyyaml>=6.0", "mpi4py>=4.0", "rich>=13", "jinja2>=3.1", "psutil>=5.9"],
    extras_require={
        # an MPI with mpiexec from a wheel; any MPI of the system that mpi4py finds does as well
        "mpi": MPI,
        # bfloat16; float16 needs nothing
        "half": HALF,
        # what `jobflow train config.yaml` needs: checking of configurations, charts, images, records, completion
        "train": TRAIN,
        # tables in Parquet files
        "parquet": PARQUET,
        # checkpoints and data in stores of objects: s3:// and, with their own packages, whatever else fsspec knows
        "remote": REMOTE,
        # fused loops on CPUs, compiled when a program is bound
        "jit": JIT,
        # flow.summary and logging.tensorboard
        "tensorboard": TENSORBOARD,
        # flow.onnx
        "onnx": ONNX,
        # sweep.method tpe
        "optuna": OPTUNA,
        # the callbacks MLflow and WandB
        "mlflow": MLFLOW,
        "wandb": WANDB,
        # texts as parts of words: tokenizer.json
        "tokenizers": TOKENIZERS,
        # the documentation site, built by scripts/docs
        "docs": DOCS,
        "gpu": GPU,
        # libraries of NVIDIA for products, attention and convolutions on GPUs
        "gpu-fast": [*GPU, *HALF, "nvidia-cublas>=13.1,<14", "nvidia-cudnn-frontend>=1.23,<1.24", "nvidia-cudnn-cu13>=9.19,<10"],
        # real CuPy on a machine without a GPU, in a separate environment: scripts/gpu_check dry, scripts/cupy_without_gpu
        "gpu-checks": [*CUDA_WITHOUT_GPU, *HALF, *PYTEST],
        "examples": EXAMPLES,
        "test": TEST,
        "dev": [*TEST, "ruff>=0.9", "mypy>=1.14", "types-PyYAML", "types-psutil"],
    },
    entry_points={"console_scripts": ["jobflow=jobflow.cli:main"]},
)
