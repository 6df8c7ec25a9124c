"""What each of two ranks does in a test: takes all steps of a run; rank 0 prints their MLM losses and writes the weights.

python -m torch.distributed.run --nproc-per-node=2 two_ranks.py RUN.json WEIGHTS.safetensors [say word 6]
"""

import sys
from pathlib import Path

from pipeline.tensors import save_tensors
from pipeline.training.distributed import join_world
from pipeline.training.loop import Trainer
from pipeline.training.run import read_run
from tests.pipeline.training.runs import rows_of, stepped
from tests.pipeline.training.test_loop import say_word_6

if __name__ == "__main__":
    run = read_run(Path(sys.argv[1]))
    with join_world("cpu") as world:
        trainer = Trainer(run, world)
        if sys.argv[3]:
            say_word_6(trainer.model)
        stepped(trainer, run.training.steps)
        if world.writes:
            print(*(row["mlm_loss"] for row in rows_of(trainer)))
            save_tensors(Path(sys.argv[2]), trainer.model.state_dict())
