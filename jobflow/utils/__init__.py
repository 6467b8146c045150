"""Utilities for tensors: data loading (`utils.data`), event files (`utils.tensorboard`), and nested structures (`utils.global_view`)."""

from jobflow.core.lazy_imports import add_aliases
from jobflow.utils import checkpoint as checkpoint
from jobflow.utils import data as data
from jobflow.utils import global_view as global_view
from jobflow.utils import tensorboard as tensorboard

add_aliases(__name__, "jobflow.utils")
