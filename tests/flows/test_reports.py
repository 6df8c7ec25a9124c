"""What reports show is well-formed and true."""

import base64
import re
from collections.abc import Callable
from pathlib import Path

from flows import reports
from pipeline.data.build import build_shards
from pipeline.data.vocabulary import build_vocabulary
from pipeline.inspection import count_shards, open_shards
from pipeline.settings import Preset
from pipeline.storage import Output, Store


def test_a_shard_sets_statistics_are_a_table_and_a_picture(tmp_path: Path, publish: Callable[..., Output], small_preset: Preset) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, " a | b . <b> c d . | e <b> . \n f a | . c d <b> e . \n" * 4)
    vocabulary = build_vocabulary(store, corpus, small_preset)
    shards = open_shards(store, build_shards(store, corpus, vocabulary, "train", small_preset.override(shards={"buckets": 1})))
    statistics = count_shards(shards)
    markdown = reports.shards_markdown(statistics)
    head, rule, *rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == len(statistics.table())
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, *rows)} == {5}, "four columns, whatever the words are"
    assert f"| rows | {statistics.counts.rows} |  |  |" in rows
    assert any(row.startswith("| token \\| | ") for row in rows)
    assert any(row.startswith("| token &lt;b> | ") for row in rows)
    picture = re.search(r"!\[lengths of rows\]\(data:image/png;base64,([^)]+)\)", markdown)
    assert picture
    assert base64.b64decode(picture[1]).startswith(b"\x89PNG")
    assert "sample" not in markdown


def test_statistics_of_a_sample_say_so(small_built) -> None:
    statistics = count_shards(open_shards(small_built.store, small_built.train), rows=1)
    assert statistics.sample
    assert f"\n{statistics.sample}\n" in reports.shards_markdown(statistics)
