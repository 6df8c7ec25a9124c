"""What is shown of a shard set is what stands in its Parquet files and in the corpus."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline import inspection
from pipeline.data.build import build_shards
from pipeline.data.vocabulary import build_vocabulary
from pipeline.errors import DamagedOutputError, PipelineError
from pipeline.inspection import Example, ShardSet, Token, count_shards, draw_examples, find_shards, open_shards
from pipeline.settings import Preset, load_preset
from pipeline.shards import SHARD
from pipeline.storage import MANIFEST, Output, Store
from pipeline.tokens import TOKENIZER, WORD_LEVEL_TOKENS

ALL = 10**9
LABELS = inspection.LABELS["neighbours"]
_, UNKNOWN, CLS, SEP, MASK = WORD_LEVEL_TOKENS.values()


@pytest.fixture(params=["small_built", pytest.param("wikitext2_built", id="WikiText-2")])
def built(request: pytest.FixtureRequest):
    """A small corpus, and the real one."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def shards(built) -> ShardSet:
    return open_shards(built.store, built.train)


def original(tokens: list[Token]) -> str:
    """The words that a printed sentence tells, its masks taken back."""
    printed = " ".join(map(str, tokens))
    return re.sub(r"\[(\S+) (?:-> \S+|= kept)\]", r"\1", printed)


def neighbours(corpus: Output, words: set[str]) -> set[tuple[str, str]]:
    """Each sentence of the training text with the one that follows it, by the deck's rule, counted directly."""
    found = set()
    for line in Path(corpus.file("train.tokens")).read_text("utf-8").split("\n"):
        known = [" ".join(word if word in words else UNKNOWN for word in part.lower().split()) for part in line.strip().split(" . ")]
        found |= set(pairwise(known))
    return found


def test_printed_examples_give_back_the_sentences_of_the_corpus(built, shards: ShardSet) -> None:
    pairs = neighbours(built.corpus, set(shards.table.tokens))
    sentences = {sentence for pair in pairs for sentence in pair}
    examples = draw_examples(shards, 500, seed=3)
    labels = Counter(example.label for example in examples)
    for example in examples:
        first, second = original(example.first), original(example.second)
        assert first.startswith(f"{CLS} ")
        assert first.endswith(f" {SEP}")
        assert second.endswith(f" {SEP}")
        pair = first.removeprefix(f"{CLS} ").removesuffix(f" {SEP}"), second.removesuffix(f" {SEP}")
        assert pair[0] in sentences
        assert (pair in pairs) == (example.label == LABELS[0]), pair
    assert set(labels) == set(LABELS)


def test_the_masks_shown_are_those_of_the_parquet_rows(built, shards: ShardSet) -> None:
    for example in draw_examples(shards, 200, seed=1):
        (row,) = pq.read_table(f"{built.store.address('bucket', example.bucket)}/{SHARD}").slice(example.row, 1).to_pylist()
        tokens = example.first + example.second
        assert [token.now for token in tokens] == [shards.table.tokens[token] for token in row["input_ids"]]
        assert len(example.second) == sum(row["token_type_ids"])
        assert [place for place, token in enumerate(tokens) if token.was] == row["masked_lm_positions"]
        assert [token.was for token in tokens if token.was] == [shards.table.tokens[token] for token in row["masked_lm_labels"]]
        assert LABELS.index(example.label) == row["next_sentence_label"]
        assert example.document == row["document"]


def test_a_masked_token_is_printed_with_what_stood_there() -> None:
    tokens = Token("a"), Token(MASK, "river"), Token("tree", "bank"), Token("it", "it")
    assert [str(token) for token in tokens] == ["a", "[river -> <mask>]", "[bank -> tree]", "[it = kept]"]


def test_statistics_are_the_counts_of_the_manifest_and_of_the_rows(built, shards: ShardSet) -> None:
    found, counts = count_shards(shards), built.train.facts["counts"]
    assert found.counts.as_dict() == counts
    assert found.lengths.sum() == found.seen[shards.table.cls_id] == counts["rows"]
    assert found.lengths @ np.arange(len(found.lengths)) == found.seen.sum() == counts["row_tokens"]
    assert found.seen[shards.table.sep_id] == 2 * counts["rows"]
    assert found.sample == ""
    assert counts["rows"] + counts["dropped_too_long"] + counts["dropped_no_negative"] == counts["pairs"]

    rows = pq.read_table([f"{bucket}/{SHARD}" for bucket in shards.buckets]).to_pydict()
    assert sum(rows["next_sentence_label"]) == found.labels[1][1]
    lengths = [len(ids) for ids in rows["input_ids"]]
    table = {line.name: line for line in found.table()}
    assert table["rows"].count == len(lengths)
    assert (table["shortest row"].count, table["longest row"].count) == (min(lengths), max(lengths))
    assert table["median row"].count == statistics.median(lengths)
    assert table["mean row"].count == pytest.approx(statistics.fmean(lengths))
    bands = [line for line in table.values() if line.name.startswith("rows of ")]
    assert len(bands) == 8
    assert sum(line.count for line in bands) == len(lengths)
    assert sum(line.share or 0 for line in bands) == pytest.approx(1)
    _, first, _, last, _ = bands[3].name.removeprefix("rows ").split()
    assert bands[3].count == sum(int(first) <= length <= int(last) for length in lengths)
    assert table["vocabulary"].count == built.train.facts["vocabulary_size"]
    assert table["unknown"].share == counts["unknown_tokens"] / counts["tokens"]
    assert table[LABELS[0]].share == counts["followed"] / counts["rows"]
    assert [table[f"masked, {kind}"].count for kind in (MASK, "random word", "kept")] == [
        counts[name] for name in ("masked_as_mask", "masked_as_random", "masked_kept")
    ]
    assert table["masked"].share == counts["masked"] / counts["row_tokens"]


def test_the_most_frequent_tokens_are_those_of_a_direct_count(small_built) -> None:
    shards = open_shards(small_built.store, small_built.train)
    examples = draw_examples(shards, ALL, seed=0)
    counted = Counter(token.was or token.now for example in examples for token in example.first + example.second)
    assert counted.pop(CLS) == len(examples)
    assert counted.pop(SEP) == 2 * len(examples)
    table = [line for line in count_shards(shards).table() if line.name.startswith("token ")]
    assert [line.count for line in table] == sorted(counted.values(), reverse=True)[:10]
    assert all(counted[line.name.removeprefix("token ")] == line.count for line in table)


def test_the_seed_alone_decides_which_rows_are_drawn(small_built) -> None:
    shards = open_shards(small_built.store, small_built.train)

    def places(count: int, seed: int) -> list[tuple[str, int]]:
        return [(example.bucket, example.row) for example in draw_examples(shards, count, seed)]

    assert places(5, 1) == places(5, 1)
    assert places(5, 1) != places(5, 2)
    assert len(set(places(5, 1))) == 5
    assert len(set(places(ALL, 1))) == len(places(ALL, 1)) == small_built.train.facts["counts"]["rows"]
    assert places(0, 1) == []


def test_a_sample_of_buckets_says_so(small_built) -> None:
    shards = open_shards(small_built.store, small_built.train)
    found = count_shards(shards, rows=1)
    first, rows = next(iter(shards.buckets)), small_built.train.facts["counts"]["rows"]
    assert found.buckets_read == 1
    assert found.lengths.sum() == shards.buckets[first]
    assert found.counts.rows == rows, "what building counted is of the whole"
    wanted = f"lengths and most frequent tokens are those of a sample, 1 of 2 buckets: {shards.buckets[first]} of {rows} rows"
    assert found.sample == wanted


def test_a_set_is_found_by_address_by_key_and_as_the_newest(small_built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, elsewhere = small_built.train, Store(str(tmp_path / "elsewhere"))
    for wanted in (train.address, f"{train.address}/", train.key, train.key[:8]):
        assert find_shards(small_built.store, wanted).output == train
    assert find_shards(small_built.store, None).output.address == train.address
    assert find_shards(elsewhere, train.address) == find_shards(small_built.store, train.key)
    monkeypatch.chdir(small_built.store.root)
    assert find_shards(elsewhere, f"shards/{train.key}").output == train
    for store, wanted in ((elsewhere, None), (small_built.store, "0" * 20), (elsewhere, train.key)):
        with pytest.raises(PipelineError, match="no shard set"):
            find_shards(store, wanted)


def test_the_newest_set_is_the_one_made_last(small_built) -> None:
    second = build_shards(
        small_built.store, small_built.corpus, small_built.vocabulary, "train", small_built.preset.override(shards={"seed": 7})
    )
    path = Path(small_built.train.address) / MANIFEST
    for created, newest in (("2020-01-01T00:00:00+00:00", second.key), ("2099-01-01T00:00:00+00:00", small_built.train.key)):
        manifest = json.loads(path.read_text("utf-8"))
        manifest["recorded"]["created"] = created
        path.write_text(json.dumps(manifest), "utf-8")
        assert find_shards(small_built.store, None).output.key == newest


def test_a_beginning_of_many_keys_is_refused_with_their_names(small_built) -> None:
    preset = small_built.preset.override(shards={"buckets": 32})
    build_shards(small_built.store, small_built.corpus, small_built.vocabulary, "train", preset)
    keys = [f"{stage}/{key}" for stage in ("shards", "bucket") for key in small_built.store.children(f"{small_built.store.root}/{stage}")]
    (digit, count), *_ = Counter(name.split("/")[1][0] for name in keys).most_common(1)
    with pytest.raises(PipelineError, match=rf"^{digit}: {count} keys in .* begin so, ") as caught:
        find_shards(small_built.store, digit)
    assert next(name for name in keys if name.split("/")[1].startswith(digit)) in str(caught.value)


@pytest.mark.parametrize("wanted", ["vocabulary", "store", "file", "nowhere", "nowhere/at/all", "shards/nowhere", "/", "nothing://at/all"])
def test_what_is_no_shard_set_is_refused(small_built, wanted: str) -> None:
    bucket = next(iter(open_shards(small_built.store, small_built.train).buckets))
    known = {"vocabulary": small_built.vocabulary.address, "store": small_built.store.root, "file": f"{bucket}/{SHARD}"}
    address = known.get(wanted, wanted)
    with pytest.raises(PipelineError, match="; wanted the folder shards/KEY or bucket/KEY of a store, or a key") as caught:
        find_shards(small_built.store, address)
    assert str(caught.value).startswith(f"{address}: no")


def test_a_bucket_alone_is_inspected_as_a_set_is(small_built) -> None:
    shards = open_shards(small_built.store, small_built.train)
    parts = [find_shards(small_built.store, address) for address in shards.buckets]
    assert [part.buckets for part in parts] == [{address: rows} for address, rows in shards.buckets.items()]
    whole, of_parts = count_shards(shards), [count_shards(part) for part in parts]
    assert (sum(part.lengths for part in of_parts) == whole.lengths).all()
    assert (sum(part.seen for part in of_parts) == whole.seen).all()
    assert len(draw_examples(parts[0], ALL, seed=0)) == parts[0].output.facts["counts"]["rows"]


def test_a_bucket_without_a_row_has_no_lengths(small_built) -> None:
    preset = small_built.preset.override(shards={"buckets": 64})
    many = build_shards(small_built.store, small_built.corpus, small_built.vocabulary, "train", preset)
    empty = find_shards(small_built.store, next(entry["key"] for entry in many.facts["buckets"] if not entry["rows"]))
    assert draw_examples(empty, 5, seed=0) == []
    table = [line.cells() for line in count_shards(empty).table()]
    assert ("rows", "0", "", "") in table
    assert not [name for name, *_ in table if name.startswith(("token ", "median", "rows of"))]


def shown(store: Store, corpus: Output, preset: Preset) -> tuple[list[Example], dict[str, tuple[str, ...]]]:
    """All examples and the lines of the table, by their name, of the shards that a preset gives."""
    shards = open_shards(store, build_shards(store, corpus, build_vocabulary(store, corpus, preset), "train", preset))
    return draw_examples(shards, ALL, seed=0), {line.name: line.cells()[1:] for line in count_shards(shards).table()}


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order", "none"])
def test_each_recipe_is_shown_as_what_it_is(tmp_path: Path, publish, text, pairs: str, masking: str) -> None:
    preset = load_preset("tiny").override(
        text={"documents": "article", "sentences": "prose"},
        vocabulary={"kind": "wordpiece", "size": 100},
        shards={"pairs": pairs, "masking": masking, "buckets": 1, "whole_word": True, "dupe_factor": 2, "max_length": 40},
    )
    store, articles = Store(str(tmp_path)), "".join(f" = {number} = \n{text(6, number)}" for number in range(25))
    examples, table = shown(store, publish(store, articles), preset)
    labels = Counter(example.label for example in examples)
    if pairs == "none":
        assert set(labels) == {inspection.UNLABELLED} and not any(example.second for example in examples)
        assert not {"B follows A", "in order"} & set(table)
    else:
        assert set(labels) == set(inspection.LABELS[pairs])
        assert [table[name][0] for name in inspection.LABELS[pairs]] == [str(labels[name]) for name in inspection.LABELS[pairs]]
    for example in examples:
        tokens = [token.now for token in example.first]
        assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    assert any(token.now.startswith("##") for example in examples for token in example.first)
    wanted = "wanted 15% of whole words, at most 10 a row"
    masked = [token for example in examples for token in (*example.first, *example.second) if token.was]
    if masking == "dynamic":
        assert not masked and table["masked"] == (
            "0",
            "",
            f"masks are drawn anew each epoch, while training: {wanted}",
        )
        assert not any(name.startswith("masked, ") for name in table)
    else:
        assert int(table["masked"][0].replace(",", "")) == len(masked) > 0
        assert int(table["masked, [MASK]"][0].replace(",", "")) == sum(token.now == "[MASK]" for token in masked)
    assert table["runs of sentences"][2] == "each fills a row, the text gone through 2 times"
    assert table["truncated"][1:] == (f"{int(table['truncated'][0]) / len(examples):.1%}", "of rows: cut to 40 tokens")
    dropped = {"next_sentence": {"no negative"}, "sentence_order": {"one sentence", "both orders"}, "none": set()}[pairs]
    assert {name.removeprefix("dropped, ") for name in table if name.startswith("dropped, ")} == dropped
    assert table["tokens of the rows"][2] == "with [CLS] and [SEP]"


def _cut(bucket: Path) -> None:
    (bucket / SHARD).write_bytes((bucket / SHARD).read_bytes()[:-10])


def _flip(bucket: Path) -> None:
    data = bytearray((bucket / SHARD).read_bytes())
    data[len(data) // 2] ^= 255
    (bucket / SHARD).write_bytes(data)


def _lose(bucket: Path) -> None:
    (bucket / SHARD).unlink()


def _withdraw(bucket: Path) -> None:
    (bucket / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("damage", "kind", "file", "message"),
    [
        (_cut, DamagedOutputError, SHARD, "bytes, wanted "),
        (_flip, DamagedOutputError, SHARD, "sha256 "),
        (_lose, DamagedOutputError, SHARD, "missing, wanted "),
        (_withdraw, PipelineError, "", f"no {MANIFEST} here"),
    ],
)
def test_a_damaged_bucket_is_named(small_built, damage: Callable[[Path], None], kind: type[PipelineError], file: str, message: str) -> None:
    shards = open_shards(small_built.store, small_built.train)
    bucket = Path(list(shards.buckets)[-1])
    damage(bucket)

    def draw() -> list[Example]:
        return draw_examples(shards, ALL, seed=0)

    for look in (draw, lambda: count_shards(shards)):
        with pytest.raises(kind, match=message) as caught:
            look()
        assert str(caught.value).startswith(f"{bucket}/{file}".rstrip("/") + ": ")


def test_a_set_without_its_vocabulary_is_refused(small_built) -> None:
    (Path(small_built.vocabulary.address) / MANIFEST).unlink()
    with pytest.raises(PipelineError, match=f"vocabulary/{small_built.vocabulary.key}: no {MANIFEST} here"):
        find_shards(small_built.store, small_built.train.key)


def test_a_vocabulary_of_other_bytes_is_refused(small_built) -> None:
    path = Path(small_built.vocabulary.file(TOKENIZER))
    path.write_bytes(path.read_bytes()[:-2] + b" }")
    with pytest.raises(DamagedOutputError, match=f"{TOKENIZER}: sha256 "):
        find_shards(small_built.store, small_built.train.key)


def test_the_names_that_are_printed_are_found(small_built) -> None:
    bucket = next(iter(open_shards(small_built.store, small_built.train).buckets))
    for output, wanted in ((small_built.train.key, "shards"), (bucket.rsplit("/", 1)[1], "bucket")):
        for name in (output, f"{wanted}/{output}", f"{wanted}/{output[:12]}"):
            assert find_shards(small_built.store, name).name == f"{wanted}/{output}"
    assert find_shards(small_built.store, "").output.key == small_built.train.key


def test_a_damaged_set_does_not_hide_the_others(small_built) -> None:
    preset = small_built.preset.override(shards={"seed": 8})
    damaged = build_shards(small_built.store, small_built.corpus, small_built.vocabulary, "train", preset)
    (Path(damaged.address) / MANIFEST).write_text("{", "utf-8")
    assert find_shards(small_built.store, None).output.key == small_built.train.key
