"""The configurations of the repository, cut down to a few steps of small nets."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, field
from pathlib import Path

from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import Loaded, load
from jobflow.trainer.loop import train
from jobflow.trainer.training_run import EvaluationReport, Outcome, StepReport, TrainingRun

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
GPT = ("model.arguments.length=16", "model.arguments.width=16", "data.train.stride=16", "data.batch_size=8", "data.train.validation=0.001",
       "data.validation.validation=0.001", "optimizer.warmup_steps=2")  # fmt: skip
#: what makes them small, by the beginning of their names
SETTINGS: dict[str, tuple[str, ...]] = {
    "char_gpt": GPT,
    "lenet_digits": ("model.arguments.filters=[4, 8]", "model.arguments.hidden=16", "data.train.copies=1", "data.batch_size=20"),
    "mirrored": ("data.train.copies=1", "data.batch_size=20"),
    "mlp_hybrid": ("model.arguments.hidden=[16, 24]", "data.train.copies=1", "data.batch_size=20"),
    "resnet_images": ("model.arguments.width=4", "data.train.size=12", "data.train.resize=14", "data.validation.size=12", "data.batch_size=8"),
    "wide_deep": ("model.arguments.width=4", "model.arguments.hidden=[8]", "data.batch_size=16"),
}


def images_in(folder: Path) -> Path:
    """A few digits as folders of images, written by the script that resnet_images.yaml names."""
    runpy.run_path(str(ROOT / "scripts" / "digits_as_images"))["write"](folder, 60, 12)
    return folder


def whole(name: str, images: Path, *settings: str) -> Loaded:
    """A configuration as it is, but for where its images are."""
    own = (f"data.train.path={images}",) if name == "resnet_images" else ()
    return load(FOLDER / f"{name}.yaml", (*own, *settings))


def shortened(name: str, images: Path, output: Path, steps: int, *settings: str) -> Loaded:
    """A configuration of a small net that trains for so many steps, evaluates once and writes into `output`."""
    small = next(own for start, own in SETTINGS.items() if name.startswith(start))
    limits = ("training.epochs=null", f"training.steps={steps}", "evaluation.every_epochs=null", f"evaluation.every_steps={steps}")
    quiet = (f"output={output}", "checkpoint.every_epochs=null", f"checkpoint.every_steps={steps}", "logging.progress=none", "logging.report=false")
    return whole(name, images, *small, *limits, *quiet, *settings)


@dataclass
class Seen(Callback):
    """The losses of a run's steps, its evaluations and checkpoints."""

    observes = True

    losses: list[float] = field(default_factory=list)
    evaluations: list[EvaluationReport] = field(default_factory=list)
    saved_at: list[Path] = field(default_factory=list)
    ranks: int = 0

    def on_start(self, run: TrainingRun) -> None:
        self.ranks = run.ranks

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self.losses.append(report.loss)

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self.evaluations.append(report)

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        self.saved_at.append(path)


def trained(loaded: Loaded) -> tuple[Seen, Outcome]:
    """What was seen of a run, and how it ended."""
    seen = Seen()
    outcome = train(loaded, callbacks=[seen]).outcome
    assert outcome is not None
    return seen, outcome
