"""The compiler: pure functions from a traced job to the plan of each rank, one per stage, each with a result type.

The namespace also has the hints of `torch.compiler`.
"""

from jobflow.core.compiler_hints import allow_in_graph as allow_in_graph
from jobflow.core.compiler_hints import assume_constant_result as assume_constant_result
from jobflow.core.compiler_hints import cudagraph_mark_step_begin as cudagraph_mark_step_begin
from jobflow.core.compiler_hints import disable as disable
from jobflow.core.compiler_hints import is_compiling as is_compiling
from jobflow.core.compiler_hints import is_dynamo_compiling as is_dynamo_compiling
from jobflow.core.compiler_hints import reset as reset
