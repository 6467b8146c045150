"""Python's own documentation as a text to learn from."""

from __future__ import annotations

from collections import Counter
from pydoc_data.topics import topics

import numpy as np

from jobflow.data.text import PARAGRAPHS, documentation_text


def test_the_text_contains_topics_and_docstrings() -> None:
    text = documentation_text()
    assert 300_000 < len(text) < 3_000_000
    for known in (topics["assert"], "Heap queue algorithm (a.k.a. priority queue)."):
        assert known.strip().splitlines()[0] in text


def test_held_out_text_is_similar_but_different() -> None:
    text = documentation_text()
    paragraphs = PARAGRAPHS.split(text.rstrip("\n"))
    assert len(set(paragraphs)) == len(paragraphs)
    cut = len(text) * 9 // 10
    rest, held_out = (Counter(part) for part in (text[:cut], text[cut:]))
    common = [character for character, _ in rest.most_common(40)]
    shares = [np.array([counts[c] for c in common]) / counts.total() for counts in (rest, held_out)]
    assert np.abs(shares[0] - shares[1]).sum() < 0.25  # what Python documents differs between its builds: 0.04 to 0.16
