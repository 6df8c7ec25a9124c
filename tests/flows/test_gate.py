"""The gate on a real registry: who becomes champion, the way back, and two candidates at once."""

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from flows import aliases, cli, gate, models, registry
from flows.aliases import CHALLENGER, CHAMPION, PREVIOUS
from flows.gate import Decision
from flows.places import tracking_uri
from flows.registry import Version
from pipeline.comparison import BITS, LOSS, Comparison
from pipeline.errors import RegistryError
from pipeline.export import export_encoder
from pipeline.settings import Preset
from pipeline.storage import Output, Recipe, Store
from pipeline.tensors import save_tensors
from tests.conftest import Built, build, publish_text, random_text, train_in_a_child
from tests.pipeline.encoders import publish_encoder, words

from .conftest import ROOT, environment


@dataclass
class Arena:
    """Encoders of one vocabulary: `worse` has hardly been trained, `better` has, `damaged` is `better` with noise on it."""

    built: Built
    encoders: dict[str, Output]
    run_id: str

    def register(self, name: str, which: str) -> Version:
        encoder = self.encoders[which]
        tags = {"encoder_key": f"{encoder.key}-{which}"}
        return models.register(name, self.run_id, Path(encoder.address), tags=tags, description="", tables={}, figures={})

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
    encoders, trained = {}, {}
    for which, steps in (("worse", 1), ("better", 60), ("best", 90)):
        run = built.write_run(folder / "work", steps=steps, learning_rate=5e-3)
        done = train_in_a_child(run)
        assert done.returncode == 0, done.stderr
        finished = store.find("run", run.key)
        assert finished is not None
        trained[which] = finished
        encoders[which] = export_encoder(store, finished, built.vocabulary, built.corpus)
    better = trained["better"]
    noisy = store.make(Recipe("run", 3, better.manifest["settings"], {"of": "damaged"}), lambda to: damage(better, to))
    encoders["damaged"] = export_encoder(store, noisy, built.vocabulary, built.corpus)
    encoders["stranger"] = publish_encoder(store, "deck", words())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(folder / "store"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Arena(built, encoders, registry.start_run("a run", {}, {"run_key": "abc"}))


def damage(run: Output, folder: Path) -> dict[str, Any]:
    """A run's weights with noise, so that it is worse on purpose."""
    torch.manual_seed(0)
    weights = {name: value + 0.5 * torch.randn_like(value) for name, value in load_file(run.file("model.safetensors")).items()}
    save_tensors(folder / "model.safetensors", weights)
    return dict(run.facts)


def tags(version: Version) -> dict[str, str]:
    return dict(MlflowClient(tracking_uri()).get_model_version(version.name, version.number).tags)


def test_the_better_becomes_champion_and_the_worse_challenger(arena: Arena) -> None:
    first = arena.enter("bert-gate", "worse")
    assert (first.alias, first.reason) == (CHAMPION, "the first of bert-gate")
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
    for which in ("worse", "better", "best"):
        assert arena.enter(name, which, margin=1.0).alias == CHAMPION
    assert cli.main(["rollback", f"models:/{name}"]) == 0
    assert capsys.readouterr().out == f"models:/{name}/2 is champion, models:/{name}/3 no longer\n"
    assert aliases.of(name) == {CHAMPION: "2", PREVIOUS: "1"}
    assert arena.decide(Version(name, "3", ""), "best").known, "the same run again does not undo it"
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
    candidates = {arena.register(name, which).number: which for which in ("better", "best")}
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
        patch.setattr(gate, "_settle", lambda decision: (_ for _ in ()).throw(KeyboardInterrupt))
        arena.decide(candidate, "better")
    assert aliases.of(name) == {CHAMPION: "2", PREVIOUS: "1"}
    assert "gate.decision" not in tags(candidate)
    after = arena.decide(candidate, "better")
    assert (after.alias, after.known) == (CHAMPION, False)
    assert "better, margin 1.0%" in after.reason
    assert tags(candidate)["gate.decision"] == CHAMPION
    third = arena.register(name, "best")
    MlflowClient(tracking_uri()).set_registered_model_alias(name, PREVIOUS, "2")  # as far as a promotion came
    assert arena.decide(third, "best", margin=1.0).alias == CHAMPION
    assert aliases.of(name) == {CHAMPION: "3", PREVIOUS: "2"}


def test_a_champion_that_cannot_be_read_is_replaced_and_it_is_said(arena: Arena) -> None:
    name = "bert-gone"
    arena.enter(name, "better")
    folder = Path(mlflow.artifacts.download_artifacts(f"models:/{name}/1"))
    (folder / "artifacts" / "encoder" / "model.safetensors").unlink()
    decision = arena.enter(name, "damaged")
    assert decision.alias == CHAMPION
    assert f"models:/{name}/1, champion until now, cannot be read" in decision.reason


def test_another_vocabulary_goes_by_bits_per_character(arena: Arena) -> None:
    name = "bert-other-words"
    arena.enter(name, "stranger")
    decision = arena.enter(name, "better", sentences=20)
    assert decision.alias == CHAMPION
    assert decision.comparison is not None
    assert (decision.comparison.rule, decision.comparison.examples) == (BITS, 20)
    assert "on the same 20 sentences" in decision.reason


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
