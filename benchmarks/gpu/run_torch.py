"""Train one model with PyTorch and print the time, memory and loss of its steps.

python run_torch.py MODEL BATCH PRECISION eager|compile [--small] [--host] [--wait]

bfloat16 is autocast; float32 is without TF32; convolutions are channels_last; optimizers are fused.  --wait pauses after warm-up: the program
prints READY and waits for a line.  Models can then compile in parallel and run one at a time.  cuDNN searches for the fastest algorithm only
after that line, when no other process uses the GPU.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import step_timing
import torch
import torch_models
import workloads

#: untimed steps in which cuDNN searches for the fastest algorithms
SETTLING = 2


def prepared(options: argparse.Namespace) -> Any:
    """Return a function that trains one step and returns the loss."""
    device = "cpu" if options.host else "cuda"
    size = workloads.sizes(options.small)[options.model]
    net = torch_models.build(size).to(device)
    if options.model == "resnet50":
        net = net.to(memory_format=torch.channels_last)
    optimizer = torch_models.optimizer(size, net)
    loss_of = torch.compile(net) if options.mode == "compile" else net

    def step(tensors: tuple[torch.Tensor, ...]) -> float:
        inputs, labels = (tensor.to(device, non_blocking=True) for tensor in tensors)
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=options.precision == "bfloat16"):
            loss = loss_of(inputs, labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def tensors(arrays: tuple[Any, ...], host: bool) -> tuple[torch.Tensor, ...]:
    """Return the batch as pinned tensors, with integers as int64."""
    batch = [torch.from_numpy(array) for array in arrays]
    batch = [tensor.long() if tensor.dtype == torch.int32 else tensor for tensor in batch]
    return tuple(tensor if host else tensor.pin_memory() for tensor in batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=workloads.MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("precision", choices=("float32", "bfloat16"))
    parser.add_argument("mode", choices=("eager", "compile"))
    parser.add_argument("--small", action="store_true", help="small models")
    parser.add_argument("--host", action="store_true", help="on the CPU")
    parser.add_argument("--wait", action="store_true", help="time the steps when a line comes on standard input")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    step = prepared(options)
    batches = [tensors(arrays, options.host) for arrays in workloads.batches(workloads.sizes(options.small)[options.model], options.batch)]
    warm, early = step_timing.run_steps(step, batches, workloads.WARM, 0)
    if options.wait:
        print("READY", flush=True)
        sys.stdin.readline()
    torch.backends.cudnn.benchmark = True
    _, settling = step_timing.run_steps(step, batches, SETTLING, workloads.WARM)
    if not options.host:
        torch.cuda.reset_peak_memory_stats()
    timed, late = step_timing.run_steps(step, batches, workloads.TIMED, workloads.WARM + SETTLING)
    side, losses = f"torch {options.mode}", [*early, *settling, *late]
    row = step_timing.figures(options.model, options.small, options.batch, options.precision, side, warm, timed, losses)
    step_timing.emit(**row, peak_mib=None if options.host else torch.cuda.max_memory_reserved() / 2**20)


if __name__ == "__main__":
    main()
