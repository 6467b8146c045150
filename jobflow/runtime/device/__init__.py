"""CPU and GPU memory and kernels."""
