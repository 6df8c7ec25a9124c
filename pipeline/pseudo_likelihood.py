"""How well an encoder expects a text: bits per character, which encoders of different vocabularies can be compared by.

In: an encoder and sentences. Out: bits per character. The pseudo-log-likelihood of Salazar et al. 2020 (arXiv 1910.14659)
in the form of Kauf and Ivanova 2023 (arXiv 2305.10588): each token of a word is expected with itself and the word's tokens
to its right masked. The decision that matters: what a vocabulary does not know is never cheap. A word (what white space
parts) that is unknown to it, or of which it drops all characters, also pays for its spelling, each character at
log2(alphabet) bits, the alphabet being the distinct characters of all the sentences.

Legend: L length, M rows of a batch, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from .encoding import Encoder
from .model.pretraining import NO_PAIR, Batch

_ROWS = 64  # that go through the model at a time


@dataclass(frozen=True)
class _Row:
    """A sentence with some tokens masked, and the one of them that is expected."""

    input_ids: list[int]
    place: int
    token: int


def bits_per_character(encoder: Encoder, sentences: Sequence[str]) -> float:
    """Bits per character of sentences, spaces counted, on the device that the model is on.

    :param sentences: at least one that is not empty; none longer than the model takes.
    """
    alphabet = {character for sentence in sentences for character in sentence if not character.isspace()}
    rows, spelled = list[_Row](), 0
    for sentence in sentences:
        found, characters = _rows(encoder, sentence)
        rows += found
        spelled += characters
    rows.sort(key=lambda row: len(row.input_ids))
    nats = sum(_nats(encoder, rows[start : start + _ROWS]) for start in range(0, len(rows), _ROWS))
    return (nats / math.log(2) + spelled * math.log2(max(2, len(alphabet)))) / sum(map(len, sentences))


def _rows(encoder: Encoder, sentence: str) -> tuple[list[_Row], int]:
    """A row for each token, and how many characters pay for their spelling."""
    ids = [encoder.table.ids[token] for token in encoder.tokens(sentence)]
    rows, spelled = [], 0
    for word, places in encoder.words(sentence):
        if not places or any(ids[place] == encoder.table.unknown_id for place in places):
            spelled += len(word)
        for number, place in enumerate(places):
            masked = list(ids)
            for other in places[number:]:
                masked[other] = encoder.table.mask_id
            rows.append(_Row(masked, place, ids[place]))
    return rows, spelled


@torch.inference_mode()
def _nats(encoder: Encoder, rows: Sequence[_Row]) -> float:
    """What the expected tokens of some rows cost."""
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    starts = lengths.cumsum(0) - lengths
    flat = torch.tensor([token for row in rows for token in row.input_ids])
    labels = torch.tensor([row.token for row in rows])
    batch = Batch.of(
        flat,
        torch.zeros_like(flat),
        lengths,
        starts + torch.tensor([row.place for row in rows]),
        torch.ones_like(lengths),
        labels,
        torch.full_like(lengths, NO_PAIR),
    ).to(next(encoder.model.parameters()).device)
    logits_MV, _ = encoder.model.logits(batch)
    return float(F.cross_entropy(logits_MV.double(), batch.labels, reduction="sum"))


def fitting(encoders: Sequence[Encoder], sentences: Sequence[str]) -> Iterator[str]:
    """The sentences that none of some encoders finds too long."""
    for sentence in sentences:
        if all(len(encoder.tokenizer.encode(sentence).ids) <= encoder.model.encoder.shape.max_position_embeddings for encoder in encoders):
            yield sentence
