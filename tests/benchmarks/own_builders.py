"""Shard building alone by some processes of Prefect's, each held to a core of its own and already started.

    python own_builders.py CORPUS VOCABULARY STORE PROCESSES BUCKETS

CORPUS and VOCABULARY are folders of published outputs, STORE a new folder. By the preset `tiny`. Prints one JSON object.
"""

import json
import os
import sys
import time
from contextlib import nullcontext

from prefect import flow

from flows import logs
from flows.builders import builders
from flows.stages import stage
from pipeline.data.build import build_shards
from pipeline.settings import BuilderSettings, load_preset
from pipeline.storage import Store, open_output

_STARTED_SECONDS = 5.0  # that each waits, so that no process takes two


def hold(core: int) -> int:
    """Keep the process that gets this to one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    time.sleep(_STARTED_SECONDS)
    return os.getpid()


@stage("build")
def build(corpus: str, vocabulary: str, root: str, processes: int, buckets: int) -> dict[str, float]:
    preset = load_preset("tiny").override(shards={"buckets": buckets})
    with builders(BuilderSettings(runner="processes", workers=processes)) as those:
        started = set(those.map(hold, range(processes)))
        assert len(started) == processes, "one process took the place of two"
        start = time.perf_counter()
        inputs = open_output(corpus), open_output(vocabulary)
        shards = build_shards(Store(root), *inputs, "train", preset, builders=lambda: nullcontext(those))
        return {"seconds": time.perf_counter() - start, "rows": shards.facts["counts"]["rows"]}


@flow(name="builders")
def measure(arguments: list[str]) -> dict[str, float]:
    logs.set_up()
    corpus, vocabulary, root, processes, buckets = arguments
    return build(corpus, vocabulary, root, int(processes), int(buckets))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:])))
