"""Ways to compute operations on GPUs: the tier "nvrtc".

    fused_kernels      whatever has an expression, and regions: printed as CUDA C and compiled by NVRTC when a program is bound
    cublas_products    matrix products, written where they belong
    pooling_kernels    pooling, one kernel for each operation

All else is left to CuPy.  The texts are compiled for several GPUs, and run on the host with CUDA's built-ins imitated, by the tests.  None of it
has run on a GPU.
"""

#: module of operations -> the modules of this package that register implementations of them
MODULES: dict[str, tuple[str, ...]] = {
    "ops.matmul": ("cublas_products",),
    "ops.pool": ("pooling_kernels",),
}
