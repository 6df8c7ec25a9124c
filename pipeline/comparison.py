"""Which of two encoders expects held-out text better.

In: a candidate and a champion, the candidate's held-out shards and corpus. Out: a figure of each, lower being better, on the
same text. Two rules. Encoders of one vocabulary that both take the shards' rows: the loss that pretraining minimises (the
mean masked-language-model loss, plus the mean next-sentence loss where the rows have a pair task that both were taught),
on the first examples of the held-out shards. Else: bits per character (`pseudo_likelihood.py`) of held-out sentences picked
by their digests. The decision that matters: masks, pairs and sentences are the same for both, so chance does not decide.
"""

import hashlib
import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from .data.documents import DocumentReader
from .data.sentences import split_sentences
from .encoding import Encoder
from .errors import DamagedOutputError
from .pseudo_likelihood import bits_per_character, fitting
from .settings import Preset, ShardSettings, TextSettings
from .shards import Examples, concatenate, read_shards, shard_buckets
from .storage import Output, Store
from .training.distributed import World
from .training.evaluate import evaluate
from .training.masking import DynamicMasking
from .training.split import LoadedWindow

LOSS, MLM_LOSS, BITS = "held-out loss", "held-out MLM loss", "bits per character"
_ROWS = 64  # that go through a model at a time
_TEXT = 4 << 20  # bytes of the held-out split that sentences are picked from
_WIKITEXT_UNKNOWN = "<unk>"  # a token of one vocabulary, five characters of another


@dataclass(frozen=True)
class Comparison:
    """Two encoders on the same text, or one alone; of both figures lower is better.

    :param rule: `LOSS` or `MLM_LOSS` in nats, or `BITS`. :param examples: how many, or how many sentences.
    :param champion: None: there is none. :param details: figures that the two are made of, by name: (candidate, champion).
    """

    rule: str
    examples: int
    candidate: float
    champion: float | None
    details: Mapping[str, tuple[float, float | None]]

    def accepts(self, margin: float) -> bool:
        """Whether the candidate is better, or worse by no more than a share of the champion's figure."""
        if not math.isfinite(self.candidate):
            return False
        return self.champion is None or not math.isfinite(self.champion) or self.candidate <= self.champion * (1 + margin)


@dataclass(frozen=True)
class Champion:
    """Whom a candidate is compared with. :param pairs: the pair task that it was taught, as `shards.pairs` names it."""

    encoder: Encoder
    pairs: str


def compare(store: Store, candidate: Encoder, champion: Champion | None, corpus: Output, held_out: Output, preset: Preset) -> Comparison:
    """Evaluate both, on a GPU where there is one.

    :param champion: None: the candidate is evaluated alone.
    :param corpus: that the candidate was trained on. :param held_out: its held-out shards.
    :raises DamagedOutputError: there is nothing held out to compare them on.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoders = {"candidate": candidate} | ({"champion": champion.encoder} if champion else {})
    for encoder in encoders.values():
        encoder.model.to(device)
    examples = _examples(store, held_out, preset.gate.examples)
    if champion and not len(examples):
        raise DamagedOutputError(f"{held_out.address}: no held-out example; wanted at least one to compare encoders on")
    longest = int(np.diff(examples.offsets).max(initial=0))
    room = min(encoder.model.encoder.shape.max_position_embeddings for encoder in encoders.values())
    if longest <= room and all(encoder.table == candidate.table for encoder in encoders.values()):
        count = min(len(examples), preset.gate.examples)
        figures = {name: _losses(encoder, examples, count, preset.shards, device) for name, encoder in encoders.items()}
        taught = champion is None or champion.pairs == preset.shards.pairs
        parts = ("mlm_loss", "next_sentence_loss") if taught else ("mlm_loss",)
        loss = {name: sum(values[part] for part in parts if part in values) for name, values in figures.items()}
        theirs = figures.get("champion", {})
        details = {part: (value, theirs.get(part)) for part, value in figures["candidate"].items()}
        return Comparison(LOSS if taught else MLM_LOSS, count, loss["candidate"], loss.get("champion"), details)
    sentences = list(fitting(list(encoders.values()), pick_sentences(corpus, preset.text, preset.gate.sentences)))
    if not sentences:
        raise DamagedOutputError(f"{corpus.address}: no held-out sentence that both encoders take; wanted at least one to compare them on")
    bits = {name: bits_per_character(encoder, sentences) for name, encoder in encoders.items()}
    return Comparison(BITS, len(sentences), bits["candidate"], bits.get("champion"), {})


def _examples(store: Store, held_out: Output, most: int) -> Examples:
    """The examples of as many buckets as hold so many; a hash says which documents are in which."""
    buckets, parts, rows = shard_buckets(store, held_out), [], 0
    for bucket in buckets:
        parts.append(read_shards([bucket]))
        rows += len(parts[-1])
        if rows >= most:
            break
    return concatenate(parts)


def _losses(encoder: Encoder, examples: Examples, count: int, settings: ShardSettings, device: torch.device) -> dict[str, float]:
    masking = DynamicMasking(settings, encoder.table) if settings.masking == "dynamic" else None
    window = LoadedWindow(examples, np.arange(count))
    return evaluate(encoder.model, [window], _ROWS, World(0, 1, device), masking)


def pick_sentences(corpus: Output, text: TextSettings, most: int) -> list[str]:
    """Held-out sentences with the smallest digests, without those in which WikiText's unknown token stands."""

    def found() -> Iterator[tuple[bytes, str]]:
        reader, size = DocumentReader.of(corpus, "valid", text), 0
        for block in reader.blocks():
            for sentence in split_sentences(reader.find(block), text).text.to_pylist():
                if sentence.strip() and _WIKITEXT_UNKNOWN not in sentence:
                    yield hashlib.sha256(sentence.encode()).digest(), sentence
            size += len(block)
            if size >= _TEXT:
                return

    return [sentence for _, sentence in heapq.nsmallest(most, set(found()))]
