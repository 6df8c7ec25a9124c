"""Sentences -> segments, of which rows are made: `<cls> A <sep> B <sep>`, or `<cls> A <sep>`.

In: the sentences of a bucket's documents. Out: spans of tokens with a label. The decision that matters: labels are never
false, whatever the task. `next_sentence` is the recipe of Devlin et al. 2018 (arXiv 1810.04805, A.2, and its published
code): runs of whole sentences that fill a row, cut in two at a random sentence; for half of them B is what begins at a
random sentence of another document, and the sentences that it replaced are used next. `sentence_order` (Lan et al. 2019,
arXiv 1909.11942) swaps the two for half of them. `none` has one segment. `neighbours` is the deck's (next_sentence.py).
A short row is filled to a shorter length, but its sentences stay whole: only what is longer than a row is truncated.

Legend: S sentences, T tokens of all sentences, C runs of sentences (chunks), R rows.
"""

import itertools
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..ragged import I64
from ..randomness import Purpose, below, coin, unit
from ..settings import ShardSettings
from ..shards import IGNORED, ShardCounts
from .next_sentence import FOLLOWS, NONE, RANDOM, Bucket, draw_negatives, make_pairs, neighbours


@dataclass(frozen=True)
class Segments:
    """What rows are made of.

    :param document: int64 [R], that A is from. :param number: int64 [R], the row's count within it.
    :param first: int64 [R], the place of A among all tokens; `second`, of B.
    :param first_length: int64 [R], in tokens; `second_length`: 0 where there is one segment.
    :param label: int8 [R]; 0: B follows A, or both are in order; 1: B is random, or they are swapped; or `IGNORED`.
    """

    document: I64
    number: I64
    first: I64
    first_length: I64
    second: I64
    second_length: I64
    label: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: npt.NDArray[np.bool_] | slice) -> "Segments":
        """Some of the rows [R]."""
        return Segments(**{name: values[rows] for name, values in vars(self).items()})


def specials_of(pairs: str) -> int:
    """How many special tokens a row has."""
    return 2 if pairs == "none" else 3


def make_segments(bucket: Bucket, offsets: I64, settings: ShardSettings, repeat: int = 0) -> tuple[Segments, ShardCounts]:
    """The rows of a bucket, gone through once.

    :param offsets: int64 [S + 1], of the sentences among all tokens.
    :param repeat: how many times it has been gone through before; each time has random numbers of its own.
    :returns: the segments, and what became of how many pairs.
    """
    if settings.pairs == "neighbours":
        return _neighbours(bucket, offsets, settings, repeat)
    chunks = _chunks(bucket, offsets, settings, repeat)
    if settings.pairs == "none":
        segments, dropped = chunks.rows(offsets), ShardCounts()
    elif settings.pairs == "next_sentence":
        segments, dropped = _next_sentence(bucket, offsets, chunks, settings.seed, repeat)
    else:
        segments, dropped = _sentence_order(bucket, offsets, chunks)
    fitting = _truncate(bucket, segments, settings, repeat)
    truncated = int((fitting.first_length + fitting.second_length < segments.first_length + segments.second_length).sum())
    pairs = len(chunks.document)
    return fitting, dropped + ShardCounts(pairs=pairs, pairs_that_fit=pairs, truncated=truncated)


def _neighbours(bucket: Bucket, offsets: I64, settings: ShardSettings, repeat: int) -> tuple[Segments, ShardCounts]:
    pairs = make_pairs(bucket, settings.seed, repeat)
    lengths, room = np.diff(offsets), settings.max_length - specials_of(settings.pairs)
    a, b = lengths[pairs.first], lengths[pairs.second]
    segments = Segments(bucket.document[pairs.first], pairs.number, offsets[pairs.first], a, offsets[pairs.second], b, pairs.label)
    first = neighbours(bucket.document)
    counts = ShardCounts(
        pairs=len(first),
        pairs_that_fit=int((lengths[first] + lengths[first + 1] <= room).sum()),
        dropped_too_long=int((a + b > room).sum()),
        dropped_no_negative=pairs.without_negative,
    )
    return segments.take(a + b <= room), counts


@dataclass(frozen=True)
class _Chunks:
    """Runs of sentences.

    :param start: int64 [C], the first sentence. :param middle: int64 [C], the first of the second part; `end` where there is none.
    :param end: int64 [C], after the last. :param target: int64 [C], how many tokens a row is filled to.
    :param coin: bool [C], whether B is to be random, or the parts are to be swapped.
    """

    document: I64
    number: I64
    start: I64
    middle: I64
    end: I64
    target: I64
    coin: npt.NDArray[np.bool_]

    def rows(self, offsets: I64) -> Segments:
        """As they follow one another, unlabelled."""
        start, middle, end = (offsets[sentence] for sentence in (self.start, self.middle, self.end))
        unlabelled = np.full(len(start), IGNORED, np.int8)
        return Segments(self.document, self.number, start, middle - start, middle, end - middle, unlabelled)


def _chunks(bucket: Bucket, offsets: I64, settings: ShardSettings, repeat: int) -> _Chunks:
    """Runs of whole sentences of a document, each until it has its target length or the document ends."""
    # A document has at most as many runs as sentences: one draw of each kind a sentence is enough.
    number = np.arange(len(bucket.document)) - bucket.sentences[bucket.document]
    counter = number.astype(np.uint64)

    def stream(purpose: Purpose) -> npt.NDArray[np.uint64]:
        return bucket.streams(settings.seed, purpose, repeat)[bucket.document]

    full = settings.max_length - specials_of(settings.pairs)
    shorter = 2 + below(stream(Purpose.LENGTH), counter, np.uint64(full - 1)).astype(np.int64)
    targets = np.where(unit(stream(Purpose.SHORT), counter) < settings.short_seq_prob, shorter, full).tolist()
    splits = unit(stream(Purpose.SPLIT), counter).tolist()
    coins = coin(stream(Purpose.COIN), counter).tolist()

    found: list[tuple[int, int, int, int, bool]] = []
    places, documents = offsets.tolist(), bucket.sentences.tolist()
    split, gives_back = settings.pairs != "none", settings.pairs == "next_sentence"
    for first, last in itertools.pairwise(documents):
        start, draw = first, first
        while start < last:
            end = bisect_left(places, places[start] + targets[draw], start + 1, last)
            if split and end == start + 1 and end < last:
                end += 1  # of one sentence B could only be random, and labels would lean to 1
            middle = start + 1 + int(splits[draw] * (end - start - 1)) if split and end > start + 1 else end
            flip = coins[draw] or (gives_back and middle == end)
            found.append((draw, start, middle, end, flip))
            start = middle if gives_back and flip else end
            draw += 1
    draws, starts, middles, ends, flips = np.array(found, np.int64).reshape(-1, 5).T
    return _Chunks(bucket.document[draws], number[draws], starts, middles, ends, np.array(targets, np.int64)[draws], flips.astype(bool))


def _next_sentence(bucket: Bucket, offsets: I64, chunks: _Chunks, seed: int, repeat: int) -> tuple[Segments, ShardCounts]:
    """Half of the second parts replaced by sentences from elsewhere.

    A negative is drawn for every row: one that could have none is left out whatever its coin says, else the labels would
    lean to 0.
    """
    rows = chunks.rows(offsets)
    negative = draw_negatives(bucket, chunks.middle - 1, chunks.number, seed, repeat, elsewhere=True)
    honest, begin = negative != NONE, np.maximum(negative, 0)
    document_end = bucket.sentences[bucket.document[begin] + 1]
    wanted = offsets[begin] + np.maximum(chunks.target - rows.first_length, 1)
    end = np.minimum(np.searchsorted(offsets, wanted), document_end)
    second = np.where(chunks.coin, offsets[begin], rows.second)
    length = np.where(chunks.coin, offsets[end] - offsets[begin], rows.second_length)
    label = np.where(chunks.coin, RANDOM, FOLLOWS).astype(np.int8)
    segments = replace(rows, second=second, second_length=length, label=label).take(honest)
    return segments, ShardCounts(dropped_no_negative=int((~honest).sum()))


def _sentence_order(bucket: Bucket, offsets: I64, chunks: _Chunks) -> tuple[Segments, ShardCounts]:
    """Half of the parts swapped; left out where a swapped pair would be in order too."""
    rows = chunks.rows(offsets)
    label = chunks.coin.astype(np.int8)
    swapped = replace(
        rows,
        first=np.where(chunks.coin, rows.second, rows.first),
        first_length=np.where(chunks.coin, rows.second_length, rows.first_length),
        second=np.where(chunks.coin, rows.first, rows.second),
        second_length=np.where(chunks.coin, rows.first_length, rows.second_length),
        label=label,
    )
    two = chunks.middle < chunks.end
    same = two & bucket.followers.forbid(chunks.end - 1, chunks.start)
    return swapped.take(two & ~same), ShardCounts(dropped_one_sentence=int((~two).sum()), dropped_no_negative=int(same.sum()))


def _truncate(bucket: Bucket, segments: Segments, settings: ShardSettings, repeat: int) -> Segments:
    """Cut the longer segment, then both alike, until a row fits; which share of a cut its front bears is random."""
    room = settings.max_length - specials_of(settings.pairs)
    half = room - room // 2 if settings.pairs != "none" else room
    first = np.minimum(segments.first_length, np.maximum(room - segments.second_length, half))
    second = np.minimum(segments.second_length, room - first)
    counter = segments.number.astype(np.uint64)

    def front(purpose: Purpose, cut: I64) -> I64:
        stream = bucket.streams(settings.seed, purpose, repeat)[segments.document]
        return below(stream, counter, (cut + 1).astype(np.uint64)).astype(np.int64)

    return replace(
        segments,
        first=segments.first + front(Purpose.CUT_FIRST, segments.first_length - first),
        first_length=first,
        second=segments.second + front(Purpose.CUT_SECOND, segments.second_length - second),
        second_length=second,
    )
