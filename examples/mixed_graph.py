"""Mixed parallelism as a graph: two stages on ranks of their own, the first data parallel, the second model parallel.

    python examples/mixed_graph.py
    mpiexec -n 2 python examples/mixed_graph.py                              # a stage each
    mpiexec -n 4 python examples/mixed_graph.py                              # two ranks for each stage
    jobflow launch --nproc_per_node 4 examples/mixed_graph.py --parts 10

The batch passes through the stages in parts, so that both have work at the same time.  The numbers do not depend on the number of
ranks, nor on the number of parts.
"""

import argparse
import time

from global_mlp import BATCH_SIZE, DEVICE, TRAIN_SIZE, load_digits, progress, shuffled_batches

import jobflow as flow
from jobflow import nn


class TwoStages(nn.Module):
    """The hidden layer on the first half of the ranks, with copies of its weights; the classes on the other half, split."""

    def __init__(self):
        super().__init__()
        ranks = flow.env.get_world_size()
        half = max(ranks // 2, 1)
        self.first, self.last = flow.placement(DEVICE, range(half)), flow.placement(DEVICE, range(ranks - half, ranks))
        self.hidden = nn.Sequential(nn.Linear(64, 128), nn.ReLU()).to_global(self.first, flow.sbp.broadcast)
        self.classes = nn.Linear(128, 10).to_global(self.last, flow.sbp.broadcast)
        self.classes.weight = nn.Parameter(self.classes.weight.detach().to_global(sbp=flow.sbp.split(0)))
        self.classes.bias = nn.Parameter(self.classes.bias.detach().to_global(sbp=flow.sbp.split(0)))

    def forward(self, images):
        hidden = self.hidden(images)
        return self.classes(hidden.to_global(placement=self.last, sbp=flow.sbp.broadcast))

    def images(self, array):
        """A batch where the first stage wants it: split."""
        return flow.tensor(array, placement=self.first, sbp=flow.sbp.split(0))

    def labels(self, array):
        """Its labels where the last stage wants them: a copy on each rank."""
        return flow.tensor(array, placement=self.last, sbp=flow.sbp.broadcast)


class Train(nn.Graph):
    """A training step as one program: forward, backward and update, in parts, one after the other on each stage."""

    def __init__(self, model, optimizer, schedule, parts):
        super().__init__()
        self.model = model
        self.model.hidden.to(nn.graph.GraphModule).set_stage(stage_id=0, placement=model.first)
        self.model.classes.to(nn.graph.GraphModule).set_stage(stage_id=1, placement=model.last)
        self.config.set_gradient_accumulation_steps(parts)
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, images, labels):
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        return loss


def main():
    parser = argparse.ArgumentParser(description="two stages of a graph on handwritten digits")
    parser.add_argument("--parts", type=int, default=4, help="how many parts a batch passes through the stages in")
    parser.add_argument("--steps", type=int, default=20 * TRAIN_SIZE // BATCH_SIZE)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every so many steps")
    options = parser.parse_args()

    flow.manual_seed(0)
    model = TwoStages()
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = flow.optim.lr_scheduler.CosineDecayLR(optimizer, options.steps)
    step_of = Train(model, optimizer, schedule, options.parts)

    train, (test_images, test_labels) = load_digits()
    start = time.perf_counter()
    shown = []
    for step, (images, labels) in enumerate(progress(shuffled_batches(*train, options.steps), options.steps)):
        losses = step_of(model.images(images), model.labels(labels))  # one for each part
        if step % options.every == 0 or step == options.steps - 1:
            shown.append(f"step {step:4d}  loss {losses.mean().item():.6f}")  # item() is asked for on every rank
    seconds = time.perf_counter() - start

    with flow.no_grad():  # the graph has trained the model's own weights
        right = (model(model.images(test_images)).argmax(1) == model.labels(test_labels)).sum().item()
    if flow.env.get_rank() == 0:
        print("\n".join(shown))
        print(f"test accuracy {right / len(test_labels):.2%} of {len(test_labels)} digits")
        print(f"trained {options.steps} steps in {seconds:.1f} s")


if __name__ == "__main__":
    main()
