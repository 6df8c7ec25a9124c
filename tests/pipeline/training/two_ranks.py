"""What each of two ranks does in a test: takes all steps of two runs; rank 0 prints their MLM losses, a line a run.

The first run's weights are written; in the second, the model says word 6 from the beginning.

python -m torch.distributed.run --nproc-per-node=2 two_ranks.py RUN.json WEIGHTS.safetensors OTHER_RUN.json
"""

import sys
from pathlib import Path

from pipeline.tensors import save_tensors
from pipeline.training.distributed import World, join_world
from pipeline.training.loop import Trainer
from pipeline.training.run import read_run
from tests.pipeline.training.runs import rows_of, say_word_6, stepped


def all_steps(trainer: Trainer, world: World) -> Trainer:
    """Take all steps of a run and print its losses."""
    stepped(trainer, trainer.settings.steps)
    if world.writes:
        print(*(row["mlm_loss"] for row in rows_of(trainer)))
    return trainer


if __name__ == "__main__":
    with join_world("cpu") as world:
        first = all_steps(Trainer(read_run(Path(sys.argv[1])), world), world)
        if world.writes:
            save_tensors(Path(sys.argv[2]), first.model.state_dict())
        second = Trainer(read_run(Path(sys.argv[3])), world)
        say_word_6(second.model)
        all_steps(second, world)
