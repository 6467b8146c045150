"""`jobflow export FILE --to NAME`: write a trained model as an ONNX, safetensors or npz file."""

from __future__ import annotations

import argparse

from jobflow.cli.shared_options import add_configuration, at_least_one
from jobflow.cli.train_command import loaded_from

EXAMPLES = """\
examples:
  jobflow export configs/lenet_digits.yaml --to lenet.onnx
  jobflow export configs/lenet_digits.yaml --to lenet.onnx --batch-size 50 --force
  jobflow export configs/lenet_digits.yaml --to lenet.safetensors --checkpoint runs/lenet_digits/checkpoints/step-00000100

An ONNX file computes the outputs of `jobflow predict` for a batch of one size, and needs the package onnx.  The other files have the
parameters and moving statistics.  To write all tensors of a checkpoint, with the states of the optimizer, use `jobflow ckpt export`."""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = "Write a trained model as an ONNX, safetensors or npz file.", EXAMPLES
    add_configuration(parser, trained=True)
    parser.add_argument("--to", metavar="NAME", required=True, help="output file: .onnx, .safetensors or .npz")
    parser.add_argument("--batch-size", type=at_least_one, default=1, metavar="N", help="number of samples of an ONNX file (default 1)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(options: argparse.Namespace) -> int:
    """Export, and print a summary on rank 0."""
    from jobflow.core.errors import counted
    from jobflow.runtime.world.launched import launched
    from jobflow.trainer.exporting import export

    result, started = export(loaded_from(options), options.to, options.checkpoint, rows=options.batch_size, replace=options.force), launched()
    if started is not None and started.rank > 0:
        return 0
    values = sum(type.size for type in result.tensors.values())
    inputs = "".join(f"; input {name} {type}" for name, type in result.inputs.items())
    print(f"wrote {result.path}: {counted(len(result.tensors), 'tensor')}, {counted(values, 'value')}, from {result.checkpoint}{inputs}")
    if result.converted:
        print(f"bfloat16 tensors were written as float32, because NumPy has no bfloat16: {', '.join(result.converted)}")
    return 0
