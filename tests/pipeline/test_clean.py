"""What is kept is reached by keys; what goes, goes whole and in an order that a kill cannot hurt."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipeline import clean
from pipeline.clean import Entry, days_ago, keys_in, removable, remove, survey
from pipeline.data import sample, wikitext
from pipeline.data.build import build_shards
from pipeline.errors import SettingsError
from pipeline.storage import MANIFEST, Output, Recipe, Store, open_output, verify_digests

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=1)  # nothing is newer
KEY = "0123456789abcdef0123"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store") if request.param == "local" else f"memory://{uuid4().hex}")


def make(store: Store, stage: str, *inputs: Output, facts: dict[str, Any] | None = None, **recorded: Any) -> Output:
    """An output of some inputs, another at every call."""

    def build(folder: Path) -> dict[str, Any]:
        (folder / "data").write_bytes(bytes(100))
        return facts or {}

    recorded.setdefault("source", str(Path(__file__).parent))
    recipe = Recipe(stage, 1, {"call": uuid4().hex}, {f"{i}": output.key for i, output in enumerate(inputs)})
    return store.make(recipe, build, recorded=recorded)


def checkpoint(store: Store, key: str, step: int) -> None:
    with store.staging() as folder:
        (folder / "state").write_bytes(bytes(10))
        head = {"stage": "checkpoints", "key": key, "step": step, "facts": {}}
        store.publish_at(f"{store.root}/checkpoints/{key}/step-{step:09d}", folder, head)


def chain(store: Store) -> dict[str, Output]:
    """One output of each stage, from a corpus to an encoder."""
    corpus = make(store, "corpus")
    vocabulary = make(store, "vocabulary", corpus)
    bucket = make(store, "bucket", vocabulary)
    shards = make(store, "shards", corpus, vocabulary, facts={"buckets": [{"key": bucket.key, "rows": 3}]})
    run = make(store, "run", shards)
    encoder = make(store, "encoder", run, vocabulary)
    return {output.stage: output for output in (corpus, vocabulary, bucket, shards, run, encoder)}


def names(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.stage, entry.key) for entry in entries]


def plan(store: Store, *in_use: str, since: datetime = LATER) -> list[Entry]:
    return removable(survey(store, store), in_use, since)


def age(path: Path, days: float) -> None:
    """Make a folder's files as old."""
    seconds = (NOW - timedelta(days=days)).timestamp()
    for entry in [path, *path.rglob("*")]:
        os.utime(entry, (seconds, seconds))


def test_a_key_in_use_keeps_all_that_it_leads_to(store: Store) -> None:
    kept, other = chain(store), chain(store)
    assert {key for _, key in names(plan(store, kept["encoder"].key))} == {output.key for output in other.values()}
    assert {stage for stage, _ in names(plan(store, kept["shards"].key, other["encoder"].key))} == {"run", "encoder"}
    assert not plan(store, kept["encoder"].key, other["encoder"].key)


def test_a_bucket_that_a_kept_set_shares_stays(store: Store) -> None:
    vocabulary = make(store, "vocabulary")
    shared, own = (make(store, "bucket", vocabulary) for _ in range(2))
    kept = make(store, "shards", vocabulary, facts={"buckets": [{"key": shared.key}]})
    gone = make(store, "shards", vocabulary, facts={"buckets": [{"key": shared.key}, {"key": own.key}]})
    assert names(plan(store, kept.key)) == [("shards", gone.key), ("bucket", own.key)]


def test_what_is_new_keeps_itself_and_all_that_it_leads_to(store: Store) -> None:
    old, new = chain(store), chain(store)
    young = {new["run"].key}
    entries = [replace(entry, changed=NOW if entry.key in young else NOW - timedelta(days=30)) for entry in survey(store, store)]
    found = {key for _, key in names(removable(entries, [], NOW - timedelta(days=7)))}
    assert found == {output.key for output in old.values()} | {new["encoder"].key}


def test_what_a_killed_run_sorted_goes_alone(store: Store) -> None:
    first = chain(store)
    left = make(store, "sorted", first["corpus"])
    assert names(plan(store, first["encoder"].key)) == [("sorted", left.key)]


def test_dependants_go_before_what_they_depend_on(store: Store) -> None:
    first = chain(store)
    run = make(store, "run", first["shards"], first["encoder"])  # goes on from an encoder
    encoder = make(store, "encoder", run, first["vocabulary"])
    checkpoint(store, run.key, 3)
    order = [key for _, key in names(plan(store))]
    for output in (*first.values(), run, encoder):
        for key in keys_in([output.manifest["inputs"], output.manifest["facts"]]):
            assert order.index(output.key) < order.index(key)


def test_a_kill_in_between_leaves_nothing_that_leads_to_what_is_gone(store: Store) -> None:
    chain(store)
    chain(store)
    while found := plan(store):
        remove(found[0])
        left = {entry.key: entry for entry in survey(store, store)}
        for entry in left.values():
            assert entry.links <= left.keys()
            verify_digests(open_output(entry.address))
    assert not survey(store, store)


def test_what_stays_opens_and_verifies(small_built: Any) -> None:
    store = small_built.store
    again = build_shards(store, small_built.corpus, small_built.vocabulary, "train", small_built.preset.override(shards={"seed": 5}))
    found = plan(store, small_built.train.key, small_built.valid.key)
    assert {stage for stage, _ in names(found)} == {"shards", "bucket"}
    for entry in found:
        remove(entry)
    assert store.find("shards", again.key) is None
    for entry in survey(store, store):
        verify_digests(open_output(entry.address))
    found_again = build_shards(store, small_built.corpus, small_built.vocabulary, "train", small_built.preset)
    assert found_again.found
    assert len(survey(store, store)) == 2 + 2 + 4, "corpus, vocabulary, two sets, two buckets each"


@pytest.mark.parametrize(
    ("recorded", "goes"),
    [
        ({"name": "own", "source": str(Path(__file__).parent)}, True),
        ({"name": sample.NAME, "source": "the standard library of Python 3.11.9"}, True),
        ({"name": wikitext.NAME, "source": str(Path(__file__).parent)}, False),
        ({"name": "own", "source": "https://example.org/own.zip"}, False),
        ({"name": "own", "source": "s3://bucket/own.zip"}, False),
        ({"name": "own", "source": "/no/longer/there"}, False),
        ({"name": "own", "source": None}, False),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_corpus_that_may_be_the_only_copy_stays(store: Store, recorded: dict[str, str | None], goes: bool) -> None:
    corpus = make(store, "corpus", **recorded)
    vocabulary = make(store, "vocabulary", corpus)
    assert names(plan(store)) == [("vocabulary", vocabulary.key)] + [("corpus", corpus.key)] * goes


def test_a_corpus_whose_manifest_says_nothing_stays(store: Store) -> None:
    corpus = make(store, "corpus", name="own", source="https://example.org/own.zip")
    store.overwrite(corpus.file(MANIFEST), b"{")
    assert not plan(store)


@pytest.mark.parametrize("manifest", [None, b"{", b"[]", b'{"files": 3}'], ids=str)
def test_what_is_not_finished_goes_by_its_age(tmp_path: Path, manifest: bytes | None) -> None:
    store = Store(str(tmp_path))
    folder = tmp_path / "vocabulary" / KEY
    folder.mkdir(parents=True)
    (folder / "words.txt").write_bytes(bytes(1000))
    if manifest is not None:
        (folder / MANIFEST).write_bytes(manifest)
    assert not plan(store, since=NOW - timedelta(days=1))
    age(folder, 2)
    (found,) = plan(store, since=NOW - timedelta(days=1))
    assert found.size == 1000 + len(manifest or b"")
    assert (NOW - found.changed).days == 2
    remove(found)
    assert not folder.exists()


def test_an_empty_folder_has_an_age_too(tmp_path: Path) -> None:
    (tmp_path / "run" / KEY).mkdir(parents=True)
    assert not plan(Store(str(tmp_path)), since=NOW - timedelta(days=1))
    age(tmp_path / "run" / KEY, 2)
    assert names(plan(Store(str(tmp_path)), since=NOW - timedelta(days=1))) == [("run", KEY)]


def test_checkpoints_go_by_the_age_of_the_newest_and_keep_their_run_s_inputs(small_built: Any, tmp_path: Path) -> None:
    store, local = small_built.store, Store(str(tmp_path))
    run = small_built.write_run(tmp_path / "work")
    checkpoint(store, run.key, 3)
    checkpoint(store, run.key, 6)
    since = NOW - timedelta(days=1)
    entries = [
        entry if entry.stage in ("work", "checkpoints") else replace(entry, changed=NOW - timedelta(9)) for entry in survey(store, local)
    ]
    assert not removable(entries, [], since)
    root = Path(store.root) / "checkpoints" / run.key
    age(root / "step-000000003", 5)
    age(Path(run.work), 5)
    entries = [
        replace(entry, changed=min(entry.changed, NOW - timedelta(9))) if entry.stage == "shards" else entry
        for entry in survey(store, local)
    ]
    assert not removable(entries, [], since), "the other checkpoint is new"
    age(root, 5)
    assert names(removable(survey(store, local), [], since)) == [("checkpoints", run.key), ("work", run.key)]
    assert not removable(survey(store, local), [run.key], LATER), "its key keeps them, and through run.json its shards"
    for entry in removable(survey(store, local), [], LATER):
        remove(entry)
    assert not root.exists() and not Path(run.work).exists()
    assert [entry.stage for entry in survey(store, local)] == ["corpus"], "nobody knows where it came from"


def test_checkpoints_lose_their_manifests_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        checkpoint(store, KEY, step)
    deleted: list[str] = []
    monkeypatch.setattr(store, "delete", deleted.append)
    (entry,) = plan(store)
    assert (entry.stage, entry.key) == ("checkpoints", KEY)
    remove(entry)
    assert [address.removeprefix(entry.address) for address in deleted] == ["/step-000000001", "/step-000000002", ""]


def test_who_is_at_an_output_is_known_by_its_lease(store: Store) -> None:
    assert clean.at_work(store) == []
    store.create(f"{store.root}/leases/shards-{KEY}.12", b"not a lease")
    with store.lease("run", KEY):
        (told,) = clean.at_work(store)
    assert told.startswith(f"process {os.getpid()} on ")
    assert told.endswith(f" at run-{KEY}")


def test_a_long_line_of_warm_starts_is_no_obstacle(store: Store) -> None:
    run = make(store, "run")
    for _ in range(600 if store.local_root else 3):
        run = make(store, "run", run)
    assert len(plan(store)) == (601 if store.local_root else 4)


def test_only_folders_of_known_stages_whose_names_are_keys_are_looked_at(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    for name in (f"mlflow/{KEY}", f"Corpus/{KEY}", "corpus/mine", f"corpus/{KEY}0", f"corpus/{KEY.upper()}", f"corpus/mine/{KEY}", KEY):
        (root / name).mkdir(parents=True)
        (root / name / "wiki.train.tokens").write_text("text")
    (root / "run").mkdir()
    (root / "run" / KEY).write_text("a file")
    shutil.copytree(root / "corpus" / "mine", elsewhere)
    (root / "bucket").mkdir()
    (root / "bucket" / KEY).symlink_to(elsewhere)
    assert not survey(Store(str(root)), Store(str(root)))


def test_keys_are_found_however_deep() -> None:
    other = KEY[::-1]
    assert keys_in({"a": [{"key": KEY, "rows": 3}], "b": {"c": (other,)}, "d": f"x{KEY}", "e": KEY[1:], "f": None}) == {KEY, other}
    assert keys_in(None) == set()


@pytest.mark.parametrize("days", [-1, clean.MAX_DAYS + 1, 10**30])
def test_days_have_limits(days: int) -> None:
    with pytest.raises(SettingsError, match=f"^days: got {days}, wanted a number from 0 to {clean.MAX_DAYS}$"):
        days_ago(days)


def test_sizes_are_those_of_the_files(store: Store, publish: Callable[..., Output]) -> None:
    corpus = publish(store, "a train text\n", "valid\n")
    (entry,) = survey(store, store)
    assert entry.size == len("a train text\n") + len("valid\n")
    manifest = store.read(corpus.file(MANIFEST))
    assert manifest is not None
    assert store.usage(entry.address)[0] == entry.size + len(manifest)
    assert json.loads(manifest)["recorded"]["created"] == entry.changed.isoformat(timespec="seconds")
    assert store.usage(f"{store.root}/nowhere") == (0, None)
