"""Figures: the losses of a run, what a shard set holds, what an encoder makes of sentences.

In: rows of metrics, statistics, or arrays. Out: matplotlib figures, which reports show and commands write. Imports no Prefect, so
that a command need not wait for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.inspection import Statistics

Row = Mapping[str, Any]
DPI = 90
_SIZE = (8, 3.2)  # inches
_SIZE_OF_PLANE = (8, 5)
_MOST_COLUMNS = 4
_TASKS = {"mlm_loss": "masked words", "next_sentence_loss": "next sentence"}


def loss_curve(rows: Sequence[Row]) -> Figure:
    """Losses by step: each step's, the running means, and the held-out ones."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    steps = [row for row in rows if row["kind"] == "train"]
    held_out = [row for row in rows if row["kind"] == "held_out"]
    tasks = {name: title for name, title in _TASKS.items() if name in steps[-1]}
    for axes, (name, title) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
        axes.plot([row["step"] for row in steps], [row[name] for row in steps], lw=0.8, alpha=0.6, label="each step")
        axes.plot([row["step"] for row in steps], [row[f"{name}_mean"] for row in steps], label="running mean")
        axes.plot([row["step"] for row in held_out], [row[name] for row in held_out], "o", label="held out")
        if name == "mlm_loss" and held_out:
            axes.axhline(held_out[-1]["unigram_loss"], color="black", ls="--", lw=0.8, label="unigram level, held out")
        axes.set(title=title, xlabel="step", ylabel="cross-entropy (nats)")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def row_lengths(statistics: Statistics) -> Figure:
    """How many rows have each length."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.stairs(statistics.lengths[1:], np.arange(len(statistics.lengths)) + 0.5, fill=True)
    special = statistics.tokens.special_tokens
    axes.set(title="lengths of rows", xlabel=f"tokens, {special['cls_token']} and {special['sep_token']} included", ylabel="rows")
    axes.grid(alpha=0.3)
    return figure


def token_frequencies(statistics: Statistics) -> Figure:
    """How often each token stands in the rows, by its rank; both axes logarithmic, so that Zipf's law is a line."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    counts = statistics.seen[statistics.by_frequency()]
    axes.loglog(np.arange(1, len(counts) + 1), counts)
    axes.set(title="frequencies of tokens, masks taken back", xlabel="rank", ylabel="times in the rows")
    axes.grid(alpha=0.3)
    return figure


def labels_and_masks(statistics: Statistics) -> Figure:
    """Shares of the labels and of the mask kinds, each beside what was wanted."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    labels = [(label, count, 0.5) for label, count in statistics.labels]
    bars = (("labels", labels, "no pair task"), ("masks", statistics.mask_kinds, "drawn while training"))
    for axes, (title, shares, without) in zip(figure.subplots(1, 2), bars, strict=True):
        axes.set(title=title if shares else f"{title}: {without}", ylim=(0, 1), ylabel="share")
        axes.grid(alpha=0.3, axis="y")
        if shares:
            names, counts, rates = zip(*shares, strict=True)
            axes.bar(names, np.array(counts) / max(1, sum(counts)), width=0.6)
            axes.hlines(rates, np.arange(len(names)) - 0.4, np.arange(len(names)) + 0.4, color="black", ls="--", label="wanted")
            axes.legend()
    return figure


def both_curves(curves: Mapping[str, Mapping[str, Mapping[int, float]]], titles: Mapping[str, str]) -> Figure:
    """Curves of several runs: value by step, by metric, by the run's name; a picture for each metric."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    for axes, (metric, title) in zip(figure.subplots(1, len(titles), squeeze=False)[0], titles.items(), strict=True):
        for name, found in curves.items():
            axes.plot(list(found[metric]), list(found[metric].values()), "o-" if len(found[metric]) < 20 else "-", label=name)
        axes.set(title=title, xlabel="step", ylabel="cross-entropy (nats)" if "loss" in metric else "")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def attention(weights_HLL: NDArray[Any], tokens: Sequence[str]) -> Figure:
    """Who attends to whom: a map a head, four beside one another."""
    heads = len(weights_HLL)
    columns = min(heads, _MOST_COLUMNS)
    rows, inches = -(-heads // columns), 1.2 + 0.22 * len(tokens)
    figure = Figure(figsize=(columns * inches, rows * (inches + 0.3)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for head, place in enumerate(axes.flat):
        if head >= heads:
            place.axis("off")
            continue
        place.imshow(weights_HLL[head], cmap="Blues", vmin=0, vmax=1)
        place.set_title(f"head {head + 1}", fontsize=9)
        place.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8, parse_math=False)
        place.set_yticks(range(len(tokens)), tokens, fontsize=8, parse_math=False)
    figure.suptitle("attention of the last layer: a row attends to columns, white 0, dark 1", fontsize=9)
    return figure


def vectors(groups: Mapping[str, Sequence[str]], points: NDArray[Any], shares: Sequence[float]) -> Figure:
    """The vectors of the tokens of some sentences in a plane, a colour a sentence.

    :param groups: tokens by sentence. :param points: (N, 2) of all, in order. :param shares: of the variance, an axis each.
    """
    figure = Figure(figsize=_SIZE_OF_PLANE, layout="constrained")
    axes = figure.subplots()
    first = 0
    for group, (sentence, tokens) in enumerate(groups.items()):
        inside = points[first : first + len(tokens)]
        first += len(tokens)
        dots = axes.scatter(inside[:, 0], inside[:, 1], label=sentence, s=18)
        colour, below = dots.get_facecolor()[0], -10 * (group % 2)  # so that the same word in two sentences can be read
        for token, (x, y) in zip(tokens, inside, strict=True):
            axes.annotate(token, (x, y), xytext=(4, 3 + below), textcoords="offset points", fontsize=8, color=colour, parse_math=False)
    names = (f"principal component {number}, {share:.0%} of the variance" for number, share in enumerate(shares, 1))
    axes.set(title="vectors of the test sentences' tokens", **dict(zip(("xlabel", "ylabel"), names, strict=True)))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
