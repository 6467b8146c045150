"""`jobflow predict FILE`: run a checkpoint's predict job on files, or continue a text with a language model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jobflow.cli.shared_options import add_configuration, at_least_one
from jobflow.cli.train_command import loaded_from
from jobflow.core.command_line import not_negative

if TYPE_CHECKING:
    from jobflow.trainer.config import Loaded

EXAMPLES = """\
examples:
  jobflow predict configs/lenet_digits.yaml --input digits.npz --output scores.csv
  jobflow predict configs/lenet_digits.yaml --input test --output scores.npz          # the samples of data.test
  jobflow predict configs/char_gpt.yaml --prompt "import " --length 200 --temperature 0.8 --seed 1

An input file has the fields of the training samples except the labels.  A table (.csv) has one row per sample."""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = "Run a checkpoint's predict job on files, or generate text with a language model.", EXAMPLES
    add_configuration(parser, trained=True)
    parser.add_argument(
        "--input", metavar="FILE", help="samples: a file or folder, or train, validation or test; for a language model: a file with the prompt"
    )
    parser.add_argument("--output", metavar="FILE", help="output file: .npz or .csv; for text: any file (default: print the text)")
    parser.add_argument("--probabilities", action="store_true", help="write probabilities of classes instead of scores")
    text = parser.add_argument_group("language models")
    text.add_argument("--prompt", metavar="TEXT", help="beginning of the text")
    text.add_argument("--length", type=at_least_one, default=200, metavar="N", help="number of characters to generate (default 200)")
    text.add_argument(
        "--temperature",
        type=not_negative,
        default=1.0,
        metavar="T",
        help="0 selects the most likely token; larger values are more random (default 1)",
    )
    text.add_argument("--top-k", type=at_least_one, metavar="K", help="sample from the K most likely tokens (default: from all)")
    text.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="sample from the most likely tokens with this total probability (default 1)"
    )
    text.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    text.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default 0)")


def run(options: argparse.Namespace) -> int:
    """Predict and print a summary on rank 0; a language model continues a prompt instead."""
    from jobflow.core.errors import ConfigError, counted
    from jobflow.runtime.world.launched import launched
    from jobflow.trainer.predict import is_of_text, predict

    loaded, started = loaded_from(options), launched()
    first = started is None or started.rank == 0
    if is_of_text(loaded.config):
        return write_text(options, loaded, first)
    if options.input is None or options.output is None:
        raise ConfigError(
            "jobflow predict: --input or --output is missing; pass --input FILE and --output FILE (only language models accept --prompt)"
        )
    prediction = predict(loaded, options.input, options.output, options.checkpoint, probabilities=options.probabilities)
    if first:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in prediction.outputs.items())
        print(f"{counted(prediction.samples, 'sample')}: {shapes} in {prediction.path}")
    return 0


def write_text(options: argparse.Namespace, loaded: Loaded, first: bool) -> int:
    """Generate the continuation of a prompt, and print it as tokens arrive or write it to a file."""
    from jobflow.core.errors import ConfigError
    from jobflow.trainer.predict import generate

    if (options.prompt is None) == (options.input is None):
        raise ConfigError('jobflow predict: a language model needs one prompt; pass either --prompt "TEXT" or --input FILE')
    prompt = options.prompt if options.prompt is not None else written(options.input)
    shown = first and options.output is None

    pieces = [prompt]  # printed with the first piece: the model and the prompt are valid then

    def say(text: str) -> None:
        pieces.append(text)
        if shown:
            print("".join(pieces), end="", flush=True)
        pieces.clear()

    sampling = {"temperature": options.temperature, "top_k": options.top_k or 0, "top_p": options.top_p, "seed": options.seed}
    text = generate(loaded, prompt, options.length, checkpoint=options.checkpoint, stop=options.stop, say=say, **sampling)
    if shown:
        print("".join(pieces))
    elif first:
        Path(options.output).write_text(prompt + text, encoding="utf-8")
        print(f"wrote {options.output}")
    return 0


def written(file: str) -> str:
    """Return the text in a UTF-8 file; raise FileError for other encodings."""
    from jobflow.core.errors import FileError
    from jobflow.storage.untrusted import CONFIGURATION, content

    try:
        return content(file, CONFIGURATION).decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{file} is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02X}; convert the file") from None
