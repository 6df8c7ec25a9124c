"""The gate on a real registry: who becomes champion, the way back, and two candidates at once."""

import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import pytest
import requests
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from flows import aliases, cli, gate, models, registry, versions
from flows.aliases import CHALLENGER, CHAMPION, PREVIOUS
from flows.gate import Decision
from flows.places import tracking_uri
from flows.registry import Version
from pipeline.comparison import BITS, LOSS, MLM_LOSS, Comparison
from pipeline.data.tokenizer import Vocabulary
from pipeline.encoding import Encoder
from pipeline.errors import RegistryError, RegistryUnavailableError, SettingsError
from pipeline.export import export_encoder
from pipeline.settings import Preset
from pipeline.storage import Output, Recipe, Store
from pipeline.tensors import save_tensors
from tests.conftest import Built, build, publish_text, random_text, train_in_a_child
from tests.pipeline.encoders import SIZES, publish_encoder, publish_vocabulary, words

from .conftest import ROOT, environment

NOISE = {"alike": 0.001, "worse": 0.2, "damaged": 0.5, "endless": math.nan}  # on the weights of `better`


@dataclass
class Arena:
    """Encoders of one vocabulary: `better` has been trained, others are it with noise; and two of other vocabularies."""

    built: Built
    encoders: dict[str, Output]
    run_id: str

    def register(self, name: str, which: str) -> Version:
        encoder = self.encoders[which]
        tags = {"encoder_key": f"{encoder.key}-{which}"}
        return models.register(name, self.run_id, Path(encoder.address), tags=tags, description=lambda _: "", tables={}, figures={})

    def decide(self, version: Version, which: str, **settings: Any) -> Decision:
        preset = self.built.preset.override(gate=settings)
        with self.built.store.lease("gate", version.name):
            return gate.decide(self.built.store, version, self.encoders[which], self.built.corpus, self.built.valid, preset)

    def enter(self, name: str, which: str, **settings: Any) -> Decision:
        """Register, then decide."""
        return self.decide(self.register(name, which), which, **settings)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory, small_preset: Preset) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("arena")
    store = Store(str(folder / "store"))
    built = build(store, publish_text(store, random_text(40, 1), random_text(10, 2)), small_preset)
    run = built.write_run(folder / "work", steps=60, learning_rate=5e-3)
    done = train_in_a_child(run)
    assert done.returncode == 0, done.stderr
    better = store.find("run", run.key)
    assert better is not None
    encoders = {"better": export_encoder(store, better, built.vocabulary, built.corpus)}
    for which, noise in NOISE.items():
        noisy = store.make(Recipe("run", 3, better.manifest["settings"], {"of": which}), partial(damage, better, noise))
        encoders[which] = export_encoder(store, noisy, built.vocabulary, built.corpus)
    encoders["stranger"] = publish_encoder(store, "deck", words())
    encoders["ignorant"] = ignorant(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(folder / "store"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Arena(built, encoders, registry.start_run("a run", {"shards.pairs": small_preset.shards.pairs}, {"run_key": "abc"}))


def damage(run: Output, noise: float, folder: Path) -> dict[str, Any]:
    """A run's weights with noise on them."""
    torch.manual_seed(0)
    weights = {name: value + noise * torch.randn_like(value) for name, value in load_file(run.file("model.safetensors")).items()}
    save_tensors(folder / "model.safetensors", weights)
    return dict(run.facts)


def ignorant(store: Store) -> Output:
    """An encoder that knows one word, and expects the unknown token everywhere."""
    tokenizer = Vocabulary.of_words({"the": 5}, 1).tokenizer
    vocabulary, encoder = publish_vocabulary(store, tokenizer), Encoder.load(publish_encoder(store, "deck", tokenizer).address)
    decoder = encoder.model.masked_lm.decoder
    with torch.no_grad():
        decoder.weight.zero_()
        decoder.bias.zero_()
        decoder.bias[encoder.table.unknown_id] = 100.0

    def save(folder: Path) -> dict[str, Any]:
        save_tensors(folder / "model.safetensors", encoder.model.state_dict())
        return {"parameters": 0}

    run = store.make(Recipe("run", 1, {"model": {"architecture": "deck", **SIZES}}, {"of": "ignorant"}), save)
    return export_encoder(store, run, vocabulary, vocabulary)


def weights(name: str, number: str) -> Path:
    """A version's weights, where its database keeps them."""
    return Path(mlflow.artifacts.download_artifacts(f"models:/{name}/{number}")) / "artifacts" / "encoder" / "model.safetensors"


def tags(version: Version) -> dict[str, str]:
    return dict(MlflowClient(tracking_uri()).get_model_version(version.name, version.number).tags)


def test_the_better_becomes_champion_and_the_worse_challenger(arena: Arena) -> None:
    first = arena.enter("bert-gate", "worse")
    assert first.alias == CHAMPION
    assert first.reason.startswith("the first of bert-gate; held-out loss ")
    second = arena.enter("bert-gate", "better")
    assert second.alias == CHAMPION
    assert second.comparison is not None
    assert second.comparison.rule == LOSS
    assert second.comparison.candidate < second.comparison.champion
    assert aliases.of("bert-gate") == {CHAMPION: "2", PREVIOUS: "1"}
    third = arena.enter("bert-gate", "damaged")
    assert third.alias == CHALLENGER
    assert "worse, margin 1.0%" in third.reason
    assert aliases.of("bert-gate") == {CHAMPION: "2", PREVIOUS: "1", CHALLENGER: "3"}
    noted = tags(third.version)
    assert noted["gate.decision"] == CHALLENGER
    assert noted["gate.against"] == "2"
    assert float(noted["gate.candidate"]) > float(noted["gate.champion"])
    again = arena.decide(third.version, "damaged")
    assert again.known
    assert again.reason == third.reason


def test_the_losses_are_those_of_training_itself(arena: Arena) -> None:
    name = "bert-losses"
    arena.enter(name, "worse")
    found = arena.enter(name, "better").comparison
    assert found is not None
    run = arena.built.store.find("run", arena.encoders["better"].manifest["facts"]["lineage"]["run"])
    assert run is not None
    held_out = run.facts["held_out"]
    assert found.details["mlm_loss"][0] == pytest.approx(held_out["mlm_loss"], rel=1e-5)
    assert found.candidate == pytest.approx(held_out["mlm_loss"] + held_out["next_sentence_loss"], rel=1e-5)


def test_a_way_back_goes_on_as_far_as_there_were_champions(arena: Arena, capsys: pytest.CaptureFixture[str]) -> None:
    name = "bert-back"
    for which in ("worse", "better", "alike"):
        assert arena.enter(name, which, margin=1.0).alias == CHAMPION
    assert cli.main(["rollback", f"models:/{name}"]) == 0
    assert capsys.readouterr().out == f"models:/{name}/2 is champion, models:/{name}/3 no longer\n"
    assert aliases.of(name) == {CHAMPION: "2", PREVIOUS: "1"}
    again = arena.decide(Version(name, "3", ""), "alike")
    assert again.known, "the same run again does not undo it"
    assert str(again).startswith(f"models:/{name}/3 was champion and was rolled back, now models:/{name}/2 is champion: ")
    assert aliases.of(name)[CHAMPION] == "2"
    assert cli.main(["rollback", name]) == 0
    assert aliases.of(name) == {CHAMPION: "1"}
    capsys.readouterr()
    assert cli.main(["rollback", name]) == 1
    assert "models:/bert-back/1: displaced no other champion" in capsys.readouterr().err
    assert cli.main(["rollback", name, "--to", "3"]) == 0
    assert aliases.of(name) == {CHAMPION: "3", PREVIOUS: "1"}
    assert "rolled_back" in tags(Version(name, "2", ""))
    for wrong, told in ((["bert-nobody"], "bert-nobody"), ([name, "--to", "9"], "models:/bert-back/9"), (["a/b"], "rollback: got 'a/b'")):
        assert cli.main(["rollback", *wrong]) == 1
        assert told in capsys.readouterr().err


DECIDE = """
import sys, time
from pathlib import Path
from flows import gate
from flows.registry import Version
from pipeline.settings import load_preset
from pipeline.storage import open_output, Store
name, number, root, start, *addresses = sys.argv[1:]
store, (encoder, corpus, valid) = Store(root), map(open_output, addresses)
Path(start + number).touch()
while not all(Path(start + other).exists() for other in "23"):
    time.sleep(0.01)
with store.lease("gate", name):
    print(gate.decide(store, Version(name, number, ""), encoder, corpus, valid, load_preset("tiny")).alias)
"""


def test_two_candidates_at_once_leave_one_state(arena: Arena, tmp_path: Path) -> None:
    name = "bert-both"
    arena.enter(name, "worse")
    candidates = {arena.register(name, which).number: which for which in ("better", "alike")}
    assert set(candidates) == {"2", "3"}
    root = arena.built.store.root
    rest = arena.built.corpus.address, arena.built.valid.address
    children = [
        subprocess.Popen(
            [sys.executable, "-c", DECIDE, name, number, root, f"{tmp_path}/ready", arena.encoders[which].address, *rest],
            cwd=ROOT,
            env=environment(BERT_STORE=root, OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, which in candidates.items()
    ]
    decided = {number: child.communicate(timeout=240)[0].strip() for number, child in zip(candidates, children, strict=True)}
    assert [child.returncode for child in children] == [0, 0]
    found = aliases.of(name)
    assert decided[found[CHAMPION]] == CHAMPION
    order = [number for number in ("2", "3") if "gate.against" in tags(Version(name, number, ""))]
    assert order == ["2", "3"], "each was compared"
    second = next(number for number in order if tags(Version(name, number, ""))["gate.against"] != "1")
    assert tags(Version(name, second, ""))["gate.against"] == next(number for number in order if number != second), "with the other"
    back = [found[CHAMPION]]
    while (before := tags(Version(name, back[-1], "")).get("displaced")) is not None:
        back.append(before)
    assert back[-1] == "1", "the way back leads to the first"
    assert found[PREVIOUS] == back[1]


def test_a_kill_between_two_steps_is_mended_by_the_next_call(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "bert-killed"
    arena.enter(name, "worse")
    candidate = arena.register(name, "better")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(gate, "_close", lambda decision: (_ for _ in ()).throw(KeyboardInterrupt))
        arena.decide(candidate, "better")
    assert aliases.of(name) == {CHAMPION: "2", PREVIOUS: "1"}
    assert "gate.decision" not in tags(candidate)
    after = arena.decide(candidate, "better")
    assert (after.alias, after.known) == (CHAMPION, False)
    assert "better, margin 1.0%" in after.reason
    assert tags(candidate)["gate.decision"] == CHAMPION
    third = arena.register(name, "alike")
    MlflowClient(tracking_uri()).set_registered_model_alias(name, PREVIOUS, "2")  # as far as a promotion came
    assert arena.decide(third, "alike", margin=1.0).alias == CHAMPION
    assert aliases.of(name) == {CHAMPION: "3", PREVIOUS: "2"}


CALLS = ("set_model_version_tag", "delete_model_version_tag", "set_registered_model_alias", "delete_registered_model_alias")


@pytest.mark.parametrize("calls", range(4))
def test_a_rollback_that_was_killed_is_finished_by_the_same_command(arena: Arena, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Each call but some first ones is not made; nobody is lost, and none goes back further than was asked."""
    name = f"bert-cut-{calls}"
    for number in range(1, 4):
        aliases.promote(by_hand(name, number))
    made = 0

    def cut(call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            if made == calls:
                raise KeyboardInterrupt
            made += 1
            return call(*args, **kwargs)

        return count

    with monkeypatch.context() as patch:
        for each in CALLS:
            patch.setattr(MlflowClient, each, cut(getattr(MlflowClient, each)))
        with suppress(KeyboardInterrupt):
            aliases.roll_back(name)
    assert made == min(calls, 3), "a rollback is a tag and two aliases"
    assert {CHAMPION, PREVIOUS} == set(aliases.of(name))
    if aliases.of(name)[CHAMPION] == "3":
        aliases.roll_back(name)
    assert aliases.of(name) == {CHAMPION: "2", PREVIOUS: "1"}
    assert "rolled_back" in tags(Version(name, "3", ""))


def by_hand(name: str, number: int) -> Version:
    """A version that has no files."""
    client = MlflowClient(tracking_uri())
    if number == 1:
        client.create_registered_model(name)
    return Version(name, str(client.create_model_version(name, "file:///nowhere").version), "")


def test_what_a_kill_left_is_put_right(arena: Arena) -> None:
    name, client = "bert-left", MlflowClient(tracking_uri())
    for number in range(1, 4):
        aliases.promote(by_hand(name, number))
    for left in ({PREVIOUS: "1"}, {PREVIOUS: "3"}):
        for alias, number in left.items():
            client.set_registered_model_alias(name, alias, number)
        client.set_model_version_tag(name, "3", "rolled_back", "just now")
        assert aliases.mend(name) == {CHAMPION: "3", PREVIOUS: "2"}
        assert "rolled_back" not in tags(Version(name, "3", "")), "it is champion"


def test_a_way_back_never_goes_in_a_circle(arena: Arena) -> None:
    name = "bert-round"
    for number in range(1, 5):
        aliases.promote(by_hand(name, number))
    aliases.make_champion(name, "2")
    assert aliases.of(name) == {CHAMPION: "2", PREVIOUS: "1"}
    assert ["rolled_back" in tags(Version(name, number, "")) for number in "1234"] == [False, False, True, True]
    aliases.make_champion(name, "4")
    assert aliases.of(name) == {CHAMPION: "4", PREVIOUS: "2"}
    assert "rolled_back" not in tags(Version(name, "4", ""))
    assert [aliases.roll_back(name)[1].number for _ in range(2)] == ["2", "1"]
    with pytest.raises(RegistryError, match="displaced no other champion"):
        aliases.roll_back(name)


def test_what_was_rolled_back_before_it_was_decided_on_is_not_promoted(arena: Arena) -> None:
    name = "bert-undecided"
    arena.enter(name, "worse")
    better = arena.register(name, "better")
    aliases.promote(better)
    aliases.roll_back(name)
    assert arena.decide(better, "better").alias == CHALLENGER
    assert aliases.of(name)[CHAMPION] == "1"


def test_a_figure_that_is_not_finite_never_wins(arena: Arena) -> None:
    name = "bert-endless"
    first = arena.enter(name, "endless")
    assert (first.alias, aliases.of(name)) == (CHALLENGER, {CHALLENGER: "1"})
    assert first.reason.endswith("not finite")
    assert arena.enter(name, "worse").alias == CHAMPION, "there was no champion"
    weights(name, "2").unlink()
    arena.encoders["endless-again"] = arena.encoders["endless"]
    assert arena.enter(name, "endless-again").alias == CHALLENGER, "nor where the champion cannot be read"
    assert aliases.of(name) == {CHAMPION: "2", CHALLENGER: "3"}


def test_a_champion_whose_files_are_gone_is_replaced_and_it_is_said(arena: Arena) -> None:
    for name, remove in (("bert-gone", Path.unlink), ("bert-all-gone", lambda path: shutil.rmtree(path.parents[2]))):
        arena.enter(name, "better")
        remove(weights(name, "1"))
        decision = arena.enter(name, "damaged")
        assert decision.alias == CHAMPION
        assert f"models:/{name}/1, champion until now, cannot be read" in decision.reason
        assert aliases.of(name) == {CHAMPION: "2", PREVIOUS: "1"}


def test_a_champion_that_cannot_be_fetched_now_stays(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "bert-far"
    arena.enter(name, "better")
    candidate = arena.register(name, "damaged")

    def fetch(**_: str) -> str:
        raise requests.ConnectionError("the store of files is away")

    with monkeypatch.context() as patch, pytest.raises(RegistryUnavailableError, match="its files cannot be fetched"):
        patch.setattr(mlflow.artifacts, "download_artifacts", fetch)
        arena.decide(candidate, "damaged")
    assert aliases.of(name) == {CHAMPION: "1"}
    assert "gate.decision" not in tags(candidate)


def test_a_head_is_no_champion_of_encoders(arena: Arena, tmp_path: Path) -> None:
    name, champion = "bert-kinds", arena.encoders["better"]
    tags = {"encoder_key": champion.key, "finetuned_key": "f" * 20, "task": "classification"}
    given = {"tags": tags, "description": lambda _: "", "tables": {}, "figures": {}, "kind": models.FINETUNED}
    aliases.promote(models.register(name, arena.run_id, Path(champion.address), **given))
    assert models.find_version(name, champion.key) is None, "it holds a head"
    with pytest.raises(
        SettingsError, match=rf"got {name}, which is of classification \(models:/{name}/1\); wanted a name of its own for enc"
    ):
        versions.refuse_other_kinds(name)
    with pytest.raises(RegistryError, match=rf"models:/{name}/1: holds an encoder with a head; wanted an encoder"):
        arena.enter(name, "damaged")
    assert aliases.of(name) == {CHAMPION: "1"}
    with pytest.raises(RegistryError, match=rf"models:/{name}/1: is fine-tuned; wanted an encoder, such as the one that it started from"):
        versions.encoder_key(versions.at(f"models:/{name}/1"))


def test_heads_that_were_taught_other_pairs_do_not_decide(arena: Arena) -> None:
    name, own = "bert-pairs", arena.built.preset.shards.pairs
    arena.enter(name, "better")
    candidate, encoder = arena.register(name, "alike"), arena.encoders["alike"]
    preset = arena.built.preset.override(shards={"pairs": "none" if own != "none" else "neighbours"})
    decision = gate.decide(arena.built.store, candidate, encoder, arena.built.corpus, arena.built.valid, preset)
    assert decision.comparison is not None
    assert decision.comparison.rule == MLM_LOSS
    assert decision.comparison.candidate == decision.comparison.details["mlm_loss"][0]


def test_a_name_whose_champion_was_taken_away_says_so(arena: Arena) -> None:
    name = "bert-bare"
    first = arena.enter(name, "better")
    MlflowClient(tracking_uri()).delete_registered_model_alias(name, CHAMPION)
    said = str(arena.decide(first.version, "better"))
    assert f"was decided to be champion; {name} has no champion now, `rollback {name} --to NUMBER`" in said


def test_a_number_may_be_typed_with_zeros(arena: Arena) -> None:
    name = "bert-zeros"
    for which in ("damaged", "worse", "better"):
        arena.enter(name, which, margin=1.0)
    assert cli.main(["rollback", name, "--to", "03"]) == 0
    assert aliases.of(name) == {CHAMPION: "3", PREVIOUS: "2"}
    assert cli.main(["rollback", name, "--to", "٢"]) == 1


def test_a_champion_that_is_deleted_leaves_its_place_to_the_one_before(arena: Arena) -> None:
    name = "bert-deleted"
    arena.enter(name, "better")
    arena.enter(name, "alike", margin=1.0)
    MlflowClient(tracking_uri()).delete_model_version(name, "2")
    decision = arena.enter(name, "damaged")
    assert "that of models:/bert-deleted/1" in decision.reason
    assert aliases.of(name) == {CHAMPION: "1", CHALLENGER: "3"}


def test_another_vocabulary_goes_by_bits_per_character(arena: Arena) -> None:
    name = "bert-other-words"
    aliases.promote(arena.register(name, "stranger"))
    decision = arena.enter(name, "better", sentences=20)
    assert decision.alias == CHAMPION
    assert decision.comparison is not None
    assert (decision.comparison.rule, decision.comparison.examples) == (BITS, 20)
    assert "on the same 20 sentences" in decision.reason
    knows_nothing = arena.enter(name, "ignorant", sentences=20)
    assert knows_nothing.alias == CHALLENGER, "nearly every word is unknown to it, and costs it nothing to expect"
    assert tags(knows_nothing.version)["gate.rule"] == BITS


@pytest.mark.parametrize(
    ("candidate", "champion", "margin", "wanted"),
    [
        (1.0, 2.0, 0.0, True),
        (2.0, 2.0, 0.0, True),
        (2.01, 2.0, 0.0, False),
        (2.01, 2.0, 0.01, True),
        (2.03, 2.0, 0.01, False),
        (math.nan, 2.0, 1.0, False),
        (math.inf, math.inf, 1.0, False),
        (2.0, math.nan, 0.0, True),
    ],
)
def test_the_margin_is_a_share_of_the_champions_figure(candidate: float, champion: float, margin: float, wanted: bool) -> None:
    assert Comparison(LOSS, 1, candidate, champion, {}).accepts(margin) is wanted
    assert replace(Comparison(BITS, 1, candidate, champion, {}), examples=2).accepts(margin) is wanted


def test_a_name_that_is_not_there(arena: Arena) -> None:
    with pytest.raises(RegistryError, match="bert-nobody"):
        aliases.roll_back("bert-nobody")
