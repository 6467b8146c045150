"""The namespace `flow.linalg`: linear algebra of batches of matrices, and `matmul` of both APIs."""

from jobflow.functional.dispatch import all_of as _all_of
from jobflow.functional.dispatch import of_tensors as _of_tensors
from jobflow.functional.linalg_functions import *
from jobflow.functional.lu_functions import *
from jobflow.functional.matrix_factors import *
from jobflow.legacy.shared_names import matmul as matmul

globals().update(_all_of(__name__, globals(), "jobflow.functional", _of_tensors))
