"""What is asked of every store: each call once, two processes at one lease, and the way from a text to an encoder."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline.clean import removable, survey
from pipeline.data.documents import DocumentReader
from pipeline.encoding import Encoder
from pipeline.export import export_encoder, find_encoder
from pipeline.inspection import count_shards, draw_examples, find_shards
from pipeline.settings import Preset
from pipeline.storage import Output, Recipe, Store, open_output, verify_digests
from pipeline.training.run import read_metrics
from tests.conftest import build

RECIPE = Recipe("things", 1, {"size": 3}, {})
CONTEND = """
import sys, time
from pathlib import Path
from pipeline import lease
from pipeline.storage import Store
lease.POLL_SECONDS = 0.05
store, log = Store(sys.argv[1]), Path(sys.argv[2])
for _ in range(3):
    with store.lease("run", "abc"):
        with log.open("a") as file:
            file.write("in\\n")
        time.sleep(0.01)
        with log.open("a") as file:
            file.write("out\\n")
"""


def write(folder: Path) -> dict[str, int]:
    (folder / "a.txt").write_text("alpha")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.bin").write_bytes(bytes(1000))
    (folder / "z.txt").write_text("omega")
    return {"rows": 2}


def refuse(folder: Path) -> dict[str, int]:
    raise AssertionError("built again")


def use(store: Store) -> None:
    """Every call that a store makes."""
    made = store.make(RECIPE, write, verify=True)
    assert store.make(RECIPE, refuse, verify=True).manifest == made.manifest
    verify_digests(open_output(made.address))
    with store.local(made) as folder:
        assert (folder / "a.txt").read_text() == "alpha" and (folder / "sub" / "b.bin").read_bytes() == bytes(1000)
    store.overwrite(f"{store.root}/note", b"1")
    store.overwrite(f"{store.root}/note", b"2")
    assert store.read(f"{store.root}/note") == b"2" and store.read(f"{store.root}/none") is None
    assert store.children(f"{store.root}/things") == [RECIPE.key] and store.children(f"{store.root}/none") == []
    size, written = store.usage(made.address)
    assert size > 1010 and written is not None and abs(datetime.now(UTC) - written) < timedelta(minutes=5)
    store.delete(made.address)
    assert store.find("things", RECIPE.key) is None and not store.children(made.address)
    store.remove(f"{store.root}/note")
    assert not store.children(f"{store.root}/leases")


def contend(store: Store, log: Path) -> None:
    """Two processes take one lease in turns, never both at once."""
    children = [subprocess.Popen([sys.executable, "-c", CONTEND, store.root, str(log)]) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert log.read_text().split() == ["in", "out"] * 6
    assert not store.children(f"{store.root}/leases"), "nothing is left of leases that were given up"


def go_the_whole_way(store: Store, work: Path, corpus: Output, preset: Preset, train: Callable[..., Any]) -> None:
    """From a published corpus to vectors, then what a person looks at and what a tidying-up would remove."""
    built = build(store, corpus, preset)
    run = built.write_run(work, steps=2)
    done = train(run)
    assert done.returncode == 0, done.stderr
    finished = store.find("run", run.key)
    assert finished is not None
    assert [row["step"] for row in read_metrics(finished) if "step" in row][-1] == 2
    encoder = export_encoder(store, finished, built.vocabulary, corpus)
    assert find_encoder(store, encoder.key).manifest == encoder.manifest
    with store.local(encoder) as folder:
        assert Encoder.load(folder).encode("a crane is flying").shape == (1, 6, preset.model.hidden_size)
    shards = find_shards(store, built.train.address)
    assert find_shards(store, None).output.key == shards.output.key == find_shards(store, shards.output.key[:8]).output.key
    assert len(draw_examples(shards, 3, 0)) == 3
    assert count_shards(shards).lengths.sum() == built.train.facts["counts"]["rows"]
    assert sum(map(len, DocumentReader.of(corpus, "train", preset.text).blocks())) == corpus.manifest["files"][0]["size"]
    local = Store(str(work))
    entries = survey(store, local)
    assert {entry.stage for entry in entries} >= {"corpus", "vocabulary", "bucket", "shards", "run", "encoder"}
    assert not removable(entries, [encoder.key], datetime.now(UTC) + timedelta(days=1))
