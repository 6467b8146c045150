"""Global tensors on real handwritten digits: an MLP trained op by op, its data split over the ranks, its weights as --sbp says.

    python examples/global_mlp.py
    mpiexec -n 2 python examples/global_mlp.py --sbp broadcast      # data parallel: every rank has all weights
    mpiexec -n 2 python examples/global_mlp.py --sbp split0         # every rank has some units of each layer
    jobflow launch --nproc_per_node 2 examples/global_mlp.py --sbp split1

The numbers do not depend on the number of ranks, nor on how the weights lie.
"""

import argparse
import time

import numpy as np

import jobflow as flow
from jobflow import nn
from jobflow.data.digits import originals

DEVICE = "cuda" if flow.cuda.is_available() else "cpu"
BATCH_SIZE = 100
TRAIN_SIZE = 1400
#: how weights (units, inputs) and biases (units) lie
LAYOUTS = {
    "broadcast": (flow.sbp.broadcast, flow.sbp.broadcast),
    "split0": (flow.sbp.split(0), flow.sbp.split(0)),
    "split1": (flow.sbp.split(1), flow.sbp.broadcast),
}


def load_digits():
    """((train images, labels), (test images, labels)): float32 [n,64] in 0..1 and int32 [n], split at random."""
    images, labels = originals()
    order = np.random.RandomState(0).permutation(len(labels))
    rows, classes = images.reshape(-1, 64).astype(np.float32)[order] / 16, labels.astype(np.int32)[order]
    return (rows[:TRAIN_SIZE], classes[:TRAIN_SIZE]), (rows[TRAIN_SIZE:], classes[TRAIN_SIZE:])


def make_model(placement, weights, biases):
    """Two dense layers on all ranks."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model.to_global(placement, flow.sbp.broadcast)  # the first rank's numbers
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(layer.weight.detach().to_global(sbp=weights))
            layer.bias = nn.Parameter(layer.bias.detach().to_global(sbp=biases))
    return model


def shuffled_batches(images, labels, steps):
    """`steps` batches; every epoch goes through the images in a new order."""
    random = np.random.RandomState(0)
    for step in range(steps):
        place = step * BATCH_SIZE % len(images)
        if place == 0:
            order = random.permutation(len(images))
        chosen = order[place : place + BATCH_SIZE]
        yield images[chosen], labels[chosen]


def progress(batches, steps):
    """The batches; on the first rank behind a progress bar, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return batches
    return tqdm(batches, total=steps, unit="step", mininterval=0.5, disable=flow.env.get_rank() > 0)


def main():
    parser = argparse.ArgumentParser(description="MLP of global tensors on handwritten digits")
    parser.add_argument("--sbp", choices=LAYOUTS, default="broadcast", help="how the weights lie; the data is split")
    parser.add_argument("--steps", type=int, default=20 * TRAIN_SIZE // BATCH_SIZE)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every so many steps")
    options = parser.parse_args()

    flow.manual_seed(0)
    everywhere = flow.placement.all(DEVICE)
    model = make_model(everywhere, *LAYOUTS[options.sbp])
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = flow.optim.lr_scheduler.CosineDecayLR(optimizer, options.steps)

    def split(array):
        return flow.tensor(array, placement=everywhere, sbp=flow.sbp.split(0))

    train, (test_images, test_labels) = load_digits()
    start = time.perf_counter()
    shown = []
    for step, (images, labels) in enumerate(progress(shuffled_batches(*train, options.steps), options.steps)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(split(images)), split(labels))
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % options.every == 0 or step == options.steps - 1:
            shown.append(f"step {step:4d}  loss {loss.item():.6f}")  # item() is asked for on every rank
    seconds = time.perf_counter() - start

    with flow.no_grad():
        right = (model(split(test_images)).argmax(1) == split(test_labels)).sum().item()
    if flow.env.get_rank() == 0:
        print("\n".join(shown))
        print(f"test accuracy {right / len(test_labels):.2%} of {len(test_labels)} digits")
        print(f"trained {options.steps} steps in {seconds:.1f} s")


if __name__ == "__main__":
    main()
