"""Prefect artifacts: progress, what the shards hold, what was built, the loss curve, the sample encodings, the version.

In: outputs, statistics and figures. Out: artifacts on the run's page. Every text here is Markdown or a table.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
from matplotlib.figure import Figure
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from pipeline.inspection import ShardSet, Statistics, count_shards
from pipeline.samples import WORD, SampleEncoding
from pipeline.storage import Output

from . import pictures
from .gate import Decision

ENOUGH_ROWS = 100_000  # to see lengths and words by; read in well under a second


def start_progress() -> UUID:
    """A progress bar for training."""
    made = create_progress_artifact(0.0, key="training-progress", description="Steps of training done")
    assert isinstance(made, UUID)
    return made


def show_progress(artifact: UUID, step: int, steps: int) -> None:
    """Move the bar; a server that misses a beat is no reason to end what it shows."""
    with suppress(httpx.HTTPError):
        update_progress_artifact(artifact, progress=100.0 * step / steps)


def show_shards(shards: ShardSet) -> None:
    """What a split's shard set holds; of a large one, lengths and words are those of its first buckets."""
    split = shards.output.facts["split"]
    markdown = shards_markdown(count_shards(shards, ENOUGH_ROWS))
    create_markdown_artifact(markdown, key=f"shards-{split}", description=f"What the shards of {split} hold")


def shards_markdown(statistics: Statistics) -> str:
    """The statistics of a shard set as Markdown, with a picture of the lengths."""
    lines = ["| | count | share | |", "|---|---:|---:|---|"]
    lines += [f"| {' | '.join(map(_cell, line.cells()))} |" for line in statistics.table()]
    return "\n".join([*lines, "", statistics.sample, "", _picture(pictures.row_lengths(statistics), "lengths of rows")])


def show_built(outputs: Iterable[Output]) -> None:
    """A table of the stages' outputs with their keys and counts, and whether this run made them or found them."""
    rows = [
        {
            "stage": output.stage,
            "key": output.key,
            "this run": "found it" if output.found else "made it",
            "facts": _facts(output),
            "address": output.address,
            "made": output.manifest["recorded"]["created"],
        }
        for output in outputs
    ]
    create_table_artifact(rows, key="what-was-built", description="Outputs of the stages")


def _facts(output: Output) -> str:
    facts = output.facts
    if "counts" in facts:
        names = ("documents", "sentences", "pairs", "rows", "row_tokens", "masked", "truncated", "dropped_too_long", "dropped_no_negative")
        facts = {"split": facts["split"], **{name: facts["counts"][name] for name in names}}
        facts |= {name: count for name, count in output.manifest["recorded"].items() if name.startswith("buckets_")}
    elif output.stage == "corpus":
        read = {f"{split}_{name}": count for split, counts in facts.get("read", {}).items() for name, count in counts.items() if count}
        facts = {f"{split}_{name}": facts[split][name] for split in ("train", "valid") for name in ("paragraphs", "bytes")} | read
    return ", ".join(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in facts.items() if _plain(value))


def _plain(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def show_loss_curve(figure: Figure) -> None:
    """The curve as a picture."""
    create_markdown_artifact(_picture(figure, "losses by step"), key="loss-curve", description="Losses by step")


def _picture(figure: Figure, name: str) -> str:
    """A figure within Markdown."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=pictures.DPI)
    return f"![{name}](data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()})"


def samples_table(samples: Sequence[SampleEncoding]) -> dict[str, list[Any]]:
    """Columns of the sample encodings."""
    return {
        "text": [sample.text for sample in samples],
        "text_pair": [sample.text_pair or "" for sample in samples],
        "tokens": [" ".join(sample.tokens) for sample in samples],
        "shape": [str(tuple(sample.shape)) for sample in samples],
        "cls": [_numbers(sample.cls) for sample in samples],
        WORD: [_numbers(sample.word) for sample in samples],
        "unknown_words": [" ".join(sample.unknown) for sample in samples],
    }


def samples_markdown(samples: Sequence[SampleEncoding], similarity: float) -> str:
    """The sample encodings as Markdown."""
    columns = samples_table(samples)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in zip(*columns.values(), strict=True)]
    return "\n".join([*lines, "", f"Cosine similarity of {WORD}'s vector in the two: {similarity:.4f}"])


def _cell(value: str) -> str:
    return value.replace("<", "&lt;").replace("|", "&#124;")


def _numbers(vector: Sequence[float]) -> str:
    return ", ".join(f"{number:.4f}" for number in vector)


def show_samples(markdown: str) -> None:
    """The sample encodings on the run's page."""
    create_markdown_artifact(
        markdown, key="sample-encodings", description="Encodings of the test sentences, first three numbers of a vector"
    )


def show_decision(decision: Decision) -> None:
    """What the gate decided, with the numbers."""
    lines = [f"`{decision.version.uri}` is **{decision.alias}**: {decision.reason}"]
    if compared := decision.comparison:
        figures = {compared.rule: (compared.candidate, compared.champion), **compared.details}
        lines += ["", "| | candidate | champion until now |", "|---|---:|---:|"]
        lines += [f"| {name.replace('_', ' ')} | {candidate:.4f} | {champion:.4f} |" for name, (candidate, champion) in figures.items()]
    create_markdown_artifact("\n".join(lines), key="gate", description="Whether the version became the champion")


def show_card(markdown: str) -> None:
    """The card of a fine-tuned encoder."""
    create_markdown_artifact(markdown, key="model-card", description="What was fine-tuned, on what, and how good it is")


def show_version(uri: str, page: str | None) -> None:
    """A link to the model version; its address where no server shows a page."""
    if page:
        create_link_artifact(page, link_text=uri, key="model-version", description="The registered encoder in MLflow")
    else:
        create_markdown_artifact(f"Registered as `{uri}`; `make up` shows it in MLflow.", key="model-version", description="The encoder")
