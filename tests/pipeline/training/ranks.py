"""What each rank does in a test: it takes the steps of several runs, one after another; rank 0 prints a line of JSON a run.

python -m torch.distributed.run --nproc-per-node=2 ranks.py JOBS.json

A job: `run`, the path of a run.json; `until`, the step after which it ends; `save`, whether it then saves a checkpoint;
`weights`, where rank 0 writes the whole weights; `word_6`, whether the model says word 6 from the beginning.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from pipeline.tensors import save_tensors
from pipeline.training.distributed import World, join_world
from pipeline.training.loop import Trainer
from pipeline.training.run import read_run
from tests.pipeline.training.runs import rows_of, say_word_6, stepped


def do(job: dict[str, Any], world: World) -> None:
    """Train a run up to a step."""
    trainer = Trainer(read_run(Path(job["run"])), world)
    if job.get("word_6"):
        say_word_6(trainer.model)
    started = trainer.step
    stepped(trainer, job["until"] - started)
    figures = trainer.evaluate()
    if job.get("save"):
        trainer.save()
    weights = trainer.shared.gather(trainer.model.state_dict())
    if world.writes:
        save_tensors(Path(job["weights"]), weights)
        losses = [[row["mlm_loss"], row["next_sentence_loss"], row["gradient_norm"]] for row in rows_of(trainer) if row["kind"] == "train"]
        print(json.dumps({"started": started, "losses": losses, "figures": figures}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_world("cpu") as world:
        for job in json.loads(Path(sys.argv[1]).read_text("utf-8")):
            do(job, world)
