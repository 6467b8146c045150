"""A single import location for all elementwise operations."""

from jobflow.ops.arithmetic import *
from jobflow.ops.compare import *
from jobflow.ops.floating import *
from jobflow.ops.pointwise import *
from jobflow.ops.scalar import *
from jobflow.ops.transcendental import *
