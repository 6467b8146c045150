"""Training of tokenizers from the user's text: `jobflow tokenizer`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jobflow.core.errors import ArgumentError, FileError
from jobflow.core.extras import optional
from jobflow.data.text import fault, texts_at
from jobflow.data.vocabulary import WHAT, pieces_of
from jobflow.storage.export import to_file

#: number of bytes, which are all tokens
BYTES = 256


class TrainedTokenizer(NamedTuple):
    """The tokens of a new tokenizer file, and the sizes of its texts."""

    size: int
    files: int
    characters: int


def train_tokenizer(path: str | None, output: str, size: int = 8000, *, pattern: str = "*.txt", replace: bool = False) -> TrainedTokenizer:
    """Train a byte-pair encoding with `size` tokens on the text of the reader "text", and write the file `output`.

    All bytes are tokens, so any text can be encoded. Raises: ArgumentError for a size below 257; FileError for an existing file without
    `replace`; DataError without text.
    """
    tokenizers = optional("tokenizers", WHAT)
    if size <= BYTES:
        raise ArgumentError(f"tokenizer: size is {size}; pass at least {BYTES + 1}, because the {BYTES} bytes are tokens")
    target = Path(output)
    if target.exists() and not replace:
        raise FileError(f"tokenizer: {target} already exists; pass another name, or replace=True (--force) to replace it")
    counts = {"files": 0, "characters": 0}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_texts(path, pattern, counts), trainer)
    if not counts["characters"]:
        raise fault(f"there is no text in {path}; pass a file with text")
    target.parent.mkdir(parents=True, exist_ok=True)
    to_file(target, replace, lambda draft: tokenizer.save(str(draft)))
    return TrainedTokenizer(tokenizer.get_vocab_size(), counts["files"], counts["characters"])


def _texts(path: str | None, pattern: str, counts: dict[str, int]) -> Iterator[str]:
    """Yield the texts in pieces, and count them."""
    for _, text in texts_at(path, pattern):
        counts["files"] += 1
        counts["characters"] += len(text)
        yield from pieces_of(text)
