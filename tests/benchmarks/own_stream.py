"""Many sentences of a text through the command's own path, timed in a process of its own.

    python own_stream.py ENCODER TEXT COUNT TO

TEXT has a sentence a line and is read over again until there are COUNT; TO is a `.npy`, `.jsonl` or `.parquet` that is written.
Prints one JSON object: seconds, sentences/s, tokens, and the peak memory of the process, torch and the encoder included.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pipeline.encoding import Encoder, Input
from pipeline.encoding_inputs import Source
from pipeline.encoding_outputs import write_vectors
from pipeline.streaming import Stream


def repeated(address: str) -> Iterator[Input]:
    """The sentences of a text, again and again."""
    while True:
        yield from Source(address).read()


if __name__ == "__main__":
    folder, text, count, to = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    encoder = Encoder.load(folder)
    stream = Stream(encoder, truncate=True)
    begin = time.perf_counter()
    write_vectors(to, stream.encode(islice(repeated(text), count)), encoder, pooled=True)
    seconds = time.perf_counter() - begin
    row = {
        "sentences": stream.inputs,
        "tokens": stream.tokens,
        "seconds": seconds,
        "sentences_per_second": stream.inputs / seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "megabytes_written": to.stat().st_size / 1e6,
    }
    print(json.dumps(row))
