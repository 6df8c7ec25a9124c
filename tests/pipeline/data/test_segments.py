"""Segments: labels are never false, rows are full, and no sentence is lost."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from sentencex import segment

from pipeline.data.buckets import read_buckets, sort_documents
from pipeline.data.corpus import fetch_corpus
from pipeline.data.documents import DocumentReader
from pipeline.data.examples import make_examples
from pipeline.data.next_sentence import FOLLOWS, RANDOM, Bucket
from pipeline.data.segments import Segments, make_segments, specials_of
from pipeline.data.tokenizer import Vocabulary
from pipeline.data.wordpiece import train_wordpiece
from pipeline.ragged import offsets_of
from pipeline.settings import ShardSettings, load_preset
from pipeline.shards import IGNORED, Examples
from pipeline.storage import Store

PRESET = load_preset("tiny").override(text={"documents": "article", "sentences": "prose"})
TASKS = ("next_sentence", "sentence_order", "none")


def recipe(pairs: str, **values: object) -> ShardSettings:
    """The paper's recipe with some settings replaced."""
    return PRESET.override(shards={"pairs": pairs, "max_length": 128, "max_predictions_per_seq": 20} | values).shards


def bucket_of(documents: list[list[int]], lengths: np.ndarray) -> tuple[Bucket, np.ndarray]:
    """Documents given as numbers of sentences, and the offsets of their tokens; a sentence's number says how long it is."""
    documents = sorted(documents)  # equal ones next to each other, as sorted digests have them
    texts = [tuple(document) for document in documents]
    numbers = np.array([sentence for document in documents for sentence in document], np.int64)
    _, identities = np.unique(numbers, return_inverse=True)
    bucket = Bucket(
        np.repeat(np.arange(len(documents)), [len(document) for document in documents]),
        identities.astype(np.int64),
        np.array([texts.index(text) for text in texts], np.uint64) * np.uint64(7919),
        np.array([number - texts.index(text) for number, text in enumerate(texts)], np.uint64),
    )
    return bucket, offsets_of(lengths[numbers])


def many_documents(count: int = 400, shortest: int = 2, longest: int = 40) -> tuple[Bucket, np.ndarray]:
    """Documents of 2 to 40 sentences of some 24 tokens, no two alike."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(shortest, longest + 1, count)
    document = np.repeat(np.arange(count), sizes)
    bucket = Bucket(document, np.arange(len(document)), rng.integers(0, 2**63, count, dtype=np.uint64), np.zeros(count, np.uint64))
    return bucket, offsets_of(rng.integers(4, 45, len(document)))


def sentences_of(segments: Segments, offsets: np.ndarray) -> Iterator[tuple[range, range]]:
    """The sentences of A and of B in each row; fails where one is not whole."""
    place = {int(offset): number for number, offset in enumerate(offsets)}
    for a, a_length, b, b_length in zip(segments.first, segments.first_length, segments.second, segments.second_length, strict=True):
        yield range(place[a], place[a + a_length]), range(place[b], place[b + b_length])


@pytest.mark.parametrize("pairs", TASKS)
@trials(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_a_label_is_never_false_and_no_sentence_is_lost(pairs: str, documents: list[list[int]], seed: int) -> None:
    bucket, offsets = bucket_of(documents, np.arange(1, 8))
    segments, counts = make_segments(bucket, offsets, recipe(pairs, max_length=80, short_seq_prob=1.0, seed=seed))
    texts = [tuple(bucket.identity[a:b]) for a, b in itertools.pairwise(bucket.sentences.tolist())]
    following = {pair for text in texts for pair in itertools.pairwise(text)}
    used = np.zeros(len(bucket.document), int)
    for row, (a, b) in enumerate(sentences_of(segments, offsets)):
        label, own = segments.label[row], segments.document[row]
        assert len(a) and (bucket.document[list(a)] == own).all() and len(set(bucket.document[list(b)])) <= 1
        used[list(a)] += 1
        if pairs == "none":
            assert label == IGNORED and not b
            continue
        joint = int(bucket.identity[a[-1]]), int(bucket.identity[b[0]])
        assert (label == 0) == (b[0] == a[-1] + 1 and bucket.document[b[0]] == own)
        assert label == 0 or (joint not in following and joint[0] != joint[1])
        if label == 0 or pairs == "sentence_order":
            used[list(b)] += 1
        if label == 1 and pairs == "sentence_order":
            assert b[-1] + 1 == a[0] and bucket.document[b[0]] == own
        if label == 1 and pairs == "next_sentence":
            assert texts[bucket.document[b[0]]] != texts[own]
    dropped = counts.dropped_no_negative + counts.dropped_one_sentence + counts.dropped_too_long
    assert len(segments) + dropped == counts.pairs == counts.pairs_that_fit and counts.truncated == 0
    assert (used == 1).all() or (dropped and (used <= 1).all())


@pytest.mark.parametrize("pairs", TASKS)
def test_rows_are_filled_and_never_longer_than_the_longest(pairs: str) -> None:
    bucket, offsets = many_documents()
    settings = recipe(pairs, short_seq_prob=0.0)
    segments, counts = make_segments(bucket, offsets, settings)
    lengths = segments.first_length + segments.second_length + specials_of(pairs)
    assert lengths.sum() > 100_000
    assert lengths.max() == 128 and (lengths == 128).mean() > 0.75  # the rest are the ends of documents
    assert segments.first_length.min() > 0 and (pairs == "none" or segments.second_length.min() > 0)
    assert counts.truncated > 0.6 * len(segments)


@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order"])
def test_labels_are_half_and_half(pairs: str) -> None:
    segments, _ = make_segments(*many_documents(1_500, 30, 60), recipe(pairs))
    assert len(segments) > 10_000
    assert abs((segments.label == FOLLOWS).mean() - 0.5) < 0.03


def test_short_rows_are_a_share_of_all_and_of_every_length() -> None:
    sentences = 60_000  # of one token, so that a row has exactly the length it was to have
    bucket = Bucket(np.zeros(sentences, np.int64), np.arange(sentences), np.array([9], np.uint64), np.zeros(1, np.uint64))
    segments, _ = make_segments(bucket, np.arange(sentences + 1), recipe("none", short_seq_prob=0.5, max_length=34))
    lengths = segments.first_length[:-1]
    assert abs((lengths < 32).mean() - 0.5 * 30 / 31) < 0.02
    counts = np.bincount(lengths, minlength=33)
    assert not counts[:2].any() and counts[2:32].min() > 0.6 * counts[2:32].mean()


def test_a_document_of_one_sentence_is_a_beside_a_random_one() -> None:
    bucket, offsets = bucket_of([[number] for number in range(50)], np.full(50, 6))
    segments, _ = make_segments(bucket, offsets, recipe("next_sentence"))
    assert len(segments) == 50 and (segments.label == RANDOM).all()
    assert (segments.second // 6 != segments.first // 6).all()
    segments, counts = make_segments(bucket, offsets, recipe("sentence_order"))
    assert (len(segments), counts.dropped_one_sentence) == (0, 50)


def test_without_another_text_there_is_no_negative() -> None:
    bucket, offsets = bucket_of([[0, 1, 2, 3]] * 5, np.full(4, 6))
    segments, counts = make_segments(bucket, offsets, recipe("next_sentence"))
    assert len(segments) == 0 and counts.dropped_no_negative == counts.pairs >= 5


@pytest.mark.parametrize("pairs", TASKS)
def test_long_sentences_are_cut_at_random_ends_to_fit(pairs: str) -> None:
    documents = [[2 * number, 2 * number + 1] for number in range(2_000)]
    bucket, offsets = bucket_of(documents, np.full(4_000, 600))
    segments, counts = make_segments(bucket, offsets, recipe(pairs, max_length=512))
    assert len(segments) > 1_900 and counts.truncated == len(segments)
    assert (segments.first_length + segments.second_length + specials_of(pairs) == 512).all()
    place = segments.first % 600
    if pairs != "none":
        assert abs(segments.first_length - segments.second_length).max() <= 1  # both are longer than half
        assert abs(place.mean() - (600 - 255) / 2) < 10 and place.min() < 10 and place.max() > 335


def test_the_longer_segment_alone_is_cut_while_the_other_is_short() -> None:
    bucket, offsets = bucket_of([[2 * number, 2 * number + 1] for number in range(500)], np.tile([10, 200], 500))
    segments, _ = make_segments(bucket, offsets, recipe("sentence_order"))
    both = np.stack([segments.first_length, segments.second_length])
    assert (both.min(0) == 10).all() and (both.max(0) == 115).all()


@pytest.mark.parametrize("pairs", ["neighbours", *TASKS])
def test_each_time_through_gives_others_and_the_first_is_that_of_going_through_once(pairs: str) -> None:
    bucket, offsets = many_documents()
    once, _ = make_segments(bucket, offsets, recipe(pairs, dupe_factor=1))
    first, second = (make_segments(bucket, offsets, recipe(pairs, dupe_factor=5), repeat)[0] for repeat in (0, 1))
    for name in vars(once):
        assert (getattr(once, name) == getattr(first, name)).all()
    assert len(first) != len(second) or any((getattr(first, name) != getattr(second, name)).mean() > 0.2 for name in vars(first))


def test_the_order_of_documents_changes_no_row() -> None:
    """Each document has random numbers of its own: A and the cut of a document are the same among others."""
    bucket, offsets = many_documents()
    segments, _ = make_segments(bucket, offsets, recipe("sentence_order"))
    half = int(bucket.sentences[200])
    fewer = Bucket(bucket.document[:half], bucket.identity[:half], bucket.digests[:200], bucket.occurrence[:200])
    part, _ = make_segments(fewer, offsets[: half + 1], recipe("sentence_order"))
    for name in vars(part):
        assert (getattr(part, name) == getattr(segments, name)[: len(part)]).all()


@dataclasses.dataclass(frozen=True)
class Real:
    """A bucket of WikiText-2, with the sentences of its documents in ids, split and tokenized here one by one."""

    documents: pa.Table
    vocabulary: Vocabulary
    sentences: list[list[tuple[int, ...]]]

    def rows(self, settings: ShardSettings) -> Examples:
        return make_examples(self.documents, self.vocabulary, settings, PRESET.text)[0]

    def segments(self, examples: Examples) -> Iterator[tuple[tuple[int, ...], ...]]:
        """The segments of each row, its masks undone; sees that special tokens stand where they belong."""
        table = self.vocabulary.table
        ids = examples.input_ids.copy()
        ids[np.repeat(examples.offsets[:-1], np.diff(examples.mask_offsets)) + examples.masked_lm_positions] = examples.masked_lm_labels
        for a, b in itertools.pairwise(examples.offsets.tolist()):
            row, kinds = ids[a:b].tolist(), examples.token_type_ids[a:b].tolist()
            assert row[0] == table.cls_id and row.count(table.cls_id) == 1 and row[-1] == table.sep_id
            middle = row.index(table.sep_id)
            assert kinds == [0] * (middle + 1) + [1] * (len(row) - middle - 1)
            yield tuple(tuple(part) for part in (row[1:middle], row[middle + 1 : -1]) if part)


@pytest.fixture(scope="module")
def real(wikitext2: str, tmp_path_factory: pytest.TempPathFactory) -> Real:
    """The held-out articles, split by the language's rules, with a WordPiece vocabulary of their own."""
    folder = tmp_path_factory.mktemp("real")
    reader = DocumentReader.of(fetch_corpus(Store(str(folder)), wikitext2).output, "valid", PRESET.text)
    texts = [text for block in reader.blocks() for text in reader.find(block).to_pylist()]
    vocabulary = Vocabulary(train_wordpiece(lambda: texts, 2_000, lowercase=True))
    sort_documents(reader, 1, folder / "sorted")
    (documents,) = read_buckets([(folder / "sorted").read_bytes()], 1)
    sentences = []
    for text in documents.column("text").to_pylist():
        parts = [part.strip() for line in text.split("\n") for part in segment("en", line)]
        rows = vocabulary.tokenizer.encode_batch([part for part in parts if part], add_special_tokens=False)
        sentences.append([tuple(row.ids) for row in rows if row.ids])
    return Real(documents, vocabulary, sentences)


def text_of(sentences: list[tuple[int, ...]]) -> str:
    """Ids as a text, a character each, in which runs of them are found fast."""
    return "".join(chr(0x4000 + token) for sentence in sentences for token in sentence)


def test_wikitext2_labels_are_those_of_a_direct_count(real: Real) -> None:
    """Rows that are not truncated consist of whole sentences: what follows what is read off the articles themselves."""
    texts = [text_of(sentences) for sentences in real.sentences]
    starts = [[0, *itertools.accumulate(map(len, sentences))] for sentences in real.sentences]
    following = {pair for sentences in real.sentences for pair in itertools.pairwise(sentences)}

    def find(part: tuple[int, ...], document: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The first and the last sentence of a segment that stands whole in a document."""
        wanted, place = text_of([part]), -1
        while (place := texts[document].find(wanted, place + 1)) >= 0:
            if place in starts[document] and place + len(part) in starts[document]:
                own = real.sentences[document]
                return own[starts[document].index(place)], own[starts[document].index(place + len(part)) - 1]
        return None

    examples = real.rows(recipe("next_sentence", max_length=512, max_predictions_per_seq=77, short_seq_prob=1.0))
    assert len(examples.input_ids) > 100_000
    checked = {FOLLOWS: 0, RANDOM: 0}
    for (a, b), label, own in zip(real.segments(examples), examples.next_sentence_label.tolist(), examples.document.tolist(), strict=True):
        if len(a) + len(b) + 3 == 512:
            continue  # may be truncated
        last = find(a, own)
        assert last, "A stands in the document that the row names"
        if label == FOLLOWS:
            assert text_of([a, b]) in texts[own]
            assert find(b, own)
        else:
            places = [found for other in range(len(texts)) if other != own and (found := find(b, other))]
            assert places, "B stands in another document"
            assert (last[1], places[0][0]) not in following and last[1] != places[0][0]
            assert not any(text_of([a, b]) in text for text in texts)
        checked[label] += 1
    assert min(checked.values()) > 500 and sum(checked.values()) > 0.9 * len(examples)


@pytest.mark.parametrize("pairs", TASKS)
def test_wikitext2_rows_are_filled_and_in_order(real: Real, pairs: str) -> None:
    examples = real.rows(recipe(pairs))
    lengths = np.diff(examples.offsets)
    assert len(examples.input_ids) > 100_000 and lengths.max() == 128 and lengths.mean() > 118
    texts = [text_of(sentences) for sentences in real.sentences]
    for parts, label, own in zip(real.segments(examples), examples.next_sentence_label.tolist(), examples.document.tolist(), strict=True):
        assert len(parts) == (1 if pairs == "none" else 2)
        assert text_of([parts[0]]) in texts[own]
        if pairs == "sentence_order" or label == FOLLOWS:
            before, after = (text_of([part]) for part in (parts if label == 0 else parts[::-1]))
            assert texts[own].find(after, texts[own].find(before) + len(before)) >= 0
    if pairs == "none":
        assert (examples.next_sentence_label == IGNORED).all()
    else:
        assert abs((examples.next_sentence_label == 0).mean() - 0.5) < 0.04


def test_wikitext2_gone_through_three_times(real: Real) -> None:
    once, thrice = (real.rows(recipe("next_sentence", dupe_factor=times)) for times in (1, 3))
    rows = len(once)
    assert 2.8 * rows < len(thrice) < 3.2 * rows
    assert (thrice.input_ids[: len(once.input_ids)] == once.input_ids).all()
    assert (thrice.masked_lm_labels[: len(once.masked_lm_labels)] == once.masked_lm_labels).all()
    starts = [thrice.input_ids[a:b].tobytes() for a, b in itertools.pairwise(thrice.offsets)]
    assert len(set(starts)) > 0.99 * len(starts)
