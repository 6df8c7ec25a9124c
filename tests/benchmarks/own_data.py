"""Our data stages on a corpus, timed in a process of their own: corpus, vocabulary, pairs, masks, Parquet on disk.

    python own_data.py CORPUS STORE [BUCKETS] [PRESET]

Without PRESET by that of the deck, `tiny`. Prints one JSON object; the time includes reading the corpus into
the store. Imports are not timed; pyarrow imports pandas, where it is installed, at its first array, so it is imported
before, and fsspec its local files.
"""

import json
import re
import sys
import time
from pathlib import Path

import fsspec.implementations.local
import pandas as pd

from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.vocabulary import build_vocabulary
from pipeline.settings import load_preset
from pipeline.storage import Store


def peak_mb() -> float:
    """The most memory that this program has held, in MB; what getrusage says counts the process that started it too."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"))[1]) / 1024


assert fsspec.implementations.local and pd
address, root, buckets, name, *_ = *sys.argv[1:], None, None
preset = load_preset(name or "tiny").override(shards={"buckets": int(buckets)} if buckets else None)
start = time.perf_counter()
store = Store(root)
corpus = fetch_corpus(store, address).output
vocabulary = build_vocabulary(store, corpus, preset)
shards = build_shards(store, corpus, vocabulary, "train", preset)
seconds = time.perf_counter() - start
row = {
    "seconds": seconds,
    "megabytes": corpus.facts["train"]["bytes"] / 1e6,
    "rows": shards.facts["counts"]["rows"],
    "peak_mb": peak_mb(),
}
print(json.dumps(row))
