"""Operations that a rank on a GPU runs on the processor of its machine, because the user placed them on "cpu"."""

from __future__ import annotations

from jobflow.ops.layout_ops import SliceBox, ToLocal
from jobflow.ops.op import Op, Types, ViewOp
from jobflow.ops.parts import PutPart
from jobflow.ops.runtime_assertions import RuntimeAssertion


class HostOperation(Op):
    """An operation of one rank on copies of its inputs in host memory, whose results are copied back to the GPU."""

    op: Op

    @property
    def pure(self) -> bool:  # type: ignore[override]
        return self.op.pure

    def infer(self, *types: object) -> Types:
        return self.op.infer(*types)

    def __str__(self) -> str:
        return f"{self.op} on the host"


def as_host_operation(op: Op) -> Op:
    """Return the operation on the host, or the operation itself if it computes nothing.

    Views and parts stay where the value is.  Updates stay as well, because variables are stored on the rank's device.  Assertions report to it.
    """
    stays = op.alias or op.external or isinstance(op, ViewOp | RuntimeAssertion | ToLocal | PutPart | SliceBox)
    return op if stays else HostOperation(op)
