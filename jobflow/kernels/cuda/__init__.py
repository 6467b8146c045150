"""Fused kernels on GPUs: expressions printed as CUDA C and compiled by NVRTC when a program is bound.

    refuses(outputs, inputs, targets)            why there is no kernel for these arrays, or None
    bind(device, outputs, inputs, targets)       launches (function, (arguments,)) that compute them
    print_kernel(outputs, form)                  the text

The text is compiled for several GPUs, and run on the host with CUDA's built-ins imitated, by the tests.  It has never run on a GPU.
"""
