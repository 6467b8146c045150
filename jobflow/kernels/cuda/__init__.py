"""The tier "nvrtc" of GPUs: implementations of operations by generated kernels and cuBLAS.

    fused_kernels      operations with an expression, and regions, printed as CUDA C and compiled by NVRTC when a program is bound
    adaptive_kernels   pooling to a requested output size
    copy_kernels       copies of parts of tensors: views that strides do not allow, slices, concatenation
    cublas_products    matrix products, written directly to their output, by CuPy's cuBLAS
    cublaslt_products  the same by cublasLt, with the operations after a product in the same call; for stream capture
    convolution_kernels  convolutions and their gradients, without a copy of the windows
    ctc_kernels        CTC losses, their gradients, and the greedy decoder
    moment_kernels     mean and variance of channels, for batch normalization
    pooling_kernels    pooling, one kernel per operation
    attention_kernels  attention and its gradients, without a value of [..., queries, keys]
    cached_attention_kernels  attention of new tokens to a cache of keys and values
    cudnn_convolution  convolutions and their gradients by cuDNN, for images with the channels innermost
    cudnn_attention    the same by cuDNN, for operands on which its results are safe
    multi_tensor_kernels  elementwise operations of equal formula on several tensors, in one launch
    recurrent_kernels  recurrences over time: a product and a kernel per step
    scan_kernels       running sums, products and extremes
    sampled_class_kernels  samples of classes, in the order of random numbers
    segment_kernels    sums of rows with equal indices, in a fixed order
    sort_kernels       sorts of lines of up to 2,048 elements

CuPy computes all other operations.  The tests compile the kernel texts for several GPUs, and run them on the host with emulated CUDA built-ins.
`benchmarks/gpu/RESULTS.md` lists what has run on a GPU.
"""

#: module of operations -> the modules of this package that register implementations of them
MODULES: dict[str, tuple[str, ...]] = {
    "ops.adaptive_pool": ("adaptive_kernels",),
    "ops.attention": ("attention_kernels", "cudnn_attention"),
    "ops.batch_norm": ("moment_kernels",),
    "ops.cached_attention": ("cached_attention_kernels",),
    "ops.conv": ("convolution_kernels", "cudnn_convolution"),
    "ops.ctc": ("ctc_kernels",),
    "ops.index": ("segment_kernels",),
    "ops.matmul": ("cublas_products", "cublaslt_products"),
    "ops.op": ("copy_kernels",),
    "kernels.cuda.epilogue_product": ("cublaslt_products",),
    "kernels.multi_tensor": ("multi_tensor_kernels",),
    "ops.pool": ("pooling_kernels",),
    "ops.recurrent": ("recurrent_kernels",),
    "ops.row_update": ("segment_kernels",),
    "ops.running_extremes": ("scan_kernels",),
    "ops.sampled_classes": ("segment_kernels", "sampled_class_kernels"),
    "ops.scan": ("scan_kernels",),
    "ops.scatter": ("segment_kernels",),
    "ops.scatter_reduce": ("segment_kernels",),
    "ops.sort": ("sort_kernels",),
}
