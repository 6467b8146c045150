"""The table of twelve models, and two ways to train one: a configuration, and a loop as users of PyTorch write it.

Both have the same initial weights, from the same seed, and read the same samples in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plain_models
import yaml

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import nn, optim
from jobflow.data import open_reader
from jobflow.trainer import Callback, train
from jobflow.trainer.config import load
from jobflow.utils.data import DataLoader, RandomSampler

SEED, BATCH, STEPS = 3, 8, 4


@dataclass(frozen=True)
class Case:
    """A model with its data, its loss and its optimizer; `exact` are the arguments without random numbers in the forward pass."""

    model: str
    reader: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    exact: dict[str, Any] = field(default_factory=dict)
    #: the loss of a configuration and of a loop; None if the model returns its loss
    loss: str | None = None
    criterion: Callable[[Any, Any], Any] | None = None
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "adam", "lr": 0.01})
    make_optimizer: Callable[[nn.Module], Any] = lambda model: optim.Adam(model.parameters(), lr=0.01)

    def settings(self, folder: Path, output: Path, exact: bool) -> dict[str, Any]:
        """Return the configuration."""
        return {
            "seed": SEED,
            "output": str(output),
            "model": {"builder": f"plain_models:{self.model}", "arguments": self.arguments | (self.exact if exact else {})}
            | ({} if self.loss is None else {"loss": self.loss}),
            "data": {"train": self._read(folder), "batch_size": BATCH},
            "optimizer": self.optimizer,
            "training": {"steps": STEPS},
            "logging": {"progress": "none", "report": False},
        }

    def _read(self, folder: Path) -> dict[str, Any]:
        return {**self.reader, **({"path": str(folder / self.reader["path"])} if "path" in self.reader else {})}

    # ---------------------------------------------------------------- two ways

    def train_configuration(self, folder: Path, output: Path, *settings: str, exact: bool = True) -> list[float]:
        """Train as `jobflow train` does; return the loss of each step."""
        file = folder / f"{self.model}.yaml"
        file.write_text(yaml.safe_dump(self.settings(folder, output, exact)))
        losses: list[float] = []

        class Losses(Callback):
            observes = True

            def on_step(self, run: Any, report: Any) -> None:
                losses.append(report.loss)

        train(load(file, settings), callbacks=[Losses()])
        return losses

    def train_in_a_loop(self, folder: Path) -> list[float]:
        """Train with a loop on the ranks of this program, each with its part of the batches; return the mean loss of each step."""
        rank, ranks = flow.env.get_rank(), flow.env.get_world_size()
        samples = open_reader(self.reader["reader"], **{name: value for name, value in self._read(folder).items() if name != "reader"})
        flow.manual_seed(SEED)
        model: Any = getattr(plain_models, self.model)(**resolved(self.arguments | self.exact, samples))
        shuffle = RandomSampler(samples, seed=SEED)  # the trainer's order; DistributedSampler has PyTorch's
        if ranks > 1:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = self.make_optimizer(model)
        losses: list[float] = []
        while len(losses) < STEPS:
            for batch in DataLoader(samples, batch_size=BATCH // ranks, sampler=list(shuffle)[rank::ranks]):
                optimizer.zero_grad()
                loss = self._loss(model, batch)
                loss.backward()
                optimizer.step()
                losses.append(mean_over_ranks(loss))
                if len(losses) == STEPS:
                    break
        return losses

    def _loss(self, model: Any, batch: dict[str, Any]) -> Any:
        if self.criterion is None:
            names = [name for name in batch if name in forward_parameters(model)]
            return model(**{name: batch[name] for name in names})["loss"]
        labels = batch.pop("labels")
        return self.criterion(model(**batch), labels)


def forward_parameters(model: Any) -> tuple[str, ...]:
    """Return the names of the parameters of a model's `forward`."""
    code = type(getattr(model, "module", model)).forward.__code__
    return code.co_varnames[1 : code.co_argcount]


def resolved(arguments: dict[str, Any], samples: Any) -> dict[str, Any]:
    """Replace references to facts by the sizes of the samples."""
    facts = {f"${{facts.{name}.size}}": len(texts) for name, texts in samples.facts.get("categories", {}).items()}
    facts["${facts.vocabulary.size}"] = len(samples.facts.get("vocabulary", ()))
    return {name: facts.get(value, value) if isinstance(value, str) else value for name, value in arguments.items()}


def mean_over_ranks(loss: Any) -> float:
    """Return the mean of a local loss over the ranks."""
    if flow.env.get_world_size() == 1:
        return float(loss.item())
    total = loss.detach().clone()
    flow.distributed.all_reduce(total)
    return float(total.item()) / flow.env.get_world_size()


def without_decay(model: nn.Module) -> list[dict[str, Any]]:
    """Return parameter groups in which biases and norms do not decay."""
    parameters: list[Any] = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def python(function: str, **more: Any) -> dict[str, Any]:
    return {"reader": "python", "function": f"plain_data:{function}", **more}


SGD = {"optimizer": {"name": "sgd", "lr": 0.1}, "make_optimizer": lambda model: optim.SGD(model.parameters(), lr=0.1)}
MOMENTUM = {
    "optimizer": {"name": "momentum", "lr": 0.05, "momentum": 0.9},
    "make_optimizer": lambda model: optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
}
ADAMW = {
    "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "make_optimizer": lambda model: optim.AdamW(without_decay(model), lr=0.01),
}
ENTROPY: dict[str, Any] = {"loss": "softmax_cross_entropy", "criterion": F.cross_entropy}
WORDS = {"words": 12}

CASES = {
    case.model: case
    for case in (
        Case(
            "TableRegressor",
            {"reader": "csv", "path": "houses.csv", "fields": {"features": ["area", "age", "rooms"], "labels": "price"}},
            {"inputs": 3},
            {"drop": 0.0},
            "mse_loss",
            F.mse_loss,
            **ADAMW,
        ),
        Case(
            "Recommender",
            {
                "reader": "csv",
                "path": "ratings.csv",
                "fields": {"user": "user", "item": "item", "labels": "rating"},
                "categories": ["user", "item"],
            },
            {"users": "${facts.user.size}", "items": "${facts.item.size}"},
            loss="huber_loss",
            criterion=F.huber_loss,
        ),
        Case("TwoHeads", python("orders", names=["features", "labels", "amounts"]), {"inputs": 4, "classes": 2}, **MOMENTUM),
        Case("ConvNet", {"reader": "images", "path": "photos", "size": 8}, {"classes": 2}, **ENTROPY, **SGD),
        Case("ResNet", {"reader": "numpy", "path": "digits.npz"}, {}, **ENTROPY, **MOMENTUM),
        Case("Autoencoder", {"reader": "digits", "split": "validation", "edge": 8}),
        Case("VAE", {"reader": "digits", "split": "validation", "edge": 8}, {}, {"sample": False}),
        Case("UNet", python("shapes"), {"classes": 3}, loss="cross_entropy", criterion=F.cross_entropy),
        Case("LSTMClassifier", python("Reviews"), WORDS, {"drop": 0.0}, **ENTROPY),
        Case("GRUForecaster", python("waves"), loss="smooth_l1_loss", criterion=F.smooth_l1_loss, **MOMENTUM),
        Case("EncoderClassifier", python("Reviews"), WORDS, {"drop": 0.0}, **ENTROPY, **ADAMW),
        Case("GPT", {"reader": "text", "path": "text.txt", "length": 8}, {"words": "${facts.vocabulary.size}", "length": 8}, {"drop": 0.0}, **ADAMW),
    )
}


def close(losses: list[float], expected: list[float]) -> None:
    """Check that losses are equal up to rounding, and not constant."""
    assert len(losses) == len(expected) == STEPS
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert len(set(losses)) == STEPS
