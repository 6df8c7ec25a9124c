"""What a shard set holds, as a person would read it: examples with their masks visible, and what can be counted.

In: a shard set, or one bucket of it. Out: examples in words, and statistics with the lines of their table. The decision
that matters: what building counted is taken from the manifest, and lengths and words alone are counted here, bucket by
bucket, so that memory does not grow with the set and a few buckets are enough where time is short.

Legend: L longest row, V vocabulary.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .addresses import refuse_credentials
from .data.tokenizer import Vocabulary
from .errors import PipelineError, SettingsError, some
from .ragged import I64
from .shards import Examples, ShardCounts, read_shards
from .storage import Output, Store, open_output, verify_digests
from .tokens import TokenTable

STAGES = ("shards", "bucket")
_NEXT_SENTENCE = ("B follows A", "B is random")
LABELS = {"neighbours": _NEXT_SENTENCE, "next_sentence": _NEXT_SENTENCE, "sentence_order": ("in order", "swapped"), "none": ()}
"""What the labels of each pair task say, by their number."""
_PAIRS = {"neighbours": "pairs", "next_sentence": "runs"}
UNLABELLED = "no pair"
MOST_FREQUENT = 10
_BANDS = 8
_SHOWN_KEYS = 5
_KEY_OR_ITS_BEGINNING = re.compile(rf"(?:({'|'.join(STAGES)})/)?([0-9a-f]{{1,20}})/?")


@dataclass(frozen=True)
class ShardSet:
    """A shard set, or one bucket alone, with what it takes to read it.

    :param table: of the vocabulary. :param buckets: address and rows of each bucket that holds a row.
    """

    output: Output
    table: TokenTable
    buckets: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.output.stage}/{self.output.key}"


@dataclass(frozen=True)
class Token:
    """A token of a row: what stands there and, at a masked position, what stood there."""

    now: str
    was: str | None = None

    def __str__(self) -> str:
        if self.was is None:
            return self.now
        return f"[{self.was} = kept]" if self.was == self.now else f"[{self.was} -> {self.now}]"


@dataclass(frozen=True)
class Example:
    """A row in words.

    :param first: `<cls> A <sep>`. :param second: `B <sep>`; empty without a pair task. :param label: in words.
    :param bucket: its key. :param row: within the bucket. :param document: within the bucket.
    """

    first: list[Token]
    second: list[Token]
    label: str
    bucket: str
    row: int
    document: int


@dataclass(frozen=True)
class Line:
    """A line of the table; `share` is a part of 1, `note` says of what."""

    name: str
    count: float
    share: float | None = None
    note: str = ""

    def cells(self) -> tuple[str, str, str, str]:
        """Its four columns as text."""
        count = f"{self.count:,}" if isinstance(self.count, int) else f"{self.count:,.1f}"
        return self.name, count, "" if self.share is None else f"{self.share:.1%}", self.note


@dataclass(frozen=True)
class Statistics:
    """What was counted.

    :param counts: of the whole, while it was built. :param settings: of the pairs and masks.
    :param lengths: [L + 1] rows of each length in tokens. :param seen: [V] how often each token stands in the rows, masks taken back.
    :param buckets: that hold a row. :param buckets_read: for `lengths` and `seen`.
    """

    counts: ShardCounts
    settings: Mapping[str, Any]
    lengths: I64
    seen: I64
    tokens: TokenTable
    buckets: int
    buckets_read: int

    @property
    def sample(self) -> str:
        """Which buckets lengths and words were counted in, where these are not all; else nothing."""
        if self.buckets_read == self.buckets:
            return ""
        rows = f"{self.lengths.sum():,} of {self.counts.rows:,} rows"
        return f"lengths and most frequent tokens are those of a sample, {self.buckets_read} of {self.buckets} buckets: {rows}"

    @property
    def labels(self) -> tuple[tuple[str, int], ...]:
        """Each label in words, and how many rows have it; none without a pair task."""
        counts = self.counts.followed, self.counts.rows - self.counts.followed
        return tuple(zip(LABELS[self.settings["pairs"]], counts, strict=False))

    @property
    def mask_kinds(self) -> tuple[tuple[str, int, float], ...]:
        """What stands at masked positions, at how many, and the share that was wanted; none where masks are drawn while training."""
        if self.settings["masking"] == "dynamic":
            return ()
        names = self.tokens.special_tokens["mask_token"], "random word", "kept"
        rates = self.settings["mask_token_rate"], self.settings["random_token_rate"]
        counts = self.counts.masked_as_mask, self.counts.masked_as_random, self.counts.masked_kept
        return tuple(zip(names, counts, (*rates, 1 - sum(rates)), strict=True))

    def by_frequency(self) -> I64:
        """The ids of the tokens in the rows, the most frequent first, without the special ones that every row has."""
        order: I64 = np.argsort(-self.seen, kind="stable")
        found: I64 = order[(self.seen[order] > 0) & (order != self.tokens.cls_id) & (order != self.tokens.sep_id)]
        return found

    def table(self) -> list[Line]:
        """The statistics line by line."""
        return [*self._rows(), *self._dropped(), *self._masks(), *self._lengths(), *self._words()]

    def _rows(self) -> Iterator[Line]:
        counts = self.counts
        yield Line("rows", counts.rows)
        for label, count in self.labels:
            yield Line(label, count, _share(count, counts.rows), "of rows, wanted 50%")
        alone = counts.documents_of_one_sentence
        yield Line("documents", counts.documents)
        yield Line("of one sentence", alone, _share(alone, counts.documents), "of documents")
        yield Line("sentences", counts.sentences)
        yield Line("tokens of the text", counts.tokens)
        yield Line("unknown", counts.unknown_tokens, _share(counts.unknown_tokens, counts.tokens), "of tokens of the text")
        yield Line("vocabulary", len(self.tokens))

    def _dropped(self) -> Iterator[Line]:
        counts, task = self.counts, self.settings["pairs"]
        times = f", the text gone through {self.settings['dupe_factor']} times" if self.settings["dupe_factor"] > 1 else ""
        if task == "neighbours":
            yield Line("pairs of neighbours", counts.pairs, None, times.removeprefix(", "))
            too_long = f"of pairs: over {self.settings['max_length']} tokens"
            yield Line("dropped, too long", counts.dropped_too_long, _share(counts.dropped_too_long, counts.pairs), too_long)
        else:
            yield Line("runs of sentences", counts.pairs, None, f"each fills a row{times}")
        if task in ("neighbours", "next_sentence"):
            no_negative = f"of {_PAIRS[task]}: no honest random B in their bucket"
            yield Line("dropped, no negative", counts.dropped_no_negative, _share(counts.dropped_no_negative, counts.pairs), no_negative)
        if task == "sentence_order":
            one, both = counts.dropped_one_sentence, counts.dropped_no_negative
            yield Line("dropped, one sentence", one, _share(one, counts.pairs), "of runs: nothing to swap")
            yield Line("dropped, both orders", both, _share(both, counts.pairs), "of runs: swapped they stand in the text too")
        if task != "neighbours":
            truncated = f"of rows: cut to {self.settings['max_length']} tokens"
            yield Line("truncated", counts.truncated, _share(counts.truncated, counts.rows), truncated)

    def _masks(self) -> Iterator[Line]:
        counts, settings, special = self.counts, self.settings, self.tokens.special_tokens
        yield Line("tokens of the rows", counts.row_tokens, None, f"with {special['cls_token']} and {special['sep_token']}")
        words = " of whole words" if settings["whole_word"] else ""
        wanted = f"wanted {100 * settings['masking_rate']:.3g}%{words}, at most {settings['max_predictions_per_seq']} a row"
        if not self.mask_kinds:
            yield Line("masked", 0, None, f"masks are drawn anew each epoch, while training: {wanted}")
            return
        yield Line("masked", counts.masked, _share(counts.masked, counts.row_tokens), f"of tokens of the rows, {wanted}")
        for kind, count, rate in self.mask_kinds:
            yield Line(f"masked, {kind}", count, _share(count, counts.masked), f"of masked, wanted {100 * rate:.3g}%")

    def _lengths(self) -> Iterator[Line]:
        rows = int(self.lengths.sum())
        if not rows:
            return
        length = np.arange(len(self.lengths))
        upto = np.cumsum(self.lengths)
        middle = np.searchsorted(upto, [(rows - 1) // 2, rows // 2], side="right").mean()
        found = np.flatnonzero(self.lengths)
        yield Line("shortest row", int(found[0]), None, "tokens")
        yield Line("median row", float(middle), None, "tokens")
        yield Line("mean row", float(self.lengths @ length) / rows, None, "tokens")
        yield Line("longest row", int(found[-1]), None, "tokens")
        width = -(-(len(self.lengths) - 1) // _BANDS)
        for first in range(1, len(self.lengths), width):
            last = min(first + width, len(self.lengths)) - 1
            count = int(self.lengths[first : last + 1].sum())
            yield Line(f"rows of {first} to {last} tokens", count, count / rows, "of rows")

    def _words(self) -> Iterator[Line]:
        total = int(self.seen.sum())
        for token in self.by_frequency()[:MOST_FREQUENT].tolist():
            count = int(self.seen[token])
            yield Line(f"token {self.tokens.tokens[token]}", count, count / total, "of tokens of the rows, masks taken back")


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def find_shards(store: Store, wanted: str | None) -> ShardSet:
    """Find a shard set or a bucket and open it.

    :param wanted: the address of its folder, also in another store; or its key, or the beginning of it, as it is or after
        `shards/` or `bucket/`; None or empty: the newest shard set of the training split.
    :raises PipelineError: there is none, or more than one.
    :raises DamagedOutputError: it, or its vocabulary, is not whole.
    """
    if not wanted:
        return open_shards(store, _newest(store))
    if (name := _KEY_OR_ITS_BEGINNING.fullmatch(wanted)) and not Path(wanted).is_dir():
        return open_shards(store, _with_key(store, name[2], [name[1]] if name[1] else STAGES))
    refuse_credentials("address", wanted)
    hint = "wanted the folder shards/KEY or bucket/KEY of a store, or a key in the store of BERT_STORE"
    try:
        root, stage, key = Store(wanted).root.rsplit("/", 2)
    except ValueError as error:  # too short, or nothing that fsspec can open
        raise SettingsError(f"{wanted}: not the address of a shard set or a bucket; {hint}") from error
    place = Store(root or "/")
    output = place.find(stage, key) if stage in STAGES else None
    if output is None:
        raise PipelineError(f"{wanted}: no finished shard set or bucket here; {hint}")
    return open_shards(place, output)


def open_shards(store: Store, output: Output) -> ShardSet:
    """Open a published shard set or bucket of a store.

    :raises PipelineError: its vocabulary is not in the store.
    """
    vocabulary = open_output(store.address("vocabulary", output.manifest["inputs"]["vocabulary"]))
    verify_digests(vocabulary)
    entries = output.facts.get("buckets", [{"key": output.key, "rows": output.facts["counts"]["rows"]}])
    buckets = {store.address("bucket", entry["key"]): entry["rows"] for entry in entries if entry["rows"]}
    return ShardSet(output, Vocabulary.open(vocabulary).table, buckets)


def _newest(store: Store) -> Output:
    found = [output for key in store.children(f"{store.root}/shards") if (output := store.whole("shards", key))]
    training = [output for output in found if output.facts["split"] == "train"]
    if not training:
        raise PipelineError(
            f"{store.root}: no shard set of the training split here; make one with pretrain-bert run, give the folder of one, "
            "or set BERT_STORE to the store that has one"
        )
    return max(training, key=lambda output: (output.manifest["recorded"]["created"], output.key))


def _with_key(store: Store, beginning: str, stages: Sequence[str]) -> Output:
    found = [f"{stage}/{key}" for stage in stages for key in store.children(f"{store.root}/{stage}") if key.startswith(beginning)]
    if not found:
        raise PipelineError(f"{beginning}: no shard set and no bucket in {store.root} has a key that begins so; give another, or a folder")
    if len(found) > 1:
        raise PipelineError(
            f"{beginning}: {len(found)} keys in {store.root} begin so, {some(found, _SHOWN_KEYS)}; give more of the one that is meant"
        )
    return open_output(f"{store.root}/{found[0]}")


def draw_examples(shards: ShardSet, count: int, seed: int) -> list[Example]:
    """Some rows in words, drawn without putting back, in the order in which they lie in the set.

    :param count: all, where there are fewer rows.
    :raises PipelineError: a bucket is missing. :raises DamagedOutputError: a bucket is not whole.
    """
    rows = sum(shards.buckets.values())
    drawn = np.sort(np.random.default_rng(seed).choice(rows, min(count, rows), replace=False))
    found: list[Example] = []
    first = 0
    for address, size in shards.buckets.items():
        if inside := [row - first for row in drawn[(drawn >= first) & (drawn < first + size)].tolist()]:
            examples = _read(address)
            labels = LABELS[shards.output.manifest["settings"]["pairs"]]
            found += [_decode(examples, row, shards.table.tokens, labels, address.rsplit("/", 1)[-1]) for row in inside]
        first += size
    return found


def _read(address: str) -> Examples:
    """A bucket, once its bytes are seen to be those that were published."""
    verify_digests(open_output(address))
    return read_shards([address])


def _decode(examples: Examples, row: int, words: Sequence[str], labels: Sequence[str], bucket: str) -> Example:
    tokens = slice(*examples.offsets[row : row + 2])
    masks = slice(*examples.mask_offsets[row : row + 2])
    was = dict(zip(examples.masked_lm_positions[masks].tolist(), examples.masked_lm_labels[masks].tolist(), strict=True))
    segments: tuple[list[Token], list[Token]] = [], []
    for place, (token, segment) in enumerate(zip(examples.input_ids[tokens], examples.token_type_ids[tokens], strict=True)):
        segments[segment].append(Token(words[token], words[was[place]] if place in was else None))
    label = labels[examples.next_sentence_label[row]] if labels else UNLABELLED
    return Example(*segments, label, bucket, row, int(examples.document[row]))


def count_shards(shards: ShardSet, rows: int | None = None) -> Statistics:
    """The statistics of a set.

    :param rows: enough to count lengths and words in: no further bucket is read once there are so many. None: all.
    :raises PipelineError: a bucket is missing. :raises DamagedOutputError: a bucket is not whole.
    """
    settings = shards.output.manifest["settings"]
    lengths, seen = np.zeros(settings["max_length"] + 1, np.int64), np.zeros(len(shards.table), np.int64)
    read = 0
    for address in shards.buckets:
        if rows is not None and lengths.sum() >= rows:
            break
        examples = _read(address)
        ids = examples.input_ids.copy()
        ids[np.repeat(examples.offsets[:-1], np.diff(examples.mask_offsets)) + examples.masked_lm_positions] = examples.masked_lm_labels
        lengths += np.bincount(np.diff(examples.offsets), minlength=len(lengths))
        seen += np.bincount(ids, minlength=len(seen))
        read += 1
    counts = ShardCounts(**shards.output.facts["counts"])
    return Statistics(counts, settings, lengths, seen, shards.table, len(shards.buckets), read)
