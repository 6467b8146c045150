"""`jobflow eval FILE`: measure a checkpoint on the data of its configuration."""

from __future__ import annotations

import argparse
import json
import math

from jobflow.cli.shared_options import add_configuration
from jobflow.cli.train_command import loaded_from

EXAMPLES = """\
examples:
  jobflow eval configs/lenet_digits.yaml
  jobflow eval configs/lenet_digits.yaml --on validation --checkpoint runs/lenet_digits/checkpoints/step-00000100
  mpiexec -n 2 jobflow eval configs/lenet_digits.yaml --json"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = "Measure a checkpoint on the data of its configuration.", EXAMPLES
    add_configuration(parser, trained=True)
    parser.add_argument("--on", choices=("train", "validation", "test"), help="which samples (default: data.test, else data.validation)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def run(options: argparse.Namespace) -> int:
    """Evaluate, and print the metrics on rank 0."""
    from jobflow.core.errors import counted
    from jobflow.core.tables import TextTable
    from jobflow.runtime.world.launched import launched
    from jobflow.trainer.evaluate import evaluate
    from jobflow.trainer.set_metrics.metric_names import class_texts
    from jobflow.trainer.units import metric_text

    report = evaluate(loaded_from(options), options.checkpoint, options.on)
    started = launched()
    if started is not None and started.rank > 0:
        return 0
    if options.json:
        tables = {name: table.tolist() for name, table in report.tables.items()}
        metrics = {name: value if math.isfinite(value) else None for name, value in report.metrics.items()}
        print(json.dumps({"step": report.step, "epoch": report.epoch, "samples": report.samples, "seconds": report.seconds, **metrics, **tables}))
        return 0
    TextTable([], [(name, metric_text(name, value)) for name, value in report.metrics.items()]).print()
    for name, table in report.tables.items():
        classes = class_texts(report.classes, len(table))
        rows = [(label, *map("{:,}".format, counts)) for label, counts in zip(classes, table, strict=True)]
        print(f"{name}, a row per label and a column per predicted class")
        TextTable(["", *classes], rows, right=range(1, len(classes) + 1)).print()
    print(f"{counted(report.samples, 'sample')} in {report.seconds:.2f} s, checkpoint of step {report.step}")
    return 0
