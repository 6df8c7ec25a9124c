"""A fine-tuned folder in transformers: nothing missing, and the same logits."""

from pathlib import Path

import torch

from pipeline.finetuning.loop import finetune
from pipeline.finetuning.prediction import Finetuned, batch_of
from pipeline.storage import Store
from tests.pipeline import encoders
from tests.pipeline.finetuning import data

TEXTS = [["a crane is flying"], ["Old Birds, near the naïve river!"], ["he"]]
PAIRS = [["a crane is flying", "he just left"], ["birds near the river", "a"]]


def test_logits_are_the_same(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    encoder = encoders.publish_encoder(store, "bert", encoders.wordpiece())
    files = {
        "classification": data.write_tsv(tmp_path / "sentences.tsv", data.sentences(40)),
        "pair_classification": data.write_tsv(tmp_path / "pairs.tsv", data.pairs(40)),
        "question_answering": data.write_json(tmp_path / "squad.json", data.squad(20)),
    }
    rows = {task: TEXTS if task == "classification" else PAIRS for task in files}
    for task, file in files.items():
        run = data.plan(store, encoder, tmp_path / "work", task, file, epochs=1)
        run.save()
        (tmp_path / task).mkdir()
        finetune(run, tmp_path / task)
    jobs = [{"folder": str(tmp_path / task), "out": str(tmp_path / "seen" / task), "rows": rows[task]} for task in files]
    encoders.in_transformers(tmp_path / "peer", heads=jobs)
    for task in files:
        seen = encoders.Seen(tmp_path / "seen" / task)
        assert not any(seen.report["loading"][name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        model = Finetuned.load(tmp_path / task)
        if model.head.labels:
            assert list(seen.report["labels"].values()) == list(model.head.labels)
        for number, (first, *second) in enumerate(rows[task]):
            (row,) = model.rows.of([(first, second[0] if second else None)])
            with torch.inference_mode():
                ours = model.model(batch_of([row], torch.device("cpu")))
            assert torch.allclose(ours, seen.tensors[f"logits.{number}"], atol=1e-5), (task, number)
