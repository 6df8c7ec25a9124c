"""What a model that knows only how frequent each token is would reach on the masked-language-model task.

In: counts of labels. Out: a loss. The decision that matters: a held-out loss that is not below it has learnt nothing of
context, however much it fell, so it stands beside every one.
"""

import numpy as np

from ..shards import IntArray


def unigram_loss(train_counts: IntArray, held_out_counts: IntArray) -> float:
    """The cross-entropy, in nats a label, of held-out labels under the frequencies of training's, add-one smoothed.

    :param train_counts: how often each token [V] is a label. :param held_out_counts: the same of the held-out split.
    :returns: 0 where there is no held-out label.
    """
    probabilities = (train_counts + 1) / (train_counts.sum() + len(train_counts))
    return float(-(held_out_counts * np.log(probabilities)).sum() / max(held_out_counts.sum(), 1))
