"""What the data stages of a recipe take on a corpus, stage by stage: processor seconds, bytes, rows, tokens.

    python own_stages.py CORPUS STORE PRESET [SECTION.NAME=VALUE …]

Prints one JSON object. Seconds are of all this process's threads, so that they hold beside other work too; imports are not
timed. The rates in pipeline/estimate come from here.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec.implementations.local
import pandas as pd

from flows.options import read_entries
from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.vocabulary import build_vocabulary
from pipeline.settings import load_preset
from pipeline.shards import SHARD, shard_buckets
from pipeline.storage import Output, Store

assert fsspec.implementations.local and pd
address, root, name, *overrides = sys.argv[1:]
preset = load_preset(name).override(**read_entries(overrides))
store = Store(root)
row: dict[str, Any] = {}


def timed(stage: str, make: Callable[[], Output]) -> Output:
    wall, processor = time.perf_counter(), time.process_time()
    output = make()
    row[stage] = {"processor_seconds": round(time.process_time() - processor, 2), "seconds": round(time.perf_counter() - wall, 2)}
    return output


def shards(stage: str, split: str, *, long: bool = False) -> None:
    made = timed(stage, lambda: build_shards(store, corpus, vocabulary, split, preset, long=long))
    size = sum((Path(bucket) / SHARD).stat().st_size for bucket in shard_buckets(store, made))
    counts = made.facts["counts"]
    row[stage] |= {"bytes": size, **{key: counts[key] for key in ("tokens", "pairs", "rows", "row_tokens", "masked")}}


corpus = timed("corpus", lambda: fetch_corpus(store, address).output)
row["corpus"] |= {split: corpus.facts[split]["bytes"] for split in ("train", "valid")}
vocabulary = timed("vocabulary", lambda: build_vocabulary(store, corpus, preset))
row["vocabulary"] |= {"size": vocabulary.facts["size"]}
for split in ("train", "valid"):
    shards(f"shards-{split}", split)
    if preset.shards.long_max_length:
        shards(f"shards-{split}-long", split, long=True)
print(json.dumps(row))
