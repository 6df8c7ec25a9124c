"""Prefect artifacts: progress, what the shards hold, what was built, the loss curve, sample encodings, version, report.

In: outputs, statistics and figures. Out: artifacts on the run's page. Every text here is Markdown or a table.
"""

from collections.abc import Iterable
from contextlib import suppress
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
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from pipeline.inspection import Example, ShardSet, Statistics, Token, count_shards, draw_examples
from pipeline.settings import ShardSettings
from pipeline.storage import Output

from . import pictures
from .card import figures_markdown
from .gate import Decision
from .markdown import duration, picture, plain, table
from .registry import Version
from .stages import Duration

ENOUGH_ROWS = 100_000  # to see lengths and words by; read in well under a second
EXAMPLES = 6


def start_progress() -> UUID:
    """A progress bar for training."""
    made = create_progress_artifact(0.0, key="training-progress", description="Steps of training done")
    assert isinstance(made, UUID)
    return made


def show_progress(artifact: UUID, step: int, steps: int, description: str) -> None:
    """Move the bar; a server that misses a beat is no reason to end what it shows."""
    with suppress(httpx.HTTPError):
        update_progress_artifact(artifact, progress=100.0 * step / steps, description=description)


def show_shards(shards: ShardSet) -> None:
    """What a split's shard set holds, of train with some examples; of a large one, lengths and words are those of its first buckets."""
    split = shards.output.facts["split"]
    markdown = shards_markdown(count_shards(shards, ENOUGH_ROWS))
    create_markdown_artifact(markdown, key=f"shards-{split}", description=f"What the shards of {split} hold")
    if split == "train":
        examples = examples_markdown(draw_examples(shards, EXAMPLES, 0))
        create_markdown_artifact(examples, key="examples-train", description="Some examples to train on, their masks in bold")


def shards_markdown(statistics: Statistics) -> str:
    """The statistics of a shard set as Markdown, with a picture of the lengths."""
    counts = table(("", "count", "share", ""), (list(map(plain, line.cells())) for line in statistics.table()), right=(1, 2))
    return "\n".join([counts, "", statistics.sample, "", picture(pictures.row_lengths(statistics), "lengths of rows")])


def examples_markdown(examples: Iterable[Example]) -> str:
    """Examples in paragraphs, which the page breaks into lines: what stood at a masked position and stands there now, in bold."""
    return "\n\n".join(part for number, example in enumerate(examples, 1) for part in _example_parts(number, example))


def _example_parts(number: int, example: Example) -> list[str]:
    sentences = ((name, tokens) for name, tokens in (("A", example.first), ("B", example.second)) if tokens)
    return [f"#### {number}. {plain(example.label)}", *(f"{name}: {_words(tokens)}" for name, tokens in sentences)]


def _words(tokens: Iterable[Token]) -> str:
    return " ".join(plain(str(token)) if token.was is None else f"**{plain(str(token))}**" for token in tokens)


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


def show_loss_curve(figure: Figure, known: UUID | None = None) -> UUID | None:
    """The curve as a picture; a server that misses a beat is no reason to end what it shows.

    :param known: the artifact that shows it already, which gets the new picture. :returns: the artifact.
    """
    text = picture(figure, "losses by step")
    with suppress(httpx.HTTPError):
        if known is None:
            made = create_markdown_artifact(text, key="loss-curve", description="Losses by step")
            assert isinstance(made, UUID)
            return made
        with get_client(sync_client=True) as client:
            client.update_artifact(known, ArtifactUpdate(data=text))
    return known


def show_samples(markdown: str) -> None:
    """The sample encodings on the run's page."""
    create_markdown_artifact(
        markdown, key="sample-encodings", description="Encodings of the test sentences, first three numbers of a vector"
    )


def show_decision(decision: Decision) -> None:
    """What the gate decided, with the numbers."""
    lines = [plain(str(decision))]
    if compared := decision.comparison:
        figures = {compared.rule: (compared.candidate, compared.champion), **compared.details}
        lines += ["", "| | candidate | champion until now |", "|---|---:|---:|"]
        for name, (candidate, champion) in figures.items():
            lines.append(f"| {name.replace('_', ' ')} | {candidate:.4f} | {'none' if champion is None else f'{champion:.4f}'} |")
    create_markdown_artifact("\n".join(lines), key="gate", description="Whether the version became the champion")


def show_report(version: Version, run: Output, shards: ShardSettings, durations: Iterable[Duration], decision: str) -> None:
    """What a person looks for once the run is done."""
    markdown = report_markdown(version, run, shards, durations, decision)
    create_markdown_artifact(markdown, key="report", description=f"The run in short: {version.uri}")


def report_markdown(version: Version, run: Output, shards: ShardSettings, durations: Iterable[Duration], decision: str) -> str:
    """The report: where the encoder is, how to use it, its figures, the gate's decision, how long the stages took."""
    pages = {"its card in MLflow": version.page, "the run that made it, with curves and pictures": version.run_page}
    links = ", ".join(f"[{name}]({page})" for name, page in pages.items() if page) or "`make up` shows it in MLflow"
    tasks = [(plain(entry.name), duration(entry.seconds), "found" if entry.found else "done") for entry in durations]
    sections = {
        "Encoder": f'`{version.uri}`: {links}\n\n```\n.venv/bin/pretrain-bert encode {version.uri} "a crane is flying"\n```',
        "Gate": plain(decision),
        "Figures": figures_markdown(run.facts, shards),
        "Stages": table(("stage", "time", "output"), tasks, right=(1,)),
    }
    return "\n\n".join(part for title, text in sections.items() for part in (f"## {title}", text))


def show_card(markdown: str) -> None:
    """The card of a fine-tuned encoder."""
    create_markdown_artifact(markdown, key="model-card", description="What was fine-tuned, on what, and how good it is")


def show_version(uri: str, page: str | None) -> None:
    """A link to the model version; its address where no server shows a page."""
    if page:
        create_link_artifact(page, link_text=uri, key="model-version", description="The registered encoder in MLflow")
    else:
        create_markdown_artifact(f"Registered as `{uri}`; `make up` shows it in MLflow.", key="model-version", description="The encoder")
