"""The cost of LLVM for a process.

Prints the JSON object {"nbytes": additional memory of the process, "seconds": time to the first compiled function}.
"""

import json
import time

import psutil

import jobflow.kernels.registry  # noqa: F401 - part of every process
from jobflow.kernels.llvm import machine_code

memory, begun = psutil.Process().memory_info().rss, time.perf_counter()
machine_code.compiler().object_code(f"define void @{machine_code.NAME}(ptr %arguments) {{\n  ret void\n}}\n")
seconds = time.perf_counter() - begun
print(json.dumps({"nbytes": psutil.Process().memory_info().rss - memory, "seconds": seconds}))
