"""Parameters of modules; the class is in `jobflow.functional`, because `load` returns parameters."""

from jobflow.functional.parameter_class import Parameter as Parameter
