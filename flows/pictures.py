"""Figures: the losses of a run, and what a shard set holds.

In: rows of metrics, or statistics. Out: matplotlib figures, which reports show and commands write. Imports no Prefect, so
that a command need not wait for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipeline.inspection import Statistics

Row = Mapping[str, Any]
DPI = 90
_SIZE = (8, 3.2)  # inches
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
        axes.set(title=title, xlabel="step", ylabel="cross-entropy (nats)")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure
