"""Held-out losses and accuracies, over every example of a split."""

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional as F

from ..model.pretraining import Batch, BertForPretraining, losses
from ..shards import Examples
from .batches import make_batch
from .distributed import World


def _share(examples: Examples, batch_size: int, world: World) -> Iterator[Batch]:
    rows = np.arange(world.rank, len(examples), world.size)
    for start in range(0, len(rows), batch_size):
        yield make_batch(examples, rows[start : start + batch_size], padded=world.device.type == "cuda" or None).to(world.device)


@torch.no_grad()
def evaluate(model: BertForPretraining, examples: Examples, batch_size: int, world: World) -> dict[str, float]:
    """Mean losses in nats and accuracies in [0, 1] over all examples, the last short batch included.

    Every rank takes its share of the rows and gets the result of all.
    """
    training = model.training
    model.eval()
    totals = torch.zeros(6, dtype=torch.float64, device=world.device)
    for batch in _share(examples, batch_size, world):
        mlm_logits_MV, next_sentence_logits_B2 = model.logits(batch)
        mlm_sum = F.cross_entropy(mlm_logits_MV, batch.labels, reduction="sum")
        found = losses(mlm_sum, next_sentence_logits_B2, batch)
        mlm_hits = (mlm_logits_MV.argmax(-1) == batch.labels).sum()
        next_sentence_hits = (next_sentence_logits_B2.argmax(-1) == batch.next_sentence_label).sum()
        sums = (found.mlm_sum, found.mlm_count, mlm_hits, found.next_sentence_sum, found.next_sentence_count, next_sentence_hits)
        totals += torch.stack([value.double() for value in sums])
    model.train(training)
    mlm, masked, mlm_hits, next_sentence, rows, next_sentence_hits = world.sum(totals).tolist()
    return {
        "mlm_loss": mlm / max(masked, 1),
        "mlm_accuracy": mlm_hits / max(masked, 1),
        "next_sentence_loss": next_sentence / max(rows, 1),
        "next_sentence_accuracy": next_sentence_hits / max(rows, 1),
    }
