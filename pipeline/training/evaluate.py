"""Held-out losses and accuracies, over every example of a split."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch.nn import functional as F

from ..model.pretraining import Batch, BertForPretraining, losses
from .batches import make_batch
from .distributed import World
from .masking import DynamicMasking
from .split import LoadedWindow


def _share(windows: Iterable[LoadedWindow], masking: DynamicMasking | None, batch_size: int, world: World) -> Iterator[Batch]:
    padded = world.device.type == "cuda" or None
    for window in windows:
        rows = np.arange(world.rank, len(window.numbers), world.size)
        for start in range(0, -(-len(window.numbers) // world.size), batch_size):  # as many batches on each rank, as in training
            part = rows[start : start + batch_size]
            yield make_batch(window.examples, part, padded, masking, numbers=window.numbers).to(world.device)
        del window  # before another is read


@torch.no_grad()
def evaluate(
    model: BertForPretraining, windows: Iterable[LoadedWindow], batch_size: int, world: World, masking: DynamicMasking | None = None
) -> dict[str, float]:
    """Mean losses in nats and accuracies in [0, 1] over all examples, the last short batch included.

    Every rank takes its share of the rows and gets the result of all.

    :param windows: of the split, of which one is in memory at a time.
    :param masking: draws the masks, those of epoch 0 each time; None: the examples have them.
    :returns: without the figures of next-sentence prediction where no row has a pair.
    """
    training = model.training
    model.eval()
    totals = torch.zeros(6, dtype=torch.float64, device=world.device)
    for batch in _share(windows, masking, batch_size, world):
        mlm_logits_MV, next_sentence_logits_B2 = model.logits(batch)
        mlm_sum = F.cross_entropy(mlm_logits_MV, batch.labels, reduction="sum")
        found = losses(mlm_sum, next_sentence_logits_B2, batch)
        mlm_hits = (mlm_logits_MV.argmax(-1) == batch.labels).sum()
        next_sentence_hits = (next_sentence_logits_B2.argmax(-1) == batch.next_sentence_label).sum()
        sums = (found.mlm_sum, found.mlm_count, mlm_hits, found.next_sentence_sum, found.next_sentence_count, next_sentence_hits)
        totals += torch.stack([value.double() for value in sums])
    model.train(training)
    mlm, masked, mlm_hits, next_sentence, pairs, next_sentence_hits = world.sum(totals).tolist()
    figures = {"mlm_loss": mlm / max(masked, 1), "mlm_accuracy": mlm_hits / max(masked, 1)}
    if pairs:
        figures |= {"next_sentence_loss": next_sentence / pairs, "next_sentence_accuracy": next_sentence_hits / pairs}
    return figures
