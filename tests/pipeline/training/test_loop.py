"""A step's update: a sum over its batches and ranks, masks drawn anew, two parts, and the same after a resume."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import DamagedOutputError, TrainingError
from pipeline.settings import Preset
from pipeline.training.batches import BatchLoader, make_batch
from pipeline.training.loop import Trainer, train
from pipeline.training.masking import DynamicMasking
from pipeline.training.parts import part_of, read_parts
from pipeline.training.run import read_run
from tests.pipeline.training.runs import ALONE, FIRST_WORD, PRESET, TABLE, examples, rows_of, run_on, say_word_6, stepped, unequal_rows

LENGTHS = [7, 12, 9, 16, 8, 8, 14, 10, 7, 11, 13]
WITHOUT_DROPOUT = PRESET.override(model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def assert_near(mine: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, value in mine.items():
        if not name.endswith("qkv.bias"):  # a key's bias has no gradient but rounding, which Adam blows up to full steps
            torch.testing.assert_close(value, wanted[name], atol=2e-5, rtol=1e-4)


def losses(trainer: Trainer) -> list[tuple[float, ...]]:
    return [(row["mlm_loss"], row["next_sentence_loss"], row["gradient_norm"]) for row in rows_of(trainer)]


def test_a_batch_with_1_mask_of_loss_10_and_one_with_9_of_loss_0_give_1(tmp_path: Path) -> None:
    preset = WITHOUT_DROPOUT.override(training={"batch_size": 2, "micro_batch_size": 1})
    trainer = Trainer(run_on(tmp_path, unequal_rows(), examples([8]), preset=preset), ALONE)
    say_word_6(trainer.model)
    assert len(trainer.loader.load(0)[0]) == 2
    assert rows_of(stepped(trainer, 1))[0]["mlm_loss"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("micro", "masking"), [(1, "static"), (3, "dynamic"), (8, "static")])
def test_batches_of_any_size_give_the_update_of_one(tmp_path: Path, micro: int, masking: str) -> None:
    found = []
    for size in (0, micro):
        preset = WITHOUT_DROPOUT.override(training={"micro_batch_size": size}, shards={"masking": masking})
        rows = examples(LENGTHS, masks=2 if masking == "static" else 0)
        trainer = stepped(Trainer(run_on(tmp_path / str(size), rows, rows, preset=preset), ALONE), 4)
        found.append((weights(trainer), losses(trainer), trainer.evaluate()))
    (one, one_losses, one_figures), (other, other_losses, other_figures) = found
    assert_near(other, one)
    assert np.allclose(other_losses, one_losses, rtol=1e-4, atol=1e-6)
    assert other_figures == pytest.approx(one_figures, rel=1e-4)


def two_part_preset(**training: object) -> Preset:
    shards = {"masking": "dynamic", "long_max_length": 32, "long_max_predictions_per_seq": 5}
    return PRESET.override(shards=shards, training={"long_ratio": 0.3, "micro_batch_size": 3, **training})


def two_part_run(folder: Path, **training: object):
    """11 short rows in batches of 8 for 7 steps, then 5 long ones for 3; masks are drawn."""
    rows = [examples(LENGTHS, 0, 0), examples(LENGTHS[:4], 1, 0), examples([32, 30, 28, 26, 31], 2, 0), examples([32, 32], 3, 0)]
    return run_on(folder, *rows, preset=two_part_preset(**training))


@pytest.mark.parametrize(("optimizer", "killed_at", "ahead"), [("adamw", 5, False), ("adamw", 8, True), ("lamb", 5, True)])
def test_ten_steps_killed_in_mid_epoch_are_ten_steps_bit_for_bit(tmp_path: Path, optimizer: str, killed_at: int, ahead: bool) -> None:
    """With dropout, drawn masks, several batches a step and two parts; batches made ahead or not."""
    whole = stepped(Trainer(two_part_run(tmp_path / "whole", optimizer=optimizer), ALONE), 10)
    run = two_part_run(tmp_path / "killed", optimizer=optimizer)
    first = stepped(Trainer(run, ALONE), killed_at)
    first.save()
    second = Trainer(run, ALONE)
    assert second.step == killed_at
    second.loader = BatchLoader(second._rows, ALONE, micro_batch_size=3, ahead=ahead)
    stepped(second, 10 - killed_at)
    assert losses(second) == losses(whole)
    for name, value in weights(second).items():
        assert torch.equal(value, weights(whole)[name]), name
    assert second.evaluate() == whole.evaluate()


def test_the_last_steps_take_long_rows_from_their_first_and_are_held_out_against_long_ones(tmp_path: Path) -> None:
    trainer = Trainer(two_part_run(tmp_path), ALONE)
    longest = [max(len(batch.input_ids) // len(batch.first) for batch in trainer.loader.load(step)[0]) for step in range(10)]
    assert all(length <= 16 for length in longest[:7]) and all(length > 25 for length in longest[7:])
    assert trainer.loader.load(7)[1] == 5 and trainer.loader.load(6)[1] == 8
    masks = [len(batch.labels) / len(batch.first) for batch in trainer.loader.load(7)[0]]
    assert max(masks) == 5, "as many predictions as long rows may have"
    short, long = trainer.parts
    assert [part_of(trainer.parts, step) for step in (0, 6, 7, 9)] == [short, short, long, long]
    found = {}
    for steps in (7, 8):
        trainer.step = steps
        found[steps] = trainer.evaluate()["unigram_loss"]
    assert found == {7: short.unigram_loss, 8: long.unigram_loss} and short.unigram_loss != long.unigram_loss
    trainer.loader.close()


def test_a_run_of_two_parts_ends_with_figures_of_the_second(tmp_path: Path) -> None:
    run = two_part_run(tmp_path)
    assert set(run.inputs) == {"train", "valid", "train_long", "valid_long"}
    assert read_run(Path(run.work) / "run.json") == run
    output = train(run, ALONE)
    assert output is not None and output.facts["steps"] == 10 and output.facts["pairs"] == 8 + 3 + 8 + 3 + 8 + 3 + 8 + 5 + 5 + 5
    assert output.facts["held_out"]["unigram_loss"] == read_parts(run, ALONE)[1].unigram_loss
    assert "next_sentence_loss_mean" in output.facts


def test_steps_on_long_rows_without_any_are_an_error(tmp_path: Path) -> None:
    run = dataclasses.replace(two_part_run(tmp_path), train_long=[], valid_long=[])
    with pytest.raises(TrainingError, match=r"training\.long_ratio: got 3 steps on long rows, but no shards of them"):
        Trainer(run, ALONE)


def test_masks_are_others_in_each_epoch_and_the_same_whoever_draws_them() -> None:
    rows, masking = examples(LENGTHS, masks=0), DynamicMasking(PRESET.shards, TABLE)
    chosen = np.arange(len(rows))
    epochs = [make_batch(rows, chosen, masking=masking, epoch=epoch) for epoch in (0, 0, 1)]
    places = [batch.reads.tokens[batch.masked].tolist() for batch in epochs]
    assert places[0] == places[1] != places[2]
    alone = [make_batch(rows, np.array([row]), masking=masking).input_ids for row in np.argsort(LENGTHS, kind="stable")]
    assert torch.equal(torch.cat(alone), epochs[0].input_ids)


def test_of_ten_thousand_rows_no_special_token_and_no_pad_is_masked_or_a_label() -> None:
    """Rows of unequal length side by side, as a padded grid too: what is masked are words of the rows, 15% of them."""
    rows = examples(np.random.default_rng(0).integers(3, 17, 10_000), masks=0)
    lengths, masking = np.diff(rows.offsets), DynamicMasking(PRESET.shards, TABLE)
    batch = make_batch(rows, np.arange(len(rows)), padded=True, masking=masking)
    labels, counts = batch.labels.numpy(), np.minimum(np.maximum(np.rint(lengths * 0.15), 1), 3)
    assert labels.min() >= FIRST_WORD
    # A row of 3 tokens has special ones alone but for one, a row of 4 one at least.
    words = np.add.reduceat(rows.input_ids >= FIRST_WORD, rows.offsets[:-1])
    assert len(labels) == np.minimum(counts, words).sum() == batch.reads.tokens[batch.masked].unique().numel()
    replaced = batch.input_ids[batch.reads.tokens[batch.masked]].numpy()
    kinds = [(replaced == TABLE.mask_id).mean(), (replaced == labels).mean()]
    assert kinds == pytest.approx([0.8, 0.1 + 0.1 / 45], abs=0.015)
    assert not np.isin(replaced, (TABLE.cls_id, TABLE.sep_id, TABLE.pad_id)).any()


def test_a_vocabulary_that_is_damaged_stops_a_run_that_draws_masks(tmp_path: Path) -> None:
    run = two_part_run(tmp_path)
    file = Path(run.vocabulary) / "tokenizer.json"
    file.write_text(file.read_text().replace("word1", "word0"))
    with pytest.raises(DamagedOutputError, match=r"tokenizer\.json: sha256"):
        Trainer(run, ALONE)


def test_a_tied_decoder_stays_tied_in_training_and_after_a_resume(tmp_path: Path) -> None:
    run = run_on(tmp_path, examples(LENGTHS), examples([8]))
    first = stepped(Trainer(run, ALONE), 2)
    first.save()
    second = stepped(Trainer(run, ALONE), 1)
    for trainer in (first, second):
        model = trainer.model
        assert model.masked_lm.decoder.weight is model.encoder.token_embedding.weight
        assert "masked_lm.decoder.weight" not in model.state_dict()
        assert sum(p is model.masked_lm.decoder.weight for group in trainer.optimizer.param_groups for p in group["params"]) == 1
    assert not torch.equal(first.model.masked_lm.decoder.weight, second.model.masked_lm.decoder.weight)


def test_without_a_pair_task_its_figures_are_nowhere(tmp_path: Path, caplog) -> None:
    rows = examples(LENGTHS, pairs=False)
    run = run_on(tmp_path, rows, rows, preset=PRESET.override(shards={"pairs": "none"}))
    trainer = Trainer(run, ALONE)
    before = weights(trainer)
    assert set(stepped(trainer, 2).evaluate()) == {"mlm_loss", "mlm_accuracy", "unigram_loss"}
    logged = rows_of(trainer)
    assert not [name for row in logged for name in row if "next_sentence" in name]
    with caplog.at_level("INFO"):
        output = train(run, ALONE)
    assert output is not None and not [name for name in (*output.facts, *output.facts["held_out"]) if "next_sentence" in name]
    assert "held-out MLM loss" in caplog.text and "(unigram " in caplog.text and "NSP" not in caplog.text
    decay = torch.tensor(1.0)  # of the head, which has no gradient: what weight decay alone makes of it
    for row in logged[:2]:
        decay *= 1 - row["learning_rate"] * 0.01
    torch.testing.assert_close(trainer.model.next_sentence.classifier.weight, before["next_sentence.classifier.weight"] * decay)


def test_a_batch_without_any_mask_is_finite(tmp_path: Path) -> None:
    rows = examples([8] * 8, masks=0)
    trainer = stepped(Trainer(run_on(tmp_path, rows, rows), ALONE), 1)
    trainer.check_weights()
    row = rows_of(trainer)[0]
    assert row["mlm_loss"] == 0.0 and row["next_sentence_loss"] > 0
    assert trainer.evaluate()["unigram_loss"] == trainer.evaluate()["mlm_loss"] == 0.0
