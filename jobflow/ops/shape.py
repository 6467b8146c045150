"""All operations on shapes, joined and split tensors, in one module."""

from jobflow.ops.axes import *
from jobflow.ops.broadcast import *
from jobflow.ops.slices import *
