"""A chain is computed again from what is there, and what no key covers is held to what one does."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.data.corpus import fetch_corpus
from pipeline.lineage import chain, fault_of, fault_of_text, link_to
from pipeline.settings import load_preset
from pipeline.storage import MANIFEST, Output, Recipe, Store
from tests.conftest import Built, build, random_text


def edit(output: Output, change: Callable[[dict[str, Any]], object]) -> Output:
    """Change a manifest. Returns the output as it is then."""
    path = Path(output.address) / MANIFEST
    manifest = json.loads(path.read_text("utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), "utf-8")
    return Output(output.address, manifest)


def fault(built: Built, output: Output, **wanted: str) -> str:
    return fault_of(built.store, link_to(built.store, "", output.stage, output.key, wanted))


@pytest.fixture(params=["paragraph", "article"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Built:
    """A text of one's own without a valid split, through the real stages."""
    words = random_text(120, 1).replace("\n \n", "\n\n")
    (tmp_path / "birds.txt").write_text(words, "utf-8")
    preset = load_preset("tiny" if request.param == "paragraph" else "mini").override(
        vocabulary={"kind": "words", "min_count": 1}, shards={"buckets": 3, "held_out_buckets": 2, "pairs": "neighbours"}
    )
    assert preset.text.documents == request.param
    store = Store(str(tmp_path / "store"))
    return build(store, fetch_corpus(store, str(tmp_path / "birds.txt")).output, preset)


def test_a_corpus_whose_valid_split_was_taken_out_of_train_holds(own: Built) -> None:
    assert own.corpus.facts["valid_held_out"]
    for output in (own.corpus, own.vocabulary, own.train, own.valid):
        assert fault(own, output) == ""
    assert [fault_of_text(shards, own.corpus) for shards in (own.train, own.valid)] == ["", ""]


def test_a_text_that_was_changed_with_its_digests_does_not_give_the_buckets(own: Built) -> None:
    path = Path(own.corpus.file("valid.tokens"))
    path.write_text(path.read_text("utf-8").replace("crane", "brane", 1), "utf-8")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def cover(manifest: dict[str, Any]) -> None:
        manifest["facts"]["valid"]["sha256"] = digest
        next(entry for entry in manifest["files"] if entry["name"] == path.name)["sha256"] = digest

    corpus = edit(own.corpus, cover)
    assert fault(own, corpus) == "", "no key covers what was counted"
    assert fault_of_text(own.train, corpus) == ""
    assert "valid.tokens gives" in fault_of_text(own.valid, corpus)


def test_the_buckets_of_a_set_are_its_own(small_built: Built) -> None:
    train, valid = small_built.train, small_built.valid
    whole = edit(train, lambda manifest: manifest["facts"].update(buckets=valid.facts["buckets"]))
    assert "its buckets' contents give" in fault(small_built, whole)
    both = {name: valid.facts[name] for name in ("buckets", "contents")}
    whole = edit(train, lambda manifest: manifest["facts"].update(both))
    assert fault(small_built, whole) == "", "they hold by themselves"
    assert "bucket 0 is" in fault_of_text(whole, small_built.corpus)
    assert f"lists 1 buckets, wanted {len(train.facts['buckets'])}" in fault_of_text(
        edit(train, lambda manifest: manifest["facts"].update(buckets=train.facts["buckets"][:1])), small_built.corpus
    )


@pytest.mark.parametrize("name", ["facts", "inputs", "settings", "files"])
def test_a_manifest_that_was_edited_is_a_fault_and_no_traceback(small_built: Built, name: str) -> None:
    for value in ({}, None, "text", [1], []):
        assert (
            fault(small_built, edit(small_built.vocabulary, lambda manifest, value=value: manifest.update({name: value})))
            or name == "facts"
        )
        changed = edit(small_built.train, lambda manifest, value=value: manifest.update({name: value}))
        assert fault(small_built, changed) or (name == "files" and not value), "a set has no file of its own"


def test_the_chain_goes_on_through_the_encoder_that_another_started_from(tmp_path: Path) -> None:
    store = Store(str(tmp_path))

    def publish(stage: str, inputs: dict[str, str], facts: dict[str, Any] | None = None) -> str:
        return store.make(Recipe(stage, 1, {}, inputs), lambda folder: facts or {}).key

    old, new = publish("corpus", {"train": "1"}), publish("corpus", {"train": "2"})
    words = publish("vocabulary", {"corpus": old})
    keys, lineage = [], dict[str, str]()
    for corpus in (old, new):
        made_from = {"train": publish("shards", {"corpus": corpus, "vocabulary": words})} | ({"encoder": keys[-1]} if keys else {})
        run = publish("run", made_from)
        lineage = {"corpus": corpus, "vocabulary": words, "run": run, **made_from}
        keys.append(publish("encoder", {"run": run, "vocabulary": words}, {"lineage": lineage}))
    links = chain(store, keys[1], lineage)
    assert [link.role for link in links] == [
        *("encoder", "training run", "encoder that it started from", "shards of train"),
        *("vocabulary", "corpus of the vocabulary", "corpus", "training run, start 1", "shards of train, start 1"),
    ]
    assert links[5].key == old
    assert all(link.output for link in links)
    store.delete(store.address("encoder", keys[0]))
    assert [link.role for link in chain(store, keys[1], lineage) if link.output is None] == ["encoder that it started from"]
