"""Beside the tensors: data for them (`utils.data`), and whole structures of them between ranks (`utils.global_view`)."""

from jobflow.utils import data as data
from jobflow.utils import global_view as global_view
