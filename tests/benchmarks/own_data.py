"""Our data stages on a corpus, timed in a process of their own: vocabulary, pairs, masks, Parquet on disk.

    python own_data.py FOLDER STORE

FOLDER holds wiki.train.tokens. Prints one JSON object; the time includes reading the corpus into the store.
"""

import json
import resource
import sys
import time

from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.vocabulary import build_vocabulary
from pipeline.settings import load_preset
from pipeline.storage import Store

start = time.perf_counter()
store, preset = Store(sys.argv[2]), load_preset("tiny")
corpus = fetch_corpus(store, sys.argv[1]).output
vocabulary = build_vocabulary(store, corpus, preset.vocabulary)
shards = build_shards(store, corpus, vocabulary, "train", preset.shards)
seconds = time.perf_counter() - start
row = {"seconds": seconds, "rows": shards.facts["counts"]["rows"], "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
print(json.dumps(row))
