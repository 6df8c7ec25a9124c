"""The command `pretrain-bert`.

    pretrain-bert run [--preset tiny] [--settings FILE] [--corpus …] [--steps N] [--seed N] [--set training.learning_rate=3e-4 …]
    pretrain-bert encode models:/bert-tiny@champion "a crane is flying" ["he just left"]
    pretrain-bert finetune models:/bert-mini@champion --task classification --train reviews.tsv [--set finetuning.epochs=5 …]
    pretrain-bert predict models:/bert-mini-reviews@champion "a fine film"
    pretrain-bert lineage models:/bert-tiny@champion [--verify]
    pretrain-bert compare models:/bert-tiny/1 models:/bert-tiny@champion
    pretrain-bert rollback bert-tiny [--to NUMBER]
    pretrain-bert fill-mask models:/bert-mini@champion "a crane is [MASK]" [--top 5]
    pretrain-bert estimate --corpus-gigabytes N [--preset tiny] [--settings FILE] [--devices N …]
    pretrain-bert inspect [ADDRESS] [--examples 5] [--seed 0] [--pictures FOLDER]
    pretrain-bert clean [--days 7] [--yes]

A `PipelineError` ends it with one line on standard error and exit status 1. Prefect, MLflow, torch and matplotlib are imported
late, where a command needs them: after the settings were checked, so that a wrong setting is answered at once, and after
their environment was set.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.addresses import without_credentials
from pipeline.clean import days_ago
from pipeline.errors import PipelineError, SettingsError
from pipeline.inspection import Example, ShardSet, Statistics, count_shards, draw_examples, find_shards
from pipeline.settings import recipe_of

from .commands import encode, environment, finetune, lineage, rollback
from .commands.printing import numbers, print_lines
from .estimate import add_estimate_options, estimate_lines, runs_of
from .names import check_model_name, check_version_address
from .options import add_recipe_options, read_sections, whole_number
from .places import CORPUS, artifacts, store, tracking_uri

_VERSION = "previous, the newest of another text, or models:/NAME/NUMBER"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        options.run_command(options)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.told:
            print(f"       the full traceback is in {artifacts() / 'logs' / 'errors.log'}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno is None or error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        then = getattr(options, "interrupted", "the same command goes on from the last checkpoint")
        print(f"error: interrupted; {then}", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    parser = argparse.ArgumentParser(prog="pretrain-bert", description="Pretrain BERT encoders and use them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="the whole job here: corpus, shards, training, registered encoder")
    add_recipe_options(run)
    run.add_argument("--corpus", help="file, folder, glob or address of a corpus, or wikitext-103 (default: WikiText-2)")
    run.add_argument("--model-name", help="name in the registry (default: bert-PRESET, with the corpus's name if it is not WikiText-2)")
    run.add_argument("--vocabulary-from", metavar="VERSION", help=f"keep its vocabulary instead of making one: {_VERSION}")
    run.add_argument(
        "--warm-start",
        metavar="VERSION",
        help=f"start from its weights instead of random ones: {_VERSION}, or the folder of a BERT checkpoint",
    )
    run.set_defaults(run_command=_run)
    encode.add_commands(commands)
    finetune.add_commands(commands)
    rollback.add_commands(commands)
    lineage.add_commands(commands)
    estimate = commands.add_parser("estimate", help="what a run takes at a scale: bytes, time, memory, cost, and where it breaks first")
    add_recipe_options(estimate)
    add_estimate_options(estimate)
    estimate.set_defaults(run_command=_estimate)
    inspect = commands.add_parser("inspect", help="show what a shard set holds: some of its examples, and statistics")
    inspect.add_argument(
        "address",
        nargs="?",
        help="folder of a shard set or of a bucket; or its key in the store, or the beginning of it (default: the newest set to train on)",
    )
    inspect.add_argument("--examples", default="5", help="how many (default: %(default)s); 0: statistics alone")
    inspect.add_argument("--seed", default="0", help="of the examples' draw (default: %(default)s)")
    inspect.add_argument("--pictures", metavar="FOLDER", help="write pictures there: lengths, frequencies of tokens, labels and masks")
    inspect.set_defaults(run_command=_inspect)
    clean = commands.add_parser("clean", help="show, or remove, outputs that no registered version and no recent run leads to")
    clean.add_argument("--days", default="7", help="keep what was made or run within so many days (default: %(default)s)")
    clean.add_argument("--yes", action="store_true", help="remove; without it nothing is")
    clean.set_defaults(run_command=_clean)
    return parser


def _run(options: argparse.Namespace) -> None:
    sections = read_sections(options)
    recipe_of(options.preset, None, None, **sections)  # all that matters is that nothing is refused
    check_model_name(options.model_name)
    check_version_address("--vocabulary-from", options.vocabulary_from)
    check_version_address("--warm-start", options.warm_start, or_folder=True)
    environment.prepare()
    from . import runner  # imports Prefect and MLflow

    parameters = {
        "preset": options.preset,
        "corpus": _hide_credentials(options.corpus),
        "model_name": options.model_name,
        "vocabulary_from": options.vocabulary_from,
        "warm_start": options.warm_start,
        "sample_without_network": True,
    }
    _report(runner.run(parameters, sections))


def _hide_credentials(corpus: str | None) -> str | None:
    """The address as it may be recorded; the whole one goes to the flow by the environment."""
    if not corpus or (shown := without_credentials(corpus)) == corpus:
        return corpus or None
    os.environ[CORPUS] = corpus
    return shown


def _report(result: dict[str, Any]) -> None:
    from pipeline.samples import WORD  # imports torch, as the next does
    from pipeline.training.metrics import held_out_text, mean_losses

    run = result["run"]
    print(f"\ncorpus         {result['corpus']}: {result['note']}")
    print(f"training       {run['steps']} steps on {run['device']}, {run['pairs_per_second']:,.0f} pairs/s")
    print(f"running means  {', '.join(mean_losses(run))}")
    print(f"held out       {held_out_text(run['held_out'])}")
    for sample in result["samples"]:
        text = " / ".join(part for part in (sample["text"], sample["text_pair"]) if part)
        unknown = f", unknown: {' '.join(sample['unknown'])}" if sample["unknown"] else ""
        print(f"encoding       {text!r}: {tuple(sample['shape'])}, {WORD} {numbers(sample['word'])}{unknown}")
    print(f"encoder        {result['version']} in {without_credentials(tracking_uri())}")
    print(f"gate           {result['gate']}")
    print(f"try            {sys.argv[0]} encode {result['version']} 'a crane is flying'")


def _estimate(options: argparse.Namespace) -> None:
    preset = recipe_of(options.preset, None, None, **read_sections(options))
    print_lines(estimate_lines(runs_of(options, preset)))


def _inspect(options: argparse.Namespace) -> None:
    count, seed = (whole_number(name, getattr(options, name)) for name in ("examples", "seed"))
    for name, value in (("examples", count), ("seed", seed)):
        if value < 0:
            raise SettingsError(f"{name}: got {value}, wanted a value >= 0")
    shards = find_shards(store(), options.address)
    pictures_folder = environment.make_folder(options.pictures) if options.pictures else None
    print_lines([_title(shards), ""])
    for number, example in enumerate(draw_examples(shards, count, seed), 1):
        print_lines(_example_lines(number, example))
    statistics = count_shards(shards)
    print_lines(_table_lines(statistics))
    if pictures_folder:
        _draw(statistics, pictures_folder)


def _title(shards: ShardSet) -> str:
    split = shards.output.facts.get("split")
    content = f"{split}, {len(shards.output.facts['buckets'])} buckets" if split else "one bucket"
    return f"{shards.output.address}: {content}, made {shards.output.manifest['recorded']['created']}"


def _example_lines(number: int, example: Example) -> list[str]:
    place = f"row {example.row} of bucket/{example.bucket}, document {example.document}"
    sentences = (" ".join(map(str, tokens)) for tokens in (example.first, example.second) if tokens)
    return [f"example {number}: {example.label}; {place}", *(f"  {name}  {text}" for name, text in zip("AB", sentences, strict=False)), ""]


def _table_lines(statistics: Statistics) -> list[str]:
    rows = [line.cells() for line in statistics.table()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{name:<{widths[0]}}  {count:>{widths[1]}}  {share:>{widths[2]}}  {note}".rstrip() for name, count, share, note in rows]


def _draw(statistics: Statistics, folder: Path) -> None:
    from . import pictures  # imports matplotlib

    figures = {
        "lengths": pictures.row_lengths(statistics),
        "token-frequencies": pictures.token_frequencies(statistics),
        "labels-and-masks": pictures.labels_and_masks(statistics),
    }
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=pictures.DPI)
    print_lines(["", *(f"picture  {folder / name}.png" for name in figures)])


def _clean(options: argparse.Namespace) -> None:
    environment.set_quiet()
    since = days_ago(whole_number("days", options.days))
    from . import clean  # imports MLflow

    clean.clean(since, yes=options.yes)


if __name__ == "__main__":
    sys.exit(main())
