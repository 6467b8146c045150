"""The tier "nvrtc" of GPUs: implementations of operations by generated kernels and cuBLAS.

    fused_kernels      operations with an expression, and regions, printed as CUDA C and compiled by NVRTC when a program is bound
    cublas_products    matrix products, written directly to their output
    pooling_kernels    pooling, one kernel per operation

CuPy computes all other operations.  The tests compile the kernel texts for several GPUs, and run them on the host with emulated CUDA built-ins.
None of the kernels has run on a GPU.
"""

#: module of operations -> the modules of this package that register implementations of them
MODULES: dict[str, tuple[str, ...]] = {
    "ops.matmul": ("cublas_products",),
    "ops.pool": ("pooling_kernels",),
}
