"""`jobflow compare RUN...`: compare runs in a table and on a page."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """\
examples:
  jobflow compare runs/one runs/two
  jobflow compare runs/rates --html rates.html     # all trials of a sweep
  jobflow compare runs/* --json"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compare runs: a table of changed keys and metrics, and one HTML page with the curves of all runs."
    parser.epilog = EXAMPLES
    parser.add_argument("runs", metavar="RUN", nargs="+", help="output folder of a run, or of a sweep for all of its trials")
    parser.add_argument("--html", type=Path, default=Path("compare.html"), metavar="PATH", help="the page (default compare.html)")
    parser.add_argument("--json", action="store_true", help="print JSON, and write no page")


def run(options: argparse.Namespace) -> int:
    """Print the comparison and write its page."""
    from jobflow.trainer.compare_runs import comparison_table, json_text, read_runs, write_page

    runs = read_runs(options.runs)
    if options.json:
        print(json_text(runs))
        return 0
    comparison_table(runs).print()
    write_page(options.html, runs)
    print(f"curves: {options.html}")
    return 0
