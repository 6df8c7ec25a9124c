"""`lineage` names the first link that does not hold; `compare` says how two versions differ."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest

from flows import aliases, cli, code, models, registry
from flows.places import tracking_uri
from pipeline.export import export_encoder
from pipeline.settings import Preset
from pipeline.storage import MANIFEST, Output, Recipe, Store
from tests.conftest import build, publish_text, random_text, train_in_a_child

NAME, OTHER = "bert-origin", "bert-other"
HEAD = "bert-origin-labels"
_OUTPUTS = ["encoder", "training run", "shards of train", "shards of valid", "vocabulary", "corpus"]
LINKS = ["encoder in the registry", *_OUTPUTS, "text of train", "text of valid"]


@dataclass(frozen=True)
class Origin:
    """A store with all that two versions were made from, and the registry that has them; tests work on copies of the store."""

    store: Path
    tracking: str
    keys: dict[str, str]

    @property
    def files(self) -> Path:
        """Version 1 as it lies in the registry."""
        return Path(mlflow.artifacts.download_artifacts(f"models:/{NAME}/1")) / "artifacts" / "encoder"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory, small_preset: Preset) -> Origin:
    folder = tmp_path_factory.mktemp("origin")
    store = Store(str(folder / "store"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(folder / "registry"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for seed, name in enumerate((NAME, OTHER)):
            text = random_text(40, 1) + " a heron is flying . it left . \n" * 3 * seed
            built = build(store, publish_text(store, text, random_text(10, 2)), small_preset)
            run = built.write_run(folder / "work", steps=3, seed=seed)
            done = train_in_a_child(run)
            assert done.returncode == 0, done.stderr
            finished = store.find("run", run.key)
            assert finished is not None
            encoder = export_encoder(store, finished, built.vocabulary, built.corpus)
            texts = {f"text.{name}": value for name, value in built.preset.text.as_dict().items()}
            tags = {
                "run_key": run.key,
                "corpus": "birds",
                "valid_shards_key": built.valid.key,
                "corpus_key": built.corpus.key,
                "vocabulary_key": built.vocabulary.key,
            }
            run_id = registry.start_run("a run", {"preset": "tiny", "training.seed": seed, **texts}, tags | code.code_tags())
            rows = [json.loads(line) for line in Path(finished.file("metrics.jsonl")).read_text("utf-8").splitlines()]
            registry.log_rows(run_id, rows)
            registry.end_run(run_id)
            version_tags = tags | {"encoder_key": encoder.key}
            made = models.register(name, run_id, Path(encoder.address), tags=version_tags, description=lambda _: "", tables={}, figures={})
            if seed == 0:
                aliases.promote(made)
                keys = {name: str(key) for name, key in encoder.facts["lineage"].items()} | {"encoder": encoder.key}
                keys["finetuned"] = fine_tuned(store, encoder, made)
        return Origin(folder / "store", tracking_uri(), keys)


def fine_tuned(store: Store, encoder: Output, version: registry.Version) -> str:
    """Register what stands for a fine-tuned encoder: its outputs, whose files are nothing that could be loaded. Returns its key."""

    def build(folder: Path) -> dict[str, object]:
        (folder / "head.json").write_text("{}", "utf-8")
        return {}

    labelled = store.make(Recipe("labelled", 1, {}, {}), build)
    head = store.make(Recipe("finetuned", 1, {}, {"encoder": encoder.key, "labelled": labelled.key}), build)
    run_id = registry.start_run("a head", {}, {"run_key": head.key})
    tags = {"encoder_key": encoder.key, "encoder_version": version.uri, "finetuned_key": head.key}
    models.register(HEAD, run_id, Path(head.address), tags=tags, description=lambda _: "", tables={}, figures={}, kind=models.FINETUNED)
    return head.key


@pytest.fixture
def copied(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the store, which the commands of this test use."""
    shutil.copytree(origin.store, tmp_path / "store")
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", origin.tracking)
    return tmp_path / "store"


def test_the_chain_leads_to_the_bytes_of_the_corpus(origin: Origin, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lineage", f"models:/{NAME}@champion", "--verify"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"version                      models:/{NAME}/1 (champion)\n")
    places = [said.index(f"\n{name:<28} ") for name in LINKS]
    assert places == sorted(places)
    assert said.count(" holds\n") == len(LINKS)
    for stage, name in (("encoder", "encoder"), ("run", "run"), ("shards", "train"), ("shards", "valid"), ("vocabulary", "vocabulary")):
        assert f"{stage}/{origin.keys[name]}\n" in said
    corpus = json.loads((copied / "corpus" / origin.keys["corpus"] / MANIFEST).read_text("utf-8"))
    for entry in corpus["files"]:
        assert f"{entry['name']} sha256 {entry['sha256']}" in said
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(code.__file__).parent).stdout.strip()
    assert f"code                         commit {commit or code.UNKNOWN}" in said


def flip(path: Path) -> None:
    """Change one byte, not the size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    manifest = json.loads(path.read_text("utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), "utf-8")


Damage = Callable[[Path, dict[str, str]], object]
DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "weights": (lambda at, keys: flip(at / "encoder" / keys["encoder"] / "model.safetensors"), "encoder", "sha256"),
    "metrics": (lambda at, keys: flip(at / "run" / keys["run"] / "metrics.jsonl"), "training run", "sha256"),
    "a shard": (lambda at, keys: flip(next(bucket_of(at, keys["valid"]).glob("*.parquet"))), "shards of valid", "sha256"),
    "words": (lambda at, keys: flip(at / "vocabulary" / keys["vocabulary"] / "tokenizer.json"), "vocabulary", "sha256"),
    "the text": (lambda at, keys: flip(at / "corpus" / keys["corpus"] / "train.tokens"), "corpus", "sha256"),
    "a setting": (
        lambda at, keys: edit(at / "run" / keys["run"] / MANIFEST, lambda manifest: manifest["settings"].update(training={})),
        "training run",
        "its settings and inputs give the key",
    ),
    "an input": (
        lambda at, keys: edit(at / "shards" / keys["train"] / MANIFEST, lambda manifest: manifest["inputs"].update(vocabulary="0" * 20)),
        "shards of train",
        "its settings and inputs give the key",
    ),
    "a list of buckets": (
        lambda at, keys: edit(
            at / "shards" / keys["train"] / MANIFEST,
            lambda manifest: manifest["facts"].update(json.loads((at / "shards" / keys["valid"] / MANIFEST).read_text("utf-8"))["facts"]),
        ),
        "text of train",
        "bucket 0 is",
    ),
    "what was counted": (
        lambda at, keys: edit(at / "vocabulary" / keys["vocabulary"] / MANIFEST, lambda manifest: manifest["facts"].clear()),
        "vocabulary",
        "its manifest is not readable",
    ),
    "a shard that is gone": (lambda at, keys: shutil.rmtree(bucket_of(at, keys["train"])), "shards of train", "no manifest.json"),
    "a file that is gone": (lambda at, keys: (at / "vocabulary" / keys["vocabulary"] / "tokenizer.json").unlink(), "vocabulary", "missing"),
    "no JSON": (lambda at, keys: (at / "corpus" / keys["corpus"] / MANIFEST).write_text("{", "utf-8"), "corpus", "not a readable manifest"),
}


def bucket_of(at: Path, shards: str) -> Path:
    manifest = json.loads((at / "shards" / shards / MANIFEST).read_text("utf-8"))
    return at / "bucket" / manifest["facts"]["buckets"][0]["key"]


@pytest.mark.parametrize("what", DAMAGES)
def test_the_first_link_that_does_not_hold_is_named(origin: Origin, copied: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, link, why = DAMAGES[what]
    damage(copied, origin.keys)
    with pytest.raises(SystemExit) as ended:
        cli.main(["lineage", f"models:/{NAME}/1", "--verify"])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.err == f"error: the first link that does not hold is: {link}\n"
    (line,) = (line for line in said.out.splitlines() if "DOES NOT HOLD" in line)
    assert why in line


def test_two_broken_links_name_the_first(origin: Origin, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(copied / "corpus" / origin.keys["corpus"] / "train.tokens")
    flip(copied / "run" / origin.keys["run"] / "metrics.jsonl")
    with pytest.raises(SystemExit):
        cli.main(["lineage", f"models:/{NAME}/1", "--verify"])
    assert capsys.readouterr().err == "error: the first link that does not hold is: training run\n"


def verify(address: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit status of `lineage --verify`, and what it said on both."""
    try:
        status = cli.main(["lineage", address, "--verify"])
    except SystemExit as ended:
        status = int(str(ended.code))
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def restored(origin: Origin, tmp_path: Path) -> Iterator[Path]:
    """Version 1 as it lies in the registry, put back afterwards."""
    shutil.copytree(origin.files, tmp_path / "before")
    yield origin.files
    shutil.copytree(tmp_path / "before", origin.files, dirs_exist_ok=True)


def test_the_registrys_copy_is_compared(restored: Path, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(restored / "model.safetensors")
    assert verify(f"models:/{NAME}/1", capsys)[2] == "error: the first link that does not hold is: encoder in the registry\n"
    digest = hashlib.sha256((restored / "model.safetensors").read_bytes()).hexdigest()
    weights = "model.safetensors"
    edit(restored / MANIFEST, lambda manifest: next(e for e in manifest["files"] if e["name"] == weights).update(sha256=digest))
    status, said, error = verify(f"models:/{NAME}/1", capsys)
    assert (status, error) == (1, "error: the first link that does not hold is: encoder in the registry\n"), "the store has another"
    assert said.count("DOES NOT HOLD") == 1


@pytest.mark.parametrize("tidied", [False, True], ids=["", "tidied"])
def test_a_copy_without_its_manifest_is_compared_with_the_store(
    restored: Path, origin: Origin, copied: Path, tidied: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (restored / MANIFEST).unlink()
    if tidied:
        shutil.rmtree(copied / "encoder")
    status, said, error = verify(f"models:/{NAME}/1", capsys)
    assert (status, error) == (0, "")
    assert f"run/{origin.keys['run']}\n" in said
    assert said.count(" holds\n") == (5 if tidied else len(LINKS)), "by the tags, which name no shards of train here"
    flip(restored / "tokenizer.json")
    assert verify(f"models:/{NAME}/1", capsys)[0] == (0 if tidied else 1)


def test_a_chain_goes_on_where_the_registrys_files_are_gone(restored: Path, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(restored)
    status, said, error = verify(f"models:/{NAME}/1", capsys)
    assert status == 1
    assert error == "error: the first link that does not hold is: encoder in the registry\n"
    assert f"DOES NOT HOLD: models:/{NAME}/1: holds no encoder folder" in said
    assert "\nvocabulary " in said and "\ncorpus " in said
    assert cli.main(["lineage", f"models:/{NAME}/1"]) == 0


def test_a_damaged_manifest_in_the_registry_is_named(restored: Path, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (restored / MANIFEST).write_text("{", "utf-8")
    status, said, error = verify(f"models:/{NAME}/1", capsys)
    assert (status, error) == (1, "error: the first link that does not hold is: encoder in the registry\n")
    assert said.count(" holds\n") == len(LINKS) - 1, "the store says what it was made from"


def test_a_head_leads_to_its_encoder(origin: Origin, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said, error = verify(f"models:/{HEAD}/1", capsys)
    assert (status, error) == (0, "")
    links = ["finetuned in the registry", "fine-tuned encoder", "labelled data", *LINKS]
    places = [said.index(f"\n{name:<28} ") for name in links]
    assert places == sorted(places)
    assert said.count(" holds\n") == len(links)
    flip(copied / "finetuned" / origin.keys["finetuned"] / "head.json")
    assert verify(f"models:/{HEAD}/1", capsys)[2] == "error: the first link that does not hold is: fine-tuned encoder\n"


def test_what_the_store_no_longer_has_is_said_not_to_be_checked(origin: Origin, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copied / "run" / origin.keys["run"])
    shutil.rmtree(copied / "encoder" / origin.keys["encoder"])
    assert cli.main(["lineage", f"models:/{NAME}/1", "--verify"]) == 0
    said = capsys.readouterr().out
    assert f"run/{origin.keys['run']}: not in this store, so not checked" in said
    assert said.count(" holds\n") == len(LINKS) - 2


def test_a_version_that_is_not_there(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lineage", f"models:/{NAME}/9"]) == 1
    assert "9" in capsys.readouterr().err
    assert cli.main(["lineage", "bert-tiny"]) == 1
    assert capsys.readouterr().err == "error: bert-tiny: not a version; wanted models:/NAME/NUMBER or models:/NAME@ALIAS\n"


def test_how_two_versions_differ(origin: Origin, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = tmp_path / "pictures"
    assert cli.main(["compare", f"models:/{NAME}/1", f"models:/{OTHER}/1", "--pictures", str(pictures)]) == 0
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines()]
    begun = lines.index(["settings", "that", "differ"])
    assert lines[begun + 1 : begun + 3] == [["training.seed", "0", "1"], []], "that one alone"
    (losses,) = (line for line in lines if line[:1] == ["held_out/mlm_loss"])
    assert losses[1] != losses[2]
    assert [line[1] for line in lines if line[:1] == ["step"]][:3] == ["1", "2", "3"]
    assert "held-out sentences of birds, by the cosine of mean vectors" in said
    assert said.count(f"\n    models:/{NAME}/1\n") == said.count(f"\n    models:/{OTHER}/1\n") == 2
    corpora = [json.loads(path.read_text("utf-8")) for path in copied.glob("corpus/*/manifest.json")]
    assert len(corpora) == 2
    assert re.search(r"the corpus is another: (\d+) documents to train on became (\d+); 3 came, 0 went", said)
    assert re.search(r"the vocabulary is another: of \d+ tokens \d+ stayed, 2 are new", said), "heron and it, seen three times"
    assert "\nmetrics, each on its own held-out shards\n" in said
    assert (pictures / "curves.png").read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(copied / "corpus")
    assert cli.main(["compare", f"models:/{NAME}/1", f"models:/{OTHER}/1"]) == 0
    said = capsys.readouterr().out
    assert f"corpus {origin.keys['corpus']} is not in this store, so none are looked for" in said
    assert "the corpus is another; what changed is not counted, since corpus" in said
    assert cli.main(["compare", f"models:/{NAME}/1", f"models:/{NAME}/1"]) == 0
    said = capsys.readouterr().out
    assert "the corpus is the same" in said and "the vocabulary is the same, of " in said and "\nmetrics\n" in said
