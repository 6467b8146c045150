"""Fused loops on CPUs: expressions printed as LLVM IR and compiled for this machine when a program is bound.

    refuses(outputs, inputs, targets)   why there is no loop for these arrays, or None
    cheap(outputs)                      is there so little to compute that copies cost more
    bind(outputs, inputs, targets, scratch)      calls (function, (arguments,)) that compute them
    compile_loop(outputs, form)         the loop itself: its function and what that needs

Needs llvmlite, the extra `jit`; nothing is imported before one of these is called.
"""

from jobflow.kernels.llvm.loops import Loop, bind, cheap, compile_loop, refuses

__all__ = ["Loop", "bind", "cheap", "compile_loop", "refuses"]

#: module of operations -> the modules of this package that register implementations of them
MODULES: dict[str, tuple[str, ...]] = {
    "kernels.cpu.product_ops": ("product_loops",),
    "ops.conv": ("convolution_loops", "winograd_loops"),
    "ops.index": ("segment_loops",),
    "ops.pool": ("pooling_loops",),
    "ops.random_tensors": ("random_loops",),
    "ops.row_update": ("table_update_loops",),
    "ops.scan": ("scan_loops",),
    "ops.slices": ("reversed_copies",),
}
