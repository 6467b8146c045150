"""The tier "numpy" of CPUs: implementations of operations with NumPy and BLAS.

A module registers its implementations by decorating the functions that prepare calls:

    @implements(AxisSum, refuses=_not_contiguous)
    def sums_of_lines(op: AxisSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:

`MODULES` maps each module of operations to the modules here that are imported for it.
"""

#: module of operations -> the modules of this package that register implementations of them
MODULES: dict[str, tuple[str, ...]] = {
    "kernels.cpu.product_ops": ("products",),
    "ops.activation": ("element_calls",),
    "ops.batch_norm": ("batch_statistics",),
    "ops.broadcast": ("copies", "sums"),
    "ops.conv": ("convolutions",),
    "ops.index": ("segments",),
    "ops.indexed": ("row_calls",),
    "ops.layout_ops": ("copies",),
    "ops.matmul": ("element_calls", "products", "sums"),
    "ops.move": ("copies",),
    "ops.optimizer_updates": ("updates",),
    "ops.pointwise": ("element_calls",),
    "ops.pool": ("pooling",),
    "ops.reduce": ("sums",),
    "ops.row_update": ("updates",),
    "ops.scalar": ("copies",),
    "ops.scatter": ("copies",),
    "ops.guarded_update": ("updates",),
    "ops.slice_update": ("copies",),
    "ops.slices": ("copies",),
    "ops.softmax": ("causal_softmax",),
    "ops.sort": ("selections",),
    "ops.triangle": ("copies",),
}
