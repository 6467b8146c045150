"""`jobflow train FILE`: train the model of a YAML file, or resume an earlier run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jobflow.cli.shared_options import add_configuration, at_least_one
from jobflow.core.errors import ConfigError

if TYPE_CHECKING:
    from jobflow.trainer.config import Loaded

#: the first step that --profile records, because earlier steps compile and fill caches
FIRST_PROFILED = 4
EXAMPLES = """\
examples:
  jobflow train configs/lenet_digits.yaml
  jobflow train configs/lenet_digits.yaml --set optimizer.lr=0.01 --set training.epochs=3 --devices 2
  mpiexec -n 2 jobflow train configs/lenet_digits.yaml
  jobflow train configs/char_gpt.yaml --dry-run
  jobflow train configs/lenet_digits.yaml --sweep optimizer.lr=0.001,0.003 --sweep data.batch_size=32,64 --jobs 2
  srun jobflow train run.yaml --time-limit 3:55:00     # saves in time, and exits with 75: start it again

Training resumes from the newest intact checkpoint in the output, if there is one.  Ctrl-C finishes the step and saves; SIGTERM and the
end of a Slurm or PBS allocation do, too."""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train the model of a YAML file, or resume its training."
    parser.epilog = EXAMPLES
    add_configuration(parser)
    parser.add_argument("--output", metavar="DIR", help="folder of the output files (output)")
    parser.add_argument(
        "--resume", metavar="WHICH", help="auto (default): from the newest intact checkpoint; never: start again; or the path of a checkpoint"
    )
    parser.add_argument(
        "--sweep",
        dest="sweeps",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="train with each of the values, such as optimizer.lr=0.1,0.3",
    )
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="run N trials of a sweep at the same time, each in a process (sweep.jobs)")
    parser.add_argument("--dry-run", action="store_true", help="print plan, memory and communication without training")
    parser.add_argument("--profile", action="store_true", help="record ten steps: a trace of all ranks in the output, and a table of the slowest ops")
    parser.add_argument(
        "--time-limit", type=seconds, metavar="TIME", help="save and stop before this time has passed, such as 90, 15m, 3h or 3:55:00"
    )


def seconds(text: str) -> float:
    """Parse a duration (90, 90s, 15m, 3h, 2d, or hours:minutes:seconds) as seconds; raise ArgumentTypeError for any other text."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    try:
        if ":" in text:
            total = 0.0
            for part in text.split(":"):
                total = 60 * total + float(part)
        else:
            unit = units.get(text[-1:])
            total = float(text[:-1]) * unit if unit is not None else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 90, 15m, 3h or 3:55:00") from None
    if not 0 < total < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive time; write 90, 15m, 3h or 3:55:00")
    return total


def loaded_from(options: argparse.Namespace, output: str | None = None) -> Loaded:
    """Load the configuration file with the settings and devices of the command line; `output` overrides the output directory."""
    from jobflow.trainer.config import load

    return load(options.config, settings_of(options, output))


def settings_of(options: argparse.Namespace, output: str | None = None) -> list[str]:
    """Return the settings of the command line, including those of its other options."""
    settings = list(options.settings)
    if options.devices is not None:
        settings.append(f"strategy.devices={options.devices}")
    if output is not None:
        settings.append(f"output={output}")
    return settings


def run(options: argparse.Namespace) -> int:
    """Train and return the exit code of the outcome; with --dry-run, only print the preview."""
    from jobflow.runtime.world.launched import launched
    from jobflow.trainer.chrome_trace import Tracing
    from jobflow.trainer.loop import train
    from jobflow.trainer.preview import preview

    if options.sweeps:
        from jobflow.trainer.sweep.trials import sweep_setting

        options.settings += map(sweep_setting, options.sweeps)
    loaded, started = loaded_from(options, options.output), launched()
    first = started is None or started.rank == 0
    if loaded.config.sweep is not None:
        return run_trials(options, first)
    if options.jobs is not None:
        raise ConfigError("--jobs: there is no sweep; add --sweep KEY=VALUES, or a section sweep in the file")
    if options.dry_run:
        text = preview(loaded).text()  # on every rank: the parameters of a module start the session of all ranks
        if first:
            print(text)
        return 0
    tracing = Tracing(Path(loaded.config.output) / "trace.json", FIRST_PROFILED) if options.profile else None
    ended = train(loaded, resume=options.resume, time_limit=options.time_limit, tracing=tracing)
    if tracing is not None and tracing.traced is not None:  # on rank 0
        print(f"{tracing.traced.text()}\n\nthe trace is in {tracing.traced.path}; open it at https://ui.perfetto.dev")
    return ended.exit_code


def run_trials(options: argparse.Namespace, first: bool) -> int:
    """Run the trials of a sweep and return its exit code; with --dry-run, only list them.  `first` is True on rank 0."""
    from jobflow.trainer.sweep import run_sweep
    from jobflow.trainer.sweep.trials import Trials

    settings = settings_of(options, options.output)
    if options.profile:
        raise ConfigError("--profile: a sweep records no trace; pass the values of one trial with --set")
    if options.dry_run:
        trials = Trials(options.config, settings)
        if first:
            print("\n".join(trials.lines()))
        return 0

    result = run_sweep(options.config, settings, resume=options.resume, jobs=options.jobs, time_limit=options.time_limit)
    if first:
        result.table().print()
        print("\n".join(result.lines(options.config)))
    return result.exit_code
