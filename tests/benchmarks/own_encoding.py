"""Our encoder on the sentences of a text, timed in a process of its own.

    python own_encoding.py TEXT ENCODER [fp32|bf16]

TEXT is a WikiText file such as wiki.valid.tokens; ENCODER an encoder folder, whose sizes count and whose weights do not.
The encoder is given the sentences in the file's order and gives their vectors in that order; 128 of like length go
through the model at a time. From token ids the rows are those of `hf_peer.py`. Prints one JSON object: sentences/s from
token ids, and from strings with tokenization.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.encoding import Encoder

BATCH = 128
CLS, SEP, FIRST_WORD = 2, 3, 5


def sentences(path: str, longest: int) -> Iterator[list[str]]:
    """The words of each sentence, cut to what a model takes beside its special tokens."""
    for line in Path(path).read_text("utf-8").splitlines():
        for sentence in line.lower().split(" . "):
            if words := sentence.split()[: longest - 2]:
                yield words


def numbered(rows: Sequence[Sequence[str]], vocabulary_size: int) -> list[list[int]]:
    """Words as ids in the order in which they are first seen, specials around."""
    ids: dict[str, int] = {}
    return [[CLS, *(ids.setdefault(word, len(ids) % (vocabulary_size - FIRST_WORD) + FIRST_WORD) for word in row), SEP] for row in rows]


def rows_per_second(encode: Callable[[Any], object], rows: Sequence[Any]) -> float:
    """Rows a second, once all were encoded before."""
    encode(rows)
    begin = time.perf_counter()
    encode(rows)
    return len(rows) / (time.perf_counter() - begin)


if __name__ == "__main__":
    dtype = sys.argv[3] if len(sys.argv) > 3 else "fp32"
    encoder = Encoder.load(sys.argv[2])
    shape = encoder.model.encoder.shape
    words = list(sentences(sys.argv[1], min(512, shape.max_position_embeddings)))
    texts, ids = [" ".join(row) for row in words], numbered(words, shape.vocab_size)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        row = {
            "dtype": dtype,
            "sentences": len(words),
            "sentences_per_second": rows_per_second(lambda part: encoder.encode_input_ids(part, batch_size=BATCH), ids),
            "sentences_per_second_from_text": rows_per_second(lambda part: encoder.encode_many(part, BATCH), texts),
        }
    print(json.dumps(row))
