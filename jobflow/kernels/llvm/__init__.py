"""Fused loops on CPUs: expressions printed as LLVM IR and compiled for this machine when a program is bound.

    refuses(outputs, inputs, targets)          the reason no loop computes the outputs for these arrays, or None
    cheap(outputs)                             True if copies would cost more than the computation
    bind(outputs, inputs, targets, scratch)    the calls (function, (arguments,)) that compute the outputs
    compile_loop(outputs, form)                the loop: its function and its scratch

The first call of these functions imports llvmlite, which the extra `jit` installs.
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
    "ops.recurrent": ("recurrent_loops",),
    "ops.row_update": ("table_update_loops",),
    "ops.scan": ("scan_loops",),
    "ops.slices": ("reversed_copies",),
}
