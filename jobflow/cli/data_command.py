"""`jobflow data FILE|CONFIG`: describe data before training, and find rows that cannot be read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobflow.cli.shared_options import add_settings, at_least_one

if TYPE_CHECKING:
    from jobflow.data.describe import Description

EXAMPLES = """\
examples:
  jobflow data flowers.csv
  jobflow data photos/ --samples 200                  # a folder of images, one folder per class
  jobflow data configs/lenet_digits.yaml --json       # the readers of a configuration

The exit code is 1 if a row or sample cannot be read."""
#: classes on one line
CLASSES = 8


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print fields, types, ranges, classes, missing values and the first samples of data.  A table is read completely."
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", help="a table, array file, text, folder of images, or the YAML file of a configuration")
    parser.add_argument(
        "--samples", type=at_least_one, metavar="N", help="number of samples to read (default: all rows of a table, 1,000 of other data)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per file or reader")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    wrong = 0
    for description in descriptions(options):
        wrong += description.wrong
        print(json.dumps(description.json(), ensure_ascii=False) if options.json else text_of(description), flush=True)
    return int(wrong > 0)


def descriptions(options: argparse.Namespace) -> Iterator[Description]:
    """Yield the description of a file, or of each reader of a configuration."""
    from jobflow.core.errors import ArgumentError

    if not options.file.endswith((".yaml", ".yml")):
        from jobflow.data.describe import describe_file

        if options.settings:
            raise ArgumentError(f"--set {options.settings[0]}: {options.file} is not a configuration; omit --set")
        yield describe_file(options.file, options.samples)
        return
    from jobflow.trainer.describe_readers import describe_readers

    yield from describe_readers(options.file, options.settings, options.samples)


def text_of(description: Description) -> str:
    """Format a description: columns, first samples, problems, and a reader for a configuration."""
    from jobflow.core.errors import counted
    from jobflow.core.tables import TextTable

    count = "samples of unknown number" if description.samples is None else counted(description.samples, "sample")
    read = "" if description.read == description.samples else f", {description.read:,} of them read"
    parts = [f"{description.name}: reader {description.reader}, {count}{read}"]
    rows = [[c.name, c.shown_type, f"{c.missing:,}" if c.missing else "-", c.range or "-", _classes(c)] for c in description.columns]
    if rows:
        parts.append(str(TextTable(["field", "type", "missing", "range", "classes"], rows, right=(2,))))
    if description.first:
        names = list(description.first[0])
        parts.append(f"First samples\n{TextTable(names, [[each.get(name, '') for name in names] for each in description.first])}")
    if description.wrong:
        more = f" ({description.unlisted:,} of them not listed)" if description.unlisted else ""
        parts.append("\n".join([f"{counted(description.wrong, 'problem')}{more}", *(f"  ! {problem}" for problem in description.problems)]))
    if description.arguments is not None:
        reader = json.dumps({"reader": description.reader, **description.arguments}, ensure_ascii=False)
        parts.append(f"In a configuration, such as\n  data:\n    train: {reader}")
    return "\n\n".join(parts) + "\n"


def _classes(column: object) -> str:
    from jobflow.data.column_summary import DISTINCT, Summary

    assert isinstance(column, Summary)
    if not column.distinct:
        return "-"
    if not column.is_class:
        count = f"{len(column.distinct):,}" if len(column.distinct) <= DISTINCT else f"more than {DISTINCT:,}"
        return f"{count} different values{', free text: no categories' if column.is_free_text else ''}"
    common = column.most_common()
    more = f", {len(common) - CLASSES:,} more" if len(common) > CLASSES else ""
    return ", ".join(f"{name} {count:,}" for name, count in common[:CLASSES]) + more
