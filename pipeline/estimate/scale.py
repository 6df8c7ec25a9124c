"""What an estimate is for, and the rates that it is made with.

In: numbers from a person. Out: frozen dataclasses that have been checked. The decision that matters: a rate is what was
measured here, on 2 CPU cores, and EXPERIMENTS.md says by which command; of a GPU nothing was measured, so what it does stands
as an assumption beside the corpus's size, where whoever asks sees and changes it.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..data.build import MEMORY_OF_REPEAT, MEMORY_OF_TEXT
from ..section import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Scale(Settings):
    """A corpus and machines. The defaults are assumptions."""

    section: ClassVar[str] = "estimate"
    corpus_gigabytes: float = setting("GB of text as the corpus stage writes it, all splits together", gt=0, le=1e9)
    held_out: float = setting("share of it that is the held-out split: 0.1 of a corpus that brings none", 0.1, ge=0, lt=1)
    vocabulary_size: int = setting("tokens; 0: as vocabulary.size says, of words as many as WikiText-2 has", 0, ge=0, le=2**31)
    devices: int = setting("that train, over all machines", 1, ge=1, le=1_000_000)
    machine_devices: int = setting("on a machine", 8, ge=1, le=1_000)
    device_tflops: float = setting("TFLOP/s of a device's matrix products at its best", 400.0, gt=0)
    utilisation: float = setting("share of them that training reaches", 0.4, gt=0, le=1)
    device_memory: float = setting("GB of a device", 80.0, gt=0)
    network: float = setting("GB/s at which a device sends to others", 25.0, gt=0)
    price: float = setting("of a device hour; 0: not given", 0.0, ge=0)
    cores: int = setting("that build shards, over all builders; builders.workers, where it is set, wins", 8, ge=1, le=1_000_000)
    builder_memory: float = setting("GB that a builder may take", 8.0, gt=0)
    machine_memory: float = setting("GB of a machine that trains", 512.0, gt=0)
    days: float = setting("that training may take", 30.0, gt=0)


@dataclass(frozen=True, kw_only=True)
class Rates(Settings):
    """Of one core, and of text. EXPERIMENTS.md, "Rates for estimates"."""

    section: ClassVar[str] = "rate"
    fetch: float = setting("bytes/s of the corpus stage, the held-out split taken out, which is one core's", 30e6, gt=0)
    count_words: float = setting("bytes/s of a word-level vocabulary, a core", 16e6, gt=0)
    train_wordpiece: float = setting("bytes/s of WordPiece's training, which is one core's", 1.7e6, gt=0)
    pick: float = setting("bytes/s of picking the documents that WordPiece is trained on, a core", 30e6, gt=0)
    sort: float = setting("bytes/s of splitting, tokenizing and sorting text into buckets, a core", 3.0e6, gt=0)
    sort_words: float = setting("the same of words", 15e6, gt=0)
    go_through: float = setting("row tokens/s of pairs, masks and Parquet, a core", 8e6, gt=0)
    words_per_byte: float = setting("tokens of a byte of text, of words", 0.178, gt=0)
    pieces_per_byte: float = setting("tokens of a byte of text, of WordPiece", 0.205, gt=0)
    words: int = setting("words of a word-level vocabulary", 20_256, ge=6)
    shard_bytes: float = setting("bytes of a shard for each token of its rows, masks in it", 2.0, gt=0)
    shard_bytes_dynamic: float = setting("the same with masks drawn while training", 1.4, gt=0)
    repeat_neighbours: float = setting("tokens of rows for a token of text, each time through, of neighbouring sentences", 1.04, gt=0)
    repeat_64: float = setting("the same of segments in rows of 64 tokens", 1.02, gt=0)
    repeat_128: float = setting("of 128", 1.22, gt=0)
    repeat_512: float = setting("of 512", 1.35, gt=0)
    fill_neighbours: float = setting("share of the longest length that a mean row has, of neighbouring sentences", 0.72, gt=0, le=1)
    fill_64: float = setting("the same of segments in rows of 64 tokens", 0.99, gt=0, le=1)
    fill_128: float = setting("of 128", 0.956, gt=0, le=1)
    fill_512: float = setting("of 512", 0.89, gt=0, le=1)
    bucket_memory: float = setting("bytes that a builder takes for each byte of its bucket's text", float(MEMORY_OF_TEXT), gt=0)
    repeat_memory: float = setting("more for each further time through", float(MEMORY_OF_REPEAT), ge=0)
    stage_memory: float = setting("bytes of a data stage, beside what its buckets take", 0.45e9, gt=0)
    wordpiece_memory: float = setting("bytes of WordPiece's training", 1.25e9, gt=0)
    write: float = setting("bytes/s of checkpoints and encoders, from device to store", 0.29e9, gt=0)
    log_line: float = setting("bytes of a step in metrics.jsonl, which each checkpoint holds whole", 330.0, ge=0)
    log_curve: float = setting("steps/s that MLflow takes up on SQLite", 80.0, gt=0)
