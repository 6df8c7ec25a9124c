"""Learning rates, groups of parameters and updates, each against the formula."""

import sys
from pathlib import Path

import pytest
import torch

from pipeline.errors import SettingsError, TrainingError
from pipeline.settings import TrainingSettings
from pipeline.training.loop import Trainer
from pipeline.training.optimizer import learning_rate, make_optimizer, optimizer_state, restore_optimizer
from tests.pipeline.training.runs import ALONE, PRESET, examples, rows_of, run_on, stepped

TEN = TrainingSettings(steps=10, batch_size=8, learning_rate=0.4, warmup_ratio=0.4)


def rates(settings: TrainingSettings) -> list[float]:
    return [learning_rate(step, settings) for step in range(1, settings.steps + 1)]


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [0.4] * 6),
        ("linear", [0.4 * left / 6 for left in (6, 5, 4, 3, 2, 1)]),
        ("cosine", [0.4, 0.4 * 0.9330127, 0.3, 0.2, 0.1, 0.4 * 0.0669873]),
        ("wsd", [*[0.4] * 5, 0.2]),
    ],
)
def test_a_rate_rises_from_above_zero_to_the_peak_and_does_not_drop_after_it(schedule: str, wanted: list[float]) -> None:
    settings = TEN.override({"schedule": schedule, "decay_ratio": 0.2 if schedule == "wsd" else 0.0})
    assert rates(settings) == pytest.approx([0.1, 0.2, 0.3, 0.4, *wanted])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
@pytest.mark.parametrize("warmup", [0.0, 0.01, 0.5])
def test_every_schedule_reaches_the_peak_once_falls_evenly_and_never_to_zero(schedule: str, warmup: float) -> None:
    decay = {"decay_ratio": 0.3 if schedule == "wsd" else 0.0}
    found = rates(TEN.override({"steps": 1000, "schedule": schedule, "warmup_ratio": warmup, **decay}))
    top = max(found)
    first = found.index(top)
    assert top == 0.4 and first == max(round(1000 * warmup) - 1, 0)
    assert all(later <= earlier for earlier, later in zip(found[first:], found[first + 1 :], strict=False))
    assert max(abs(a - b) for a, b in zip(found[first:], found[first + 1 :], strict=False)) < 0.01 * 0.4
    assert found[-1] > 0 and (schedule == "constant" or found[-1] < 0.01 * 0.4)


def test_a_warm_up_over_all_steps_ends_at_the_peak() -> None:
    assert rates(TEN.override({"warmup_ratio": 1.0, "schedule": "linear"}))[-1] == 0.4


@pytest.fixture
def model(tmp_path: Path) -> torch.nn.Module:
    return Trainer(run_on(tmp_path, examples([8] * 4), examples([8])), ALONE).model


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_weights_decay_and_biases_and_norms_do_not(model: torch.nn.Module, optimizer: str) -> None:
    found = make_optimizer(model, PRESET.training.override({"optimizer": optimizer}))
    names = {parameter: name for name, parameter in model.named_parameters()}
    decay = {names[p]: group["weight_decay"] for group in found.param_groups for p in group["params"]}
    assert set(decay) == set(names.values())
    for name, rate in decay.items():
        free = name.endswith("bias") or "norm" in name
        assert rate == (0.0 if free else PRESET.training.weight_decay), name


def test_adam_has_no_decay() -> None:
    with pytest.raises(SettingsError, match=r"training\.weight_decay: got 0\.01 with optimizer adam"):
        PRESET.training.override({"optimizer": "adam"})


def test_lamb_without_its_package_says_how_to_install_it(model: torch.nn.Module, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(TrainingError, match=r"^training\.optimizer: lamb is not installed; .*'\.\[lamb\]'$"):
        make_optimizer(model, PRESET.training.override({"optimizer": "lamb"}))


def test_lambs_update_is_the_papers() -> None:
    """Two steps on a matrix of norm above 10 and on a bias, by the formulas."""
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(20, 30)
    torch.nn.init.normal_(linear.weight, generator=generator)
    settings = TEN.override({"optimizer": "lamb", "weight_decay": 0.1, "adam_epsilon": 1e-6, "learning_rate": 0.02})
    optimizer = make_optimizer(linear, settings)
    wanted = {name: p.detach().clone() for name, p in linear.named_parameters()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in wanted.items()}
    for _ in range(2):
        for name, parameter in linear.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            m, v = moments[name]
            m, v = 0.9 * m + 0.1 * parameter.grad, 0.999 * v + 0.001 * parameter.grad**2
            moments[name] = m, v
            update = m / (v.sqrt() + 1e-6)
            ratio = 1.0
            if name == "weight":
                update = update + 0.1 * wanted[name]
                ratio = wanted[name].norm() / update.norm()
            wanted[name] -= 0.02 * ratio * update
        optimizer.step()
    for name, parameter in linear.named_parameters():
        torch.testing.assert_close(parameter.detach(), wanted[name], atol=1e-6, rtol=1e-5)
    assert wanted["weight"].norm() > 10


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "lamb"])
def test_what_an_optimizer_keeps_is_restored_bit_for_bit(optimizer: str) -> None:
    def trained(linear: torch.nn.Module, found: torch.optim.Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(3):
            for parameter in linear.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            found.step()

    linear = torch.nn.Linear(4, 3)
    found = make_optimizer(linear, TEN.override({"optimizer": optimizer}))
    trained(linear, found, 1)
    other = torch.nn.Linear(4, 3)
    other.load_state_dict(linear.state_dict())
    restored = make_optimizer(other, TEN.override({"optimizer": optimizer}))
    state = {name: value.clone() for name, value in optimizer_state(linear, found).items()}
    restore_optimizer(state, other, restored)
    assert restored.state_dict()["state"].keys() == found.state_dict()["state"].keys()
    assert [group.get("step") for group in restored.param_groups] == [group.get("step") for group in found.param_groups]
    trained(linear, found, 2)
    trained(other, restored, 2)
    for mine, wanted in zip(other.parameters(), linear.parameters(), strict=True):
        assert torch.equal(mine, wanted)


def test_the_logged_norm_is_the_one_before_clipping(tmp_path: Path) -> None:
    """With plain gradient descent, whose update is the clipped gradient."""
    found = {}
    for limit in (0.0, 0.5):
        preset = PRESET.override(training={"max_gradient_norm": limit, "learning_rate": 1.0, "warmup_ratio": 0.0})
        trainer = Trainer(run_on(tmp_path / str(limit), examples([8] * 8), examples([8]), preset=preset), ALONE)
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
        before = [p.detach().clone() for p in trainer.model.parameters()]
        stepped(trainer, 1)
        update = torch.nn.utils.get_total_norm([a - b for a, b in zip(before, trainer.model.parameters(), strict=True)])
        found[limit] = rows_of(trainer)[0]["gradient_norm"], float(update)
    assert found[0.0][0] == found[0.5][0] > 0.5
    assert found[0.0][1] == pytest.approx(found[0.0][0], rel=1e-4) and found[0.5][1] == pytest.approx(0.5, rel=1e-4)
