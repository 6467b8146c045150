"""Utilities for tensors: `utils.data`, and nested structures of tensors between ranks (`utils.global_view`)."""

from jobflow.utils import data as data
from jobflow.utils import global_view as global_view
