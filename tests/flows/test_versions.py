"""Versions of a name, what a run builds on, and the curve of a run that was killed and went on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows import registry, versions
from flows.metrics import Curve, send_gently
from flows.places import tracking_uri
from flows.versions import Earlier, find_earlier, link_tags
from pipeline.errors import RegistryError
from pipeline.settings import load_preset
from pipeline.storage import Output, Store

NAME = "bert-test"
TEXT = load_preset("tiny").text


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowClient]:
    """Three versions in a database of their own: of text a, of text b, and of text b again; and one made by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(tmp_path_factory.mktemp("artifacts")))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        with registry.connect() as client:
            client.create_registered_model(NAME)
            for number, text in enumerate("abb", 1):
                tags = {
                    "corpus_key": text,
                    "vocabulary_key": f"words-{number}",
                    "encoder_key": f"encoder-{number}",
                    "tokens": str(1000 * number),
                }
                client.create_model_version(NAME, "file:///nowhere", tags=tags)
            client.set_registered_model_alias(NAME, "best", "2")
            client.create_registered_model("by-hand")
            client.create_model_version("by-hand", "file:///nowhere")
        yield MlflowClient(tracking_uri())


def numbers(earlier: Earlier) -> tuple[str | None, str | None, str | None]:
    found = (earlier.newest, earlier.vocabulary, earlier.encoder)
    newest, vocabulary, encoder = (version.number if version else None for version in found)
    return newest, vocabulary, encoder


@pytest.mark.parametrize(
    ("corpus", "vocabulary_from", "warm_start", "wanted"),
    [
        ("c", None, None, ("3", None, None)),
        ("c", "previous", None, ("3", "3", None)),
        ("b", "previous", "previous", ("3", "1", "1")),
        ("a", "previous", "previous", ("3", "3", "3")),
        ("c", f"models:/{NAME}/1", f"models:/{NAME}@best", ("3", "1", "2")),
    ],
)
def test_the_version_before_is_the_newest_of_another_text(
    client: MlflowClient, corpus: str, vocabulary_from: str | None, warm_start: str | None, wanted: tuple[str | None, ...]
) -> None:
    assert numbers(find_earlier(NAME, corpus, vocabulary_from, warm_start)) == wanted


def test_nothing_builds_on_what_was_worse_or_rolled_back(client: MlflowClient) -> None:
    name = "bert-judged"
    client.create_registered_model(name)
    judged: list[dict[str, str]] = [{}, {"gate.decision": "champion"}, {"gate.decision": "challenger"}, {"rolled_back": "yesterday"}]
    for number, tags in enumerate(judged, 1):
        client.create_model_version(name, "file:///nowhere", tags={"corpus_key": f"text-{number}"} | tags)
    found = find_earlier(name, "another", "previous", "previous")
    assert numbers(found) == ("4", "2", "2")
    assert numbers(find_earlier(name, "text-2", "previous", None)) == ("4", "1", None), "one that is not decided on yet"


def test_a_name_without_a_version_has_nothing_before(client: MlflowClient) -> None:
    assert find_earlier("bert-nobody", "a", "previous", "previous") == Earlier(None, None, None)
    assert versions.newest("bert-nobody") is None


def test_keys_are_those_that_the_version_was_made_from(client: MlflowClient) -> None:
    earlier = find_earlier(NAME, "c", "previous", f"models:/{NAME}/2")
    assert (earlier.vocabulary_key, earlier.encoder_key) == ("words-3", "encoder-2")
    with pytest.raises(RegistryError, match="models:/by-hand/1: has no tag vocabulary_key"):
        assert find_earlier(NAME, "c", "models:/by-hand/1", None).vocabulary_key


@pytest.mark.parametrize("address", ["models:/bert-test/9", "models:/bert-nobody/1", "models:/bert-test@none", "bert-test", "models:/"])
def test_an_address_without_a_version_is_one_line(client: MlflowClient, address: str) -> None:
    with pytest.raises(RegistryError) as caught:
        versions.at(address)
    assert "\n" not in str(caught.value)


def test_more_versions_than_a_page_holds_come_newest_first(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_PAGE", 2)
    assert [version.number for version in versions.newest_first(NAME)] == ["3", "2", "1"]


def test_a_link_says_what_changed_as_far_as_that_is_known(client: MlflowClient, publish: Callable[..., Output], tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    old, new = (publish(store, text) for text in ("one . two . \n", "one . two . \nthree . four . \n"))
    before = registry.Version(NAME, "3", "run", {"corpus_key": old.key, "tokens": "3000"})
    assert link_tags(store, before, {"corpus_key": new.key, "tokens": "2990"}, TEXT) == {
        "previous_version": "3",
        "change_documents": "1 to 2: 1 came, 0 went",
        "change_tokens": "3,000 to 2,990 (-10)",
    }
    (Path(old.address) / "train.tokens").unlink()
    assert "change_documents" not in link_tags(store, before, {"corpus_key": new.key}, TEXT), "a damaged one says nothing"
    assert link_tags(store, versions.at("models:/by-hand/1"), {"tokens": "5"}, TEXT) == {"previous_version": "1"}
    assert link_tags(store, None, {"tokens": "5"}, TEXT) == {}


def test_a_text_that_is_again_what_it_was_is_known(client: MlflowClient) -> None:
    found = [versions.trained_on(NAME, text) for text in "abc"]
    assert [version and version.number for version in found] == ["1", "3", None]


def row(kind: str, step: int) -> dict[str, Any]:
    return {"kind": kind, "step": step, "mlm_loss": 10.0 - step, "next_sentence_loss": 0.7}


def test_a_run_that_was_killed_goes_on_with_each_step_once(client: MlflowClient) -> None:
    first = registry.start_run("a run", {"training.steps": 5}, {"run_key": "killed"})
    Curve(first).send([row("train", 1), row("train", 2), row("held_out", 2), row("train", 3)])
    again = registry.start_run("a run", {"training.steps": 5}, {"run_key": "killed"})
    assert again == first
    assert registry.start_run("a run", {}, {"run_key": "another"}) != first
    curve = Curve(again)
    curve.send([row("train", 1), row("train", 2), row("held_out", 2)])
    curve.send([row("train", 3), row("train", 4), row("held_out", 4), row("train", 5)])
    assert [entry.step for entry in client.get_metric_history(again, "train/mlm_loss")] == [1, 2, 3, 4, 5]
    assert [entry.step for entry in client.get_metric_history(again, "held_out/mlm_loss")] == [2, 4]
    registry.end_run(again)
    assert registry.start_run("a run", {}, {"run_key": "killed"}) != first, "what has finished is not gone on with"


def test_metrics_wait_for_a_registry_that_is_away(client: MlflowClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = registry.start_run("a run", {}, {"run_key": "away"})
    curve = Curve(run)
    with monkeypatch.context() as away:
        away.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        away.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        assert "http://127.0.0.1:9" in (send_gently(curve, [row("train", 1)]) or "")
    assert send_gently(curve, [row("train", 2)]) is None
    assert [entry.step for entry in client.get_metric_history(run, "train/mlm_loss")] == [1, 2]


def test_the_database_is_made_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was killed in mid-migration has left nothing that the next run would open."""
    monkeypatch.setenv("BERT_STORE", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with registry.connect():
        pass
    assert (tmp_path / "mlflow.db").stat().st_nlink == 1
    assert not list((tmp_path / ".staging").iterdir())
