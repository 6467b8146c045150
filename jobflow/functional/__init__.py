"""Functions over tensors, in PyTorch-style names; many are methods of `Tensor` too.  Thin over `jobflow.ops`."""
