"""The namespace `flow.nn`: functions of the job API, modules and graphs of tensors.

`__init__.pyi` lists the public names, which are defined in other modules. Names that denote both a job function and a class are classes here;
`jobflow.nn.modules` lists them.
"""

from jobflow.core.lazy_imports import attach as _attach

__getattr__, __dir__ = _attach(__name__, __file__)
