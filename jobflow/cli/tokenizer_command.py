"""`jobflow tokenizer TEXT --to NAME`: train a tokenizer on a text."""

from __future__ import annotations

import argparse

from jobflow.cli.shared_options import at_least_one

EXAMPLES = """\
examples:
  jobflow tokenizer books/ --size 8000 --to tokenizer.json
  jobflow tokenizer notes.md --size 1000 --to notes.json --force

The text is that of the reader "text".  A configuration uses the file with
  data: {train: {reader: text, path: books/, tokenizer: tokenizer.json}}"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train a byte-pair encoding on a text, and write a file tokenizer.json.  Needs the package tokenizers."
    parser.epilog = EXAMPLES
    parser.add_argument("text", metavar="TEXT", help="a text, plain or .gz, or a folder of texts")
    parser.add_argument("--to", metavar="NAME", default="tokenizer.json", help="output file (default tokenizer.json)")
    parser.add_argument("--size", type=at_least_one, default=8000, metavar="N", help="number of tokens, with the 256 bytes (default 8,000)")
    parser.add_argument("--pattern", default="*.txt", metavar="GLOB", help="names of the texts in a folder (default *.txt)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(options: argparse.Namespace) -> int:
    """Train the tokenizer, and print its size."""
    from jobflow.core.errors import counted
    from jobflow.data.tokenizer_training import train_tokenizer

    result = train_tokenizer(options.text, options.to, options.size, pattern=options.pattern, replace=options.force)
    fewer = "" if result.size >= options.size else f" ({options.size:,} need more text)"
    source = f"{counted(result.characters, 'character')} of {counted(result.files, 'file')}"
    print(f"wrote {options.to}: {counted(result.size, 'token')}{fewer} from {source}")
    return 0
