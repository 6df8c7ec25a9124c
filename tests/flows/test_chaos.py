"""The short form of `make chaos`: three kills of the whole flow, one in the data stages, one in training, one after it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.command import END, REGISTRATION, STAGES, TRAINING, Flow
from tests.chaos.kills import Moment, Report, finish, kill_at
from tests.chaos.outcome import check_registry, compare

from .conftest import write_corpus

_STEPS = 60
_SETTINGS = (
    f"training.steps={_STEPS}",
    "training.log_every=1",
    "training.checkpoint_every_steps=2",
    "training.batch_size=16",
    "vocabulary.min_count=1",
    "shards.buckets=4",
    "model.max_position_embeddings=64",
)


@pytest.fixture
def corpus(tmp_path: Path, text: Callable[[int, int], str]) -> str:
    return str(write_corpus(tmp_path / "corpus", text, train=1000, valid=100))


def test_a_flow_that_is_killed_again_and_again_ends_as_one_that_nobody_disturbs(tmp_path: Path, corpus: str) -> None:
    undisturbed, disturbed = (Flow(tmp_path / name, corpus, _SETTINGS) for name in ("undisturbed", "disturbed"))
    report, rng = Report(), random.Random(0)
    moments = (
        Moment("shards of train", (1, 0), rng.uniform(0, 0.3)),
        Moment(TRAINING, (4, rng.randint(4, _STEPS // 2)), rng.uniform(0, 0.1)),
        Moment(REGISTRATION, (6, 0), rng.uniform(0, 1)),
    )
    with undisturbed.start(tmp_path / "undisturbed.log") as alone:
        for number, moment in enumerate(moments):
            assert kill_at(disturbed, moment, tmp_path / f"attempt-{number}.log", report)
        finish(disturbed, tmp_path / "last.log", report)
        alone.finish()

    data, training, after = report.hits
    assert data in STAGES[1:5]
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
