"""The pictures that MLflow keeps with a run.

In: an encoder, the metrics of its run, the shards that it was trained on. Out: figures by the names of their files. The
decision that matters: they are drawn once, where a version is registered, since none is needed before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from pipeline.encoding import Encoder
from pipeline.inspection import Statistics
from pipeline.samples import SENTENCES
from pipeline.views import in_a_plane, last_attention

from . import pictures


def gallery(encoder: Encoder, rows: Sequence[Mapping[str, Any]], statistics: Statistics) -> dict[str, Figure]:
    """Losses, masks and lengths of the training rows, the last layer's attention in the test sentences, their tokens' vectors.

    :param rows: of `metrics.jsonl`. :param statistics: of the training shards.
    """
    return {
        "loss_curve.png": pictures.loss_curve(rows),
        "labels_and_masks.png": pictures.labels_and_masks(statistics),
        "row_lengths.png": pictures.row_lengths(statistics),
        **{
            f"attention_{number}.png": pictures.attention(last_attention(encoder, *texts).numpy(), encoder.tokens(*texts))
            for number, texts in enumerate(SENTENCES, 1)
        },
        "vectors.png": _vectors(encoder),
    }


def _vectors(encoder: Encoder) -> Figure:
    groups = {" / ".join(filter(None, texts)): encoder.tokens(*texts) for texts in SENTENCES}
    vectors = [vector for texts in SENTENCES for vector in encoder.encode(*texts)[0]]
    points, shares = in_a_plane(vectors)
    return pictures.vectors(groups, points.numpy(), shares)
