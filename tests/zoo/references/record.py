"""Writes losses.json: what PyTorch's autograd gives for the small configurations of examples/zoo, in float64.

    python tests/zoo/references/record.py        # needs PyTorch and NumPy

The nets are written again here, with PyTorch's functions; parameters have the names and initial values of ours (../initial_values.py),
optimizers are the formulas.  losses.json has, per program, the parameters with their shapes, and the loss of every step.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "examples" / "zoo"), str(HERE.parents[2])]
from initial_values import initial_value  # noqa: E402
from zoo_programs import CASES, STEPS, batches, size_of  # noqa: E402

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
T = torch.Tensor


class Parameters:
    """Made where a net asks for them; `under` gives names a prefix."""

    def __init__(self) -> None:
        self.values: dict[str, T] = {}

    def __call__(self, name: str, *shape: int) -> T:
        if name not in self.values:
            self.values[name] = torch.tensor(initial_value(name, shape), dtype=torch.float64, requires_grad=True)
        return self.values[name]

    def dense(self, x: T, units: int, name: str, bias: bool = True) -> T:
        y = x @ self(f"{name}-weight", units, x.shape[-1]).T
        return y + self(f"{name}-bias", units) if bias else y

    def layer_norm(self, x: T, name: str, epsilon: float) -> T:
        return F.layer_norm(x, x.shape[-1:], self(f"{name}-gamma", x.shape[-1]), self(f"{name}-beta", x.shape[-1]), epsilon)

    def batch_norm(self, x: T, name: str, epsilon: float) -> T:
        """With the statistics of the batch."""
        n = x.shape[1]
        return F.batch_norm(x, None, None, self(f"{name}-gamma", n), self(f"{name}-beta", n), training=True, eps=epsilon)


# Nets ---------------------------------------------------------------------------------------------------------------


def resnet50(p: Parameters, size: Any, images: T, labels: T) -> T:
    def convolution(x: T, filters: int, kernel: int, stride: int, name: str) -> T:
        return F.conv2d(x, p(f"{name}-weight", filters, x.shape[1], kernel, kernel), stride=stride, padding=kernel // 2)

    x = F.relu(p.batch_norm(convolution(images, size.width, 7, 2, "conv"), "bn", 1e-5))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(size.blocks):
        for index in range(count):
            at, width, stride = f"stage{stage}-block{index}-", size.width << stage, 2 if stage and not index else 1
            shortcut = x
            if stride > 1 or x.shape[1] != 4 * width:
                shortcut = p.batch_norm(convolution(x, 4 * width, 1, stride, at + "shortcut"), at + "shortcut_bn", 1e-5)
            y = F.relu(p.batch_norm(convolution(x, width, 1, 1, at + "conv1"), at + "bn1", 1e-5))
            y = F.relu(p.batch_norm(convolution(y, width, 3, stride, at + "conv2"), at + "bn2", 1e-5))
            x = F.relu(p.batch_norm(convolution(y, 4 * width, 1, 1, at + "conv3"), at + "bn3", 1e-5) + shortcut)
    logits = p.dense(x.mean((2, 3)), size.classes, "classes")
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def bert(p: Parameters, size: Any, words: T, segments: T, mask: T, *targets: T, task: str) -> T:
    table = p("embeddings-word_embeddings", size.words, size.width)
    places = p("embeddings-position_embeddings", 1, size.length, size.width)
    x = table[words] + p("embeddings-token_type_embeddings", 2, size.width)[segments] + places
    x = p.layer_norm(x, "embeddings-LayerNorm", 1e-12)
    each = size.width // size.heads
    bias = (mask[:, None, None, :].double() - 1) * 10000.0
    for index in range(size.blocks):
        at = f"layer_{index}-"
        q, k, v = (p.dense(x, size.width, at + name).unflatten(-1, (size.heads, each)).transpose(1, 2) for name in ("query", "key", "value"))
        mixed = ((q @ k.mT / math.sqrt(each) + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = p.layer_norm(x + p.dense(mixed, size.width, at + "attention_output"), at + "attention_LayerNorm", 1e-12)
        y = p.dense(F.gelu(p.dense(x, 4 * size.width, at + "intermediate")), size.width, at + "output")
        x = p.layer_norm(x + y, at + "output_LayerNorm", 1e-12)
    if task == "squad":
        starts, ends = targets
        logits = p.dense(x, 2, "cls-squad")
        return (F.cross_entropy(logits[..., 0], starts[:, 0]) + F.cross_entropy(logits[..., 1], ends[:, 0])) / 2
    masked_indices, masked_words, weights, follows = targets
    at = "cls-predictions-"
    chosen = torch.take_along_dim(x, masked_indices[..., None], 1)
    chosen = p.layer_norm(F.gelu(p.dense(chosen, size.width, at + "transform")), at + "transform_LayerNorm", 1e-12)
    logits = chosen @ table.T + p(at + "output_bias", size.words)
    each_word = F.cross_entropy(logits.flatten(0, 1), masked_words.flatten(), reduction="none") * weights.flatten()
    pooled = torch.tanh(p.dense(x[:, 0], size.width, "pooler"))
    return each_word.sum() / (weights.sum() + 1e-5) + F.cross_entropy(p.dense(pooled, 2, "cls-seq_relationship"), follows[:, 0])


def gpt2(p: Parameters, size: Any, tokens: T) -> T:
    table, each = p("words", size.words, size.width), size.width // size.heads
    x = table[tokens[:, :-1]] + p("positions", size.length, size.width)
    later = torch.ones(size.length, size.length, dtype=torch.bool).triu(1)
    for index in range(size.blocks):
        at = f"h{index}-"
        qkv = p.dense(p.layer_norm(x, at + "norm1", 1e-5), 3 * size.width, at + "qkv").unflatten(-1, (size.heads, 3 * each)).transpose(1, 2)
        q, k, v = qkv.split(each, -1)
        scores = (q @ k.mT / math.sqrt(each)).masked_fill(later, -1e4)
        x = x + p.dense((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), size.width, at + "out")
        x = x + p.dense(F.gelu(p.dense(p.layer_norm(x, at + "norm2", 1e-5), 4 * size.width, at + "up")), size.width, at + "down")
    return F.cross_entropy((p.layer_norm(x, "norm", 1e-5) @ table.T).flatten(0, 1), tokens[:, 1:].flatten())


def wide_and_deep(p: Parameters, size: Any, labels: T, features: T, deep_ids: T, wide_ids: T) -> T:
    wide = p("wide_embedding", size.rows, 1)[wide_ids].sum((1, 2))
    x = torch.cat([p("deep_embedding", size.rows, size.width)[deep_ids].flatten(1), features], 1)
    for index, units in enumerate(size.layers):
        x = F.relu(p.dense(x, units, f"fc{index}"))
    return F.binary_cross_entropy_with_logits(p.dense(x, 1, "fc_last")[:, 0] + wide, labels[:, 0].double())


def insightface(p: Parameters, size: Any, images: T, labels: T) -> T:
    def convolution(x: T, filters: int, kernel: int, stride: int, name: str) -> T:
        return F.conv2d(x, p(f"{name}-weight", filters, x.shape[1], kernel, kernel), stride=stride, padding=kernel // 2)

    def norm(x: T, name: str) -> T:
        return p.batch_norm(x, name, 2e-5)

    def prelu(x: T, name: str) -> T:
        return F.prelu(x, p(f"{name}-alpha", x.shape[1], 1, 1).flatten())

    x = prelu(norm(convolution(images, size.width, 3, 1, "conv0"), "bn0"), "relu0")
    for stage, count in enumerate(size.blocks):
        for index in range(count):
            at, width, stride = f"stage{stage}-block{index}-", size.width << stage, 1 if index else 2
            y = prelu(norm(convolution(norm(x, at + "bn1"), width, 3, 1, at + "conv1"), at + "bn2"), at + "relu1")
            y = norm(convolution(y, width, 3, stride, at + "conv2"), at + "bn3")
            if stride > 1 or x.shape[1] != width:
                x = norm(convolution(x, width, 1, stride, at + "shortcut"), at + "shortcut_bn")
            x = x + y
    x = p.dense(norm(x, "bn1").flatten(1), size.embedding, "fc1")
    x = F.batch_norm(x, None, None, None, p("fc1_bn-beta", size.embedding), training=True, eps=2e-5)
    people = p("people", size.people, size.embedding)
    cosines = (x / x.norm(dim=1, keepdim=True)) @ (people / people.norm(dim=1, keepdim=True)).T
    own = F.one_hot(labels, size.people).bool()
    return F.cross_entropy(size.scale * torch.where(own, torch.cos(torch.acos(cosines) + size.margin), cosines), labels)


def generator(p: Parameters, size: Any, noise: T) -> T:
    def enlarged(x: T, channels: int, stride: int, name: str) -> T:
        y = F.conv_transpose2d(x, p(f"generator-{name}-weight", x.shape[1], channels, 5, 5), stride=stride)
        before, extent = (5 - stride) // 2, x.shape[2] * stride
        return y[:, :, before : before + extent, before : before + extent]

    x = p.dense(noise, 4 * size.width * 49, "generator-fc1", bias=False)
    x = F.leaky_relu(p.batch_norm(x, "generator-bn1", 1e-3), 0.3).unflatten(1, (4 * size.width, 7, 7))
    x = F.leaky_relu(p.batch_norm(enlarged(x, 2 * size.width, 1, "deconv1"), "generator-bn2", 1e-3), 0.3)
    x = F.leaky_relu(p.batch_norm(enlarged(x, size.width, 2, "deconv2"), "generator-bn3", 1e-3), 0.3)
    return torch.tanh(enlarged(x, 1, 2, "deconv3"))


def discriminator(p: Parameters, size: Any, x: T) -> T:
    for index, channels in enumerate((size.width, 2 * size.width)):
        name = f"discriminator-conv{index + 1}"
        x = F.conv2d(F.pad(x, (2, 1, 2, 1)), p(f"{name}-weight", channels, x.shape[1], 5, 5), p(f"{name}-bias", channels), stride=2)
        x = F.leaky_relu(x, 0.3)
    return p.dense(x.flatten(1), 1, "discriminator-fc")


# Optimizers ---------------------------------------------------------------------------------------------------------


def clipped(gradients: dict[str, T], limit: float) -> dict[str, T]:
    norm = math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))
    return {name: g * min(1.0, limit / norm) for name, g in gradients.items()}


class Adam:
    def __init__(self, rate: Callable[[int], float], beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, correct: bool = False) -> None:
        self.rate, self.beta1, self.beta2, self.epsilon, self.correct = rate, beta1, beta2, epsilon, correct
        self.decay: Callable[[str], float] = lambda name: 0.0
        self.m: dict[str, Any] = {}
        self.v: dict[str, Any] = {}
        #: of tables: the rows that this step reads; the others stay as they are
        self.rows: dict[str, T] = {}

    def update(self, step: int, values: dict[str, T], gradients: dict[str, T]) -> None:
        rate = self.rate(step)
        if self.correct:
            rate *= math.sqrt(1 - self.beta2 ** (step + 1)) / (1 - self.beta1 ** (step + 1))
        for name, g in gradients.items():
            at = self.rows.get(name, slice(None))
            m, v = self.m.setdefault(name, torch.zeros_like(g)), self.v.setdefault(name, torch.zeros_like(g))
            m[at] = self.beta1 * m[at] + (1 - self.beta1) * g[at]
            v[at] = self.beta2 * v[at] + (1 - self.beta2) * g[at] ** 2
            w = values[name].data
            w[at] -= rate * (m[at] / (v[at].sqrt() + self.epsilon) + self.decay(name) * w[at])


class Momentum:
    def __init__(self, rate: Callable[[int], float], beta: float) -> None:
        self.rate, self.beta, self.v = rate, beta, dict[str, Any]()

    def update(self, step: int, values: dict[str, T], gradients: dict[str, T]) -> None:
        for name, g in gradients.items():
            self.v[name] = self.beta * self.v.get(name, 0.0) - self.rate(step) * g
            values[name].data += self.v[name]


def warmed_up(size: Any, then: Callable[[float], float]) -> Callable[[int], float]:
    """A linear warm-up from 0; `then` is the decay as a function of the part of all steps that are done."""
    return lambda step: size.rate * (step / size.warmup if step < size.warmup else then(step / size.steps))


def cosine(alpha: float) -> Callable[[float], float]:
    return lambda done: (1 - alpha) * 0.5 * (1 + math.cos(math.pi * done)) + alpha


def gradients_of(loss: T, p: Parameters, prefix: str = "") -> dict[str, T]:
    names = [name for name in p.values if name.startswith(prefix)]
    return dict(zip(names, torch.autograd.grad(loss, [p.values[name] for name in names]), strict=True))


# Programs -----------------------------------------------------------------------------------------------------------


def trained(case: str, p: Parameters) -> Iterator[float]:
    """The loss of every step."""
    size = size_of(case)
    nets = {"resnet50": resnet50, "gpt2": gpt2, "wide_and_deep": wide_and_deep, "insightface": insightface}
    decays = {"resnet50": 1 / 32768, "insightface": 5e-4}
    if case == "resnet50":
        optimizer: Any = Momentum(warmed_up(size, cosine(0.0)), 0.875)
    elif case == "insightface":
        optimizer = Momentum(lambda step: size.rate, 0.9)
    elif case == "gpt2":
        optimizer = Adam(warmed_up(size, cosine(0.1)), beta2=0.95, correct=True)
        optimizer.decay = lambda name: 0.0 if "bias" in name or "norm" in name else 0.01
    elif case == "wide_and_deep":
        optimizer = Adam(lambda step: size.rate, correct=True)
    else:
        optimizer = Adam(warmed_up(size, lambda done: 1 - done), epsilon=1e-6)
        optimizer.decay = lambda name: 0.0 if "bias" in name or "LayerNorm" in name else 0.01
    for step, batch in enumerate(batches(case)):
        arguments = [torch.tensor(array, dtype=torch.float64 if array.dtype == np.float32 else torch.int64) for array in batch]
        loss = nets[case](p, size, *arguments) if case in nets else bert(p, size, *arguments, task=case.removeprefix("bert_"))
        gradients = gradients_of(loss, p)
        if case == "wide_and_deep":
            optimizer.rows = {"deep_embedding": arguments[2].unique(), "wide_embedding": arguments[3].unique()}
        if case in decays:
            decayed = {name for name, value in p.values.items() if value.ndim == 4 or (value.ndim == 2 and name in ("people", "fc1-weight"))}
            gradients = {name: g + decays[case] * p.values[name].data if name in decayed else g for name, g in gradients.items()}
        elif case != "wide_and_deep":
            gradients = clipped(gradients, 1.0)
        optimizer.update(step, p.values, gradients)
        yield loss.item()


def trained_dcgan(p: Parameters) -> Iterator[float]:
    """The losses of the generator; a step of the discriminator comes before.  Nets that hold still use the moving statistics, which a
    training net of the other job moves."""
    size = size_of("dcgan")
    moving: dict[str, T] = {}
    first, second = Adam(lambda step: size.rate, beta1=0.5), Adam(lambda step: size.rate, beta1=0.5)

    class Still(Parameters):
        """The parameters of p; batch norm by moving statistics."""

        def __init__(self) -> None:
            self.values = p.values

        def batch_norm(self, x: T, name: str, epsilon: float) -> T:
            n = x.shape[1]
            mean, variance = moving.get(f"{name}.mean", torch.zeros(n)), moving.get(f"{name}.variance", torch.ones(n))
            return F.batch_norm(x, mean, variance, self(f"{name}-gamma", n), self(f"{name}-beta", n), training=False, eps=epsilon)

    class Training(Still):
        """The parameters of p; batch norm by the batch, whose mean and unbiased variance move those that are kept."""

        def batch_norm(self, x: T, name: str, epsilon: float) -> T:
            n, axes = x.shape[1], [axis for axis in range(x.ndim) if axis != 1]
            for kind, value, start in (("mean", x.mean(axes), 0.0), ("variance", x.var(axes), 1.0)):
                key = f"{name}.{kind}"
                moving[key] = 0.99 * moving.get(key, torch.full((n,), start)) + 0.01 * value.detach()
            return Parameters.batch_norm(self, x, name, epsilon)

    for step, (noise, pictures) in enumerate(batches("dcgan")):
        noise, pictures = torch.tensor(noise).double(), torch.tensor(pictures).double()
        logits = discriminator(p, size, torch.cat([generator(Still(), size, noise).detach(), pictures]))
        truth = torch.cat([torch.zeros(size.batch, 1), torch.ones(size.batch, 1)])
        against = 2 * F.binary_cross_entropy_with_logits(logits, truth)
        second.update(step, p.values, gradients_of(against, p, "discriminator"))
        logits = discriminator(p, size, generator(Training(), size, noise))
        loss = F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        first.update(step, p.values, gradients_of(loss, p, "generator"))
        yield loss.item()


def main() -> None:
    cases = {}
    for case in CASES:
        p = Parameters()
        losses = list(trained_dcgan(p) if case == "dcgan" else trained(case, p))
        assert len(losses) == STEPS
        print(f"{case:20}", " ".join(f"{loss:.6f}" for loss in losses))
        cases[case] = {"parameters": {name: list(value.shape) for name, value in sorted(p.values.items())}, "losses": losses}
    (HERE / "losses.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
