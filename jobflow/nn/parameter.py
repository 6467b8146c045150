"""Parameters of modules; the class is in `jobflow.functional`, because `load` returns parameters."""

from jobflow.functional.parameter import Parameter as Parameter
