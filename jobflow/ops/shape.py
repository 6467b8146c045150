"""A single import location for operations on shapes, and for joining and splitting tensors."""

from jobflow.ops.axes import *
from jobflow.ops.broadcast import *
from jobflow.ops.slices import *
