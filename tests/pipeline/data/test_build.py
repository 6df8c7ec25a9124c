"""Shards: the deck's counts on WikiText-2, and what a bucket depends on."""

import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data import build
from pipeline.data.build import build_shards
from pipeline.data.documents import TEXT, WIKITEXT
from pipeline.data.parallel import Builders
from pipeline.data.tokenizer import Vocabulary
from pipeline.data.vocabulary import build_vocabulary
from pipeline.errors import CorpusError, DamagedOutputError
from pipeline.settings import MOST_BUCKETS, load_preset
from pipeline.shards import SHARD, Examples, read_shards, shard_buckets
from pipeline.storage import Store

SETTINGS = load_preset("tiny").override(vocabulary={"min_count": 1}, shards={"buckets": 2, "held_out_buckets": 2})
TABLE = Vocabulary.of_words({}, 1).table
CLS_ID, SEP_ID, MASK_ID = TABLE.cls_id, TABLE.sep_id, TABLE.mask_id


def originals(examples: Examples) -> list[list[int]]:
    """Each row with its masks undone."""
    ids = examples.input_ids.copy()
    ids[np.repeat(examples.offsets[:-1], np.diff(examples.mask_offsets)) + examples.masked_lm_positions] = examples.masked_lm_labels
    return [ids[a:b].tolist() for a, b in zip(examples.offsets, examples.offsets[1:], strict=False)]


def read_as_the_deck(path: str, known: dict[str, int]) -> list[list[tuple[int, ...]]]:
    """Paragraphs of sentences of ids: a direct count to hold ours against."""
    lines = Path(path).read_text("utf-8").split("\n")
    paragraphs = [line.strip().lower().split(" . ") for line in lines if " . " in line]
    return [[tuple(known.get(word, 1) for word in sentence.split()) for sentence in paragraph] for paragraph in paragraphs]


def test_wikitext2_counts_are_the_decks(wikitext2_built) -> None:
    counts = wikitext2_built.train.facts["counts"]
    names = ("documents", "documents_of_one_sentence", "sentences", "tokens", "pairs", "pairs_that_fit")
    assert [counts[name] for name in names] == [15_496, 1_072, 74_631, 1_926_788, 59_135, 44_225]
    assert abs(counts["rows"] - 43_530) < 300
    assert counts["rows"] + counts["dropped_too_long"] + counts["dropped_no_negative"] == counts["pairs"]
    assert abs(counts["followed"] / counts["rows"] - 0.5) < 0.02
    assert abs(counts["masked_as_mask"] / counts["masked"] - 0.8) < 0.01
    assert abs(counts["masked_as_random"] / counts["masked"] - 0.1) < 0.01
    assert abs(counts["masked_kept"] / counts["masked"] - 0.1) < 0.01


@pytest.mark.parametrize("split", ["train", "valid"])
def test_wikitext2_pairs_are_those_of_a_direct_count(wikitext2_built, split: str) -> None:
    words = Vocabulary.open(wikitext2_built.vocabulary).table.tokens
    paragraphs = read_as_the_deck(wikitext2_built.corpus.file(f"{split}.tokens"), {w: i for i, w in enumerate(words) if i >= len(TABLE)})
    following = {pair for p in paragraphs for pair in itertools.pairwise(p)}
    fitting = {pair for pair in following if len(pair[0]) + len(pair[1]) + 3 <= 64}
    known = {sentence for paragraph in paragraphs for sentence in paragraph}
    output = wikitext2_built.train if split == "train" else wikitext2_built.valid
    examples = read_shards(shard_buckets(wikitext2_built.store, output))
    found = set()
    for row, label, kinds in zip(
        originals(examples), examples.next_sentence_label, np.split(examples.token_type_ids, examples.offsets[1:-1]), strict=True
    ):
        middle = row.index(SEP_ID)
        a, b = tuple(row[1:middle]), tuple(row[middle + 1 : -1])
        assert row[0] == CLS_ID and row.count(CLS_ID) == 1 and row[-1] == SEP_ID and len(row) <= 64
        assert kinds.tolist() == [0] * (middle + 1) + [1] * (len(row) - middle - 1)
        assert a in known and b in known
        if label == 0:
            found.add((a, b))
        assert label == 1 or (a, b) in following
    assert found <= fitting
    if split == "train":  # the coin keeps each true pair with probability a half
        assert abs(len(found) / len(fitting) - 0.5) < 0.02


def test_wikitext2_negatives_are_no_true_pair_of_their_bucket(wikitext2_built) -> None:
    for bucket in shard_buckets(wikitext2_built.store, wikitext2_built.train)[:4]:
        examples = read_shards([bucket])
        pairs: dict[int, set] = {0: set(), 1: set()}
        for row, label in zip(originals(examples), examples.next_sentence_label, strict=True):
            middle = row.index(SEP_ID)
            pairs[int(label)].add((tuple(row[1:middle]), tuple(row[middle + 1 : -1])))
        assert pairs[0] and not pairs[0] & pairs[1]
        assert not any(a == b for a, b in pairs[1])


def test_one_seed_gives_the_same_bytes_and_another_gives_others(tmp_path: Path, text, publish, small_preset) -> None:
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        store = Store(str(tmp_path / name))
        corpus = publish(store, text(60, 3), text(5, 4))
        shards = build_shards(
            store,
            corpus,
            build_vocabulary(store, corpus, small_preset),
            "train",
            small_preset.override(shards={"seed": seed}),
        )
        files = [Path(bucket) / SHARD for bucket in shard_buckets(store, shards)]
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
    assert len(digests[0]) == 2 and digests[0] == digests[1]
    assert not set(digests[0]) & set(digests[2])


def test_a_bucket_depends_on_its_own_documents_alone(tmp_path: Path, text, publish) -> None:
    store = Store(str(tmp_path))
    preset = load_preset("tiny").override(shards={"buckets": 8})
    lines = text(80, 5).split("\n")
    corpus = publish(store, "\n".join(lines))
    vocabulary = build_vocabulary(store, corpus, preset)
    before = build_shards(store, corpus, vocabulary, "train", preset)
    reordered = publish(store, "\n".join(lines[::-1]))
    assert build_shards(store, reordered, vocabulary, "train", preset).facts["buckets"] == before.facts["buckets"]
    lines[0] = " the old crane left . the birds left . \n"
    edited = build_shards(store, publish(store, "\n".join(lines)), vocabulary, "train", preset)
    changed = [a["key"] != b["key"] for a, b in zip(before.facts["buckets"], edited.facts["buckets"], strict=True)]
    assert 1 <= sum(changed) <= 2


def test_equal_paragraphs_get_masks_of_their_own(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    line = " " + " . ".join(f"w{i} x{i} y{i} z{i} v{i}" for i in range(8)) + " . \n"
    corpus = publish(store, line * 40)
    preset = load_preset("tiny").override(vocabulary={"min_count": 1}, shards={"buckets": 1})
    shards = build_shards(store, corpus, build_vocabulary(store, corpus, preset), "train", preset)
    examples = read_shards(shard_buckets(store, shards))
    assert len(examples) == 40 * 7
    assert len({examples.input_ids[a:b].tobytes() for a, b in zip(examples.offsets, examples.offsets[1:], strict=False)}) > 200


@pytest.mark.parametrize(
    ("train", "cause"),
    [
        ("hello there\n\nwho is it\n\ngood bye\n", "no document has a word"),
        (" a . \n \n b . \n \n c . \n", "blank line after each sentence"),
        (" one sentence . and another . \n", "no honest negative"),
        (" " + "a " * 80 + ". " + "b " * 80 + ". " + "c " * 80 + ". \n", "longer than shards.max_length"),
    ],
)
def test_a_corpus_without_a_usable_pair_says_why(tmp_path: Path, publish, train: str, cause: str) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, train)
    with pytest.raises(CorpusError, match=rf"train split: .*({cause})"):
        build_shards(store, corpus, build_vocabulary(store, corpus, SETTINGS), "train", SETTINGS)
    assert not (tmp_path / "shards").exists()


def test_a_paragraph_of_one_sentence_gives_no_pair_but_words_and_negatives(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, "Foo bar baz . \n" + "".join(f" w{i} v{i} . x{i} y{i} . z{i} u{i} . \n" for i in range(30)))
    vocabulary = build_vocabulary(store, corpus, SETTINGS)
    shards = build_shards(store, corpus, vocabulary, "train", SETTINGS)
    assert shards.facts["counts"]["documents_of_one_sentence"] == 1
    assert shards.facts["counts"]["pairs"] == 60
    assert {"foo", "bar", "baz"} <= set(Vocabulary.open(vocabulary).table.tokens)


def test_carriage_returns_change_no_token(tmp_path: Path, text, publish) -> None:
    counts = []
    for name, ending in (("a", "\n"), ("b", "\r\n")):
        store = Store(str(tmp_path / name))
        corpus = publish(store, text(30, 6).replace("\n", ending))
        vocabulary = build_vocabulary(store, corpus, SETTINGS)
        counts.append(
            (Vocabulary.open(vocabulary).table.tokens, build_shards(store, corpus, vocabulary, "train", SETTINGS).facts["contents"])
        )
    assert counts[0] == counts[1]


def test_the_held_out_split_is_built_with_the_training_vocabulary(small_built) -> None:
    assert small_built.valid.manifest["inputs"]["vocabulary"] == small_built.train.manifest["inputs"]["vocabulary"]
    assert small_built.valid.facts["vocabulary_size"] == small_built.vocabulary.facts["size"]


def test_text_that_spells_special_tokens_makes_none(tmp_path: Path, text, publish) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, text(40, 7) + " a <cls> crane . <sep> is <pad> . <mask> left <MASK> . \n" * 20)
    shards = build_shards(store, corpus, build_vocabulary(store, corpus, SETTINGS), "train", SETTINGS)
    examples = read_shards(shard_buckets(store, shards))
    for row in originals(examples):
        assert row[0] == CLS_ID and row.count(CLS_ID) == 1 and row.count(SEP_ID) == 2 and row[-1] == SEP_ID
        assert 0 not in row and MASK_ID not in row
    assert not {0, CLS_ID, SEP_ID, MASK_ID} & set(examples.masked_lm_labels.tolist())


def test_every_neighbouring_pair_gives_one_row_or_is_counted(tmp_path: Path, text, publish) -> None:
    """The sentences A are those of a direct count, as a multiset, and the true pairs are among those of the count."""
    store = Store(str(tmp_path))
    corpus = publish(store, text(200, 8))
    vocabulary = build_vocabulary(store, corpus, SETTINGS)
    shards = build_shards(store, corpus, vocabulary, "train", SETTINGS)
    known = {word: number for number, word in enumerate(Vocabulary.open(vocabulary).table.tokens)}
    wanted = Counter(pair for p in read_as_the_deck(corpus.file("train.tokens"), known) for pair in itertools.pairwise(p))
    examples = read_shards(shard_buckets(store, shards))
    firsts: Counter = Counter()
    follow: Counter = Counter()
    for row, label in zip(originals(examples), examples.next_sentence_label, strict=True):
        middle = row.index(SEP_ID)
        firsts[tuple(row[1:middle])] += 1
        if label == 0:
            follow[tuple(row[1:middle]), tuple(row[middle + 1 : -1])] += 1
    assert shards.facts["counts"]["dropped_too_long"] == 0 and shards.facts["counts"]["dropped_no_negative"] == 0
    assert firsts == sum((Counter({a: n}) for (a, _), n in wanted.items()), Counter())
    assert follow <= wanted and abs(follow.total() / wanted.total() - 0.5) < 0.1


def test_any_parquet_reader_can_use_a_shard(small_built) -> None:
    table = pq.read_table(Path(shard_buckets(small_built.store, small_built.train)[0]) / SHARD)
    row = table.slice(0, 1).to_pylist()[0]
    assert row["input_ids"][0] == CLS_ID and len(row["input_ids"]) == len(row["token_type_ids"])
    assert len(row["masked_lm_positions"]) == len(row["masked_lm_labels"]) >= 1
    assert (
        pq.ParquetFile(Path(shard_buckets(small_built.store, small_built.train)[0]) / SHARD).metadata.row_group(0).column(0).compression
        == "ZSTD"
    )


def test_the_number_of_threads_changes_nothing(small_built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (1, 5):
        monkeypatch.setattr(pa, "cpu_count", lambda threads=threads: threads)
        store = Store(str(tmp_path / str(threads)))
        again = build_shards(store, small_built.corpus, small_built.vocabulary, "train", small_built.preset)
        assert again.facts == small_built.train.facts


@pytest.mark.parametrize(("documents", "form"), [("paragraph", WIKITEXT), ("article", WIKITEXT), ("article", TEXT)])
def test_pieces_of_any_size_give_the_same_buckets_with_honest_negatives(
    tmp_path: Path, text, publish, monkeypatch: pytest.MonkeyPatch, documents: str, form: str
) -> None:
    preset = load_preset("tiny").override(vocabulary={"min_count": 1}, shards={"buckets": 6}, text={"documents": documents})
    title = " = T = \n" if form == WIKITEXT else "\n"
    written = "".join(title + text(4, seed).replace(" \n \n", "\n").lstrip() for seed in range(60)).lstrip("\n")
    built = {}
    for part, group in ((1 << 20, 1 << 20), (3_000, 1), (700, 1 << 20)):
        monkeypatch.setattr(build, "PART_BYTES", part)
        monkeypatch.setattr(build, "GROUP_BYTES", group)
        store = Store(str(tmp_path / f"{part}"))
        corpus = publish(store, written, form=form)
        shards = build_shards(store, corpus, build_vocabulary(store, corpus, preset), "train", preset)
        files = [Path(bucket) / SHARD for bucket in shard_buckets(store, shards)]
        built[part] = shards.key, shards.facts, [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        assert store.children(f"{store.root}/sorted") == [], "what was sorted goes"
        assert shards.manifest["recorded"]["buckets_made"] == 6
        for bucket in shard_buckets(store, shards):
            pairs: dict[int, set] = {0: set(), 1: set()}
            examples = read_shards([bucket])
            for row, label in zip(originals(examples), examples.next_sentence_label, strict=True):
                middle = row.index(SEP_ID)
                pairs[int(label)].add((tuple(row[1:middle]), tuple(row[middle + 1 : -1])))
            assert pairs[0] and pairs[1] and not pairs[0] & pairs[1]
    assert built[1 << 20][1]["counts"]["documents"] == (60 if documents == "article" else 240)
    assert built[1 << 20] == built[3_000] == built[700]


def test_what_was_sorted_before_a_kill_is_found(small_built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PART_BYTES", 1_000)
    store, sorted_ = Store(str(tmp_path)), []

    @contextmanager
    def stops() -> Iterator[Builders]:
        def map_some(function, inputs):
            if function is build.build_buckets:
                raise KeyboardInterrupt
            sorted_.append([output.found for output in map(function, inputs)])
            return map(function, inputs)

        yield Builders("threads", 1, map_some)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build_shards(store, small_built.corpus, small_built.vocabulary, "train", small_built.preset, builders=stops)
    assert len(sorted_[0]) > 2 and not any(sorted_[0]) and all(sorted_[1])
    (damaged, *_) = Path(store.root, "sorted").glob("*/documents.arrow")
    damaged.unlink()
    again = build_shards(store, small_built.corpus, small_built.vocabulary, "train", small_built.preset)
    assert again.facts == small_built.train.facts and not store.children(f"{store.root}/sorted")


@pytest.mark.parametrize("damage", [lambda data: data.replace(b"crane", b"krane", 1), lambda data: data[:40] + b"\x5a" + data[41:], bytes])
def test_what_was_sorted_and_is_damaged_makes_no_bucket_and_is_sorted_again(
    small_built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage
) -> None:
    monkeypatch.setattr(build, "PART_BYTES", 1_000)
    store = Store(str(tmp_path))

    @contextmanager
    def damages() -> Iterator[Builders]:
        def map_all(function, inputs):
            if function is build.build_buckets:
                file = Path(inputs[0].spans[0].address)
                whole = file.read_bytes()
                file.write_bytes(damage(whole) if damage is not bytes else bytes(len(whole)))
            return map(function, inputs)

        yield Builders("threads", 1, map_all)

    with pytest.raises(DamagedOutputError, match=r"^build bucket.*: what was sorted for it, in .*, is damaged; run again"):
        build_shards(store, small_built.corpus, small_built.vocabulary, "train", small_built.preset, builders=damages)
    again = build_shards(store, small_built.corpus, small_built.vocabulary, "train", small_built.preset)
    assert again.facts == small_built.train.facts and not store.children(f"{store.root}/sorted")


def test_empty_buckets_are_one_output_and_hold_nobody_up(small_built, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    preset = small_built.preset.override(shards={"buckets": 512})
    with caplog.at_level(logging.INFO):
        built = build_shards(Store(str(tmp_path)), small_built.corpus, small_built.vocabulary, "train", preset)
    empty = [entry["key"] for entry in built.facts["buckets"] if not entry["rows"]]
    keys = [entry["key"] for entry in built.facts["buckets"]]
    recorded = built.manifest["recorded"]
    assert len(empty) > 2 and (recorded["buckets_made"], recorded["buckets_found"]) == (len(set(keys)), 0)
    assert "waiting" not in caplog.text


@pytest.mark.parametrize(("megabytes", "count", "said"), [(64, 16, "set it to 128"), (20, 16, None), (100, MOST_BUCKETS, None)])
def test_large_buckets_are_said_to_be_so(caplog, megabytes: int, count: int, said: str | None) -> None:
    build._advise_on_size([megabytes << 20] * count, 2, "shards.buckets", 1)
    assert (said or "") in caplog.text and bool(caplog.messages) == bool(said)


@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_a_damaged_shard_is_made_again_under_the_same_key(small_built, caplog, damage: str) -> None:
    bucket = Path(shard_buckets(small_built.store, small_built.train)[0])
    good = (bucket / SHARD).read_bytes()
    if damage == "delete":
        (bucket / SHARD).unlink()
    else:
        (bucket / SHARD).write_bytes(good[:100] if damage == "truncate" else good[:-1] + bytes([good[-1] ^ 1]))
    with caplog.at_level(logging.WARNING):
        again = build_shards(small_built.store, small_built.corpus, small_built.vocabulary, "train", small_built.preset)
    assert again.key == small_built.train.key
    assert (bucket / SHARD).read_bytes() == good
    assert any("damaged" in record.message and bucket.name in record.message for record in caplog.records)
