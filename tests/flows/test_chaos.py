"""The whole flow: two at once on one store, another registry later, and the short form of `make chaos`.

That is two kills, one in training and one after it, against the run that the two made.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.chaos.command import END, NAME, REGISTRATION, TRAINING, Flow
from tests.chaos.kills import Moment, Report, finish, kill_at
from tests.chaos.outcome import check_registry, compare

from .conftest import write_corpus

_STEPS = 40
_SETTINGS = (
    f"training.steps={_STEPS}",
    "training.log_every=1",
    "training.checkpoint_every_steps=2",
    "training.batch_size=16",
    "vocabulary.min_count=1",
    "shards.buckets=4",
    "model.max_position_embeddings=64",
    "training.deployment=pretrain-encoder/gpu",
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, text: Callable[[int, int], str]) -> Flow:
    """A store on which two commands of the same settings have run at once, as from two machines."""
    folder = tmp_path_factory.mktemp("chaos")
    corpus = str(write_corpus(folder / "corpus", text, train=1000, valid=100))
    one, other = (Flow(folder / "undisturbed", corpus, _SETTINGS, home) for home in ("one", "other"))
    with one.start(folder / "one.log") as first, other.start(folder / "other.log") as second:
        first.finish()
        second.finish()
        said = first.said(), second.said()
    assert sum(f"step {_STEPS}/{_STEPS}" in text for text in said) == 1, "one trains"
    assert all("pretrain-encoder/gpu is for runs of a deployment; this one trains in place" in text for text in said)
    return one


def test_two_at_once_do_the_work_once_and_register_once(undisturbed: Flow) -> None:
    twice, runs = check_registry(undisturbed, _STEPS)
    assert not twice
    assert runs == {"FINISHED": 1}
    assert not list((undisturbed.store / "leases").iterdir())


def test_another_registry_gets_the_encoder_without_training(undisturbed: Flow, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path}/other.db"
    with undisturbed.start(tmp_path / "said.log", MLFLOW_TRACKING_URI=elsewhere) as attempt:
        attempt.finish()
        assert "Task run 'train' - Finished in state Cached" in attempt.said()
    (version,) = MlflowClient(elsewhere).search_model_versions(f"name = '{NAME}'")
    steps = [entry.step for entry in MlflowClient(elsewhere).get_metric_history(version.run_id, "train/mlm_loss")]
    assert steps == list(range(1, _STEPS + 1)), "registered without training, with its curve"


def test_a_flow_that_is_killed_again_and_again_ends_as_one_that_nobody_disturbs(tmp_path: Path, undisturbed: Flow) -> None:
    disturbed = Flow(tmp_path / "disturbed", undisturbed.corpus, _SETTINGS)
    report, rng = Report(), random.Random(0)
    moments = (
        Moment(TRAINING, (4, rng.randint(4, _STEPS // 2)), rng.uniform(0, 0.1)),
        Moment(REGISTRATION, (6, 0), rng.uniform(0, 1)),
    )
    for number, moment in enumerate(moments):
        assert kill_at(disturbed, moment, tmp_path / f"attempt-{number}.log", report)
    finish(disturbed, tmp_path / "last.log", report)

    training, after = report.hits
    assert training == TRAINING
    assert after in ("export", REGISTRATION, END)
    assert max(report.went_on_from) > 0
    compared = compare(disturbed, undisturbed)
    assert len(compared["steps"]) == _STEPS
    check_registry(disturbed, _STEPS)


def test_the_search_for_processes_finds_those_of_its_store_alone(tmp_path: Path) -> None:
    flow, other = (Flow(tmp_path / name, "nowhere") for name in ("store", "store-2"))
    attempt = flow.start(tmp_path / "said")
    try:
        assert attempt.child.pid in flow.living()
        assert not other.living()
    finally:
        attempt.kill()
    assert not flow.living()
