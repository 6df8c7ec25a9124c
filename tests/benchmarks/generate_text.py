"""JSON Lines of made-up prose, of any size: words by Zipf's law out of a million, sentences, paragraphs, documents.

    python generate_text.py FILE MEGABYTES

Writes documents of some 20 sentences, a text field each, until the file has so many megabytes.
"""

import json
import sys
from pathlib import Path

import numpy as np

WORDS, AT_ONCE = 1_000_000, 1_000_000  # distinct words; words drawn at a time
LETTERS = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))


def make_words(rng: np.random.Generator) -> np.ndarray:
    """Distinct words, short ones first."""
    lengths = np.clip(2 + np.log2(np.arange(1, WORDS + 1)) / 2.2, 2, 14).astype(int)
    drawn = rng.choice(LETTERS, size=(WORDS, lengths.max()), p=1 / np.arange(2, 28) / (1 / np.arange(2, 28)).sum())
    return np.array(["".join(row[:length]) for row, length in zip(drawn, lengths, strict=True)], object)


def main() -> None:
    path, size = Path(sys.argv[1]), int(sys.argv[2]) * 1_000_000
    rng = np.random.default_rng(0)
    words = make_words(rng)
    frequency = 1 / np.arange(1, WORDS + 1)
    frequency /= frequency.sum()
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            drawn = words[rng.choice(WORDS, AT_ONCE, p=frequency)].tolist()
            start = 0
            while start < AT_ONCE:
                sentences = []
                for length in rng.integers(5, 30, 20).tolist():
                    sentences.append(" ".join(drawn[start : start + length]).capitalize() + ".")
                    start += length
                paragraphs = [" ".join(sentences[first : first + 5]) for first in range(0, 20, 5)]
                written += file.write(json.dumps({"text": "\n".join(paragraphs)}) + "\n")


if __name__ == "__main__":
    main()
