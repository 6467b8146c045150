"""`jobflow explain`: print every compilation stage of a job, or write a page with a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobflow.cli.shared_options import add_job
from jobflow.core.errors import ConfigError
from jobflow.kernels.target import SETTINGS
from jobflow.tools import STAGES

EXAMPLES = """\
examples:
  jobflow explain examples/hybrid_mlp.py:train_job --devices 2
  jobflow explain examples/hybrid_mlp.py:train_job --devices 2 --stage boxing --stage memory
  jobflow explain examples/hybrid_mlp.py:train_job --stage kernels --kernels llvm
  jobflow explain "examples/gpt.py:make_train_job(Size())" --device cuda --stage kernels --stage floors
  jobflow explain "examples/gpt.py:make_train_job(Size())" --devices 4 --strategy 2x2 --html page.html"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = "Print every stage of a job; nothing runs.", EXAMPLES
    add_job(parser, 1, "compile the job for N devices")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="print the plan of rank R (default 0)")
    parser.add_argument(
        "--stage", action="append", choices=STAGES, metavar="STAGE", help=f"print only this one of {', '.join(STAGES)}; may be given several times"
    )
    parser.add_argument("--kernels", choices=tuple(SETTINGS), help="kernels to select in place of the program's config.kernels")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="compile for CPUs or for GPUs; cuda needs no GPU, and adds the least time of each call on an H100 (default: what the program runs on)",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with a picture of the graph and the tables instead; it opens offline")


def run(options: argparse.Namespace) -> int:
    """Print the compilation stages of a job, or write them as an HTML page."""
    from jobflow.engine.options import check_kernels
    from jobflow.engine.session import current_session
    from jobflow.tools.explain import explain, explain_page, load_job

    if options.rank not in range(options.devices):
        raise ConfigError(f"--rank {options.rank} is not a rank of --devices {options.devices}; pass 0 to {options.devices - 1}")
    job = load_job(options.job)
    if options.kernels is not None:
        check_kernels(options.kernels, f"--kernels {options.kernels}")
        current_session().settings.kernels = options.kernels
    if options.html is None:
        print(explain(job, devices=options.devices, rank=options.rank, stages=options.stage, strategy=options.strategy, device=options.device))
        return 0
    page = explain_page(job, devices=options.devices, rank=options.rank, strategy=options.strategy, device=options.device)
    Path(options.html).write_text(page, encoding="utf-8")
    print(f"wrote {options.html}")
    return 0
