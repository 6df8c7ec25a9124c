"""The commands `finetune` and `predict`: a registered encoder gets a head, and what the head says of text."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.addresses import refuse_credentials, without_credentials
from pipeline.errors import SettingsError
from pipeline.finetuning.settings import QUESTION_ANSWERING, TASKS, FinetuningSettings
from pipeline.staging import check_place, written_whole

from ..names import check_model_name
from ..options import read_entries
from ..places import tracking_uri
from . import environment
from .printing import print_lines

if TYPE_CHECKING:
    from pipeline.finetuning.prediction import Finetuned

_TEXT, _PAIR, _LABEL = "text", "text_pair", "label"
_SECTION = FinetuningSettings.section


def add_commands(commands: Any) -> None:
    """Add both to a command line."""
    finetune = commands.add_parser("finetune", help="train an encoder and a head for a task, and register it")
    finetune.add_argument("encoder", help="a registered encoder, such as models:/bert-mini@champion, or an encoder folder")
    finetune.add_argument("--task", required=True, choices=TASKS)
    finetune.add_argument(
        "--train", required=True, metavar="DATA", help="TSV, CSV, JSON Lines or Parquet; for question_answering SQuAD JSON"
    )
    finetune.add_argument("--held-out", metavar="DATA", help="what it is evaluated on (default: a share of the training data)")
    finetune.add_argument("--text-column", default=_TEXT, help="(default: %(default)s)")
    finetune.add_argument("--pair-column", default=_PAIR, help="of the second text, of pair_classification (default: %(default)s)")
    finetune.add_argument("--label-column", default=_LABEL, help="(default: %(default)s)")
    finetune.add_argument("--model-name", help="name in the registry (default: the encoder's and the data's)")
    finetune.add_argument("--random-encoder", action="store_true", help="start from random weights of its shape, as a baseline")
    finetune.add_argument("--set", action="append", default=[], metavar=f"{_SECTION}.NAME=VALUE", help=f"such as {_SECTION}.epochs=5")
    finetune.set_defaults(run_command=_finetune)
    predict = commands.add_parser("predict", help="the class of a text or pair, or the answer to a question, by a fine-tuned encoder")
    predict.add_argument("model", help="an address such as models:/bert-mini-reviews@champion, or a folder")
    predict.add_argument("text", nargs="?", help="a text; of question answering the question")
    predict.add_argument("text_pair", nargs="?", help="the second text of a pair; of question answering the context")
    predict.add_argument(
        "--file", metavar="ADDRESS", help="many: a text file, a text a line; .tsv, .csv, .jsonl or .parquet; or - for standard input"
    )
    predict.add_argument("--column", help=f"of a table: column of the text or question (default: {_TEXT})")
    predict.add_argument("--pair-column", help="of a table: column of the second text or context")
    predict.add_argument("--pairs", action="store_true", help="each line of a text file is a pair, with a TAB between")
    predict.add_argument("--to", metavar="PATH", help="of --file: JSON Lines to write (default: standard output)")
    predict.set_defaults(run_command=_predict, interrupted="the same command begins again")


def _finetune(options: argparse.Namespace) -> None:
    settings = read_entries(options.set, {_SECTION})[_SECTION]
    FinetuningSettings.read(settings).check(options.task)  # all that matters is that nothing is refused
    check_model_name(options.model_name)
    for option in ("train", "held_out"):
        refuse_credentials(f"--{option.replace('_', '-')}", getattr(options, option) or "")
    environment.prepare()
    from .. import runner  # imports Prefect and MLflow

    names = ("encoder", "task", "train", "held_out", "text_column", "pair_column", "label_column", "model_name", "random_encoder")
    _report(runner.finetune({name: getattr(options, name) for name in names}, settings))


def _report(result: dict[str, Any]) -> None:
    from ..finetuned_card import baseline

    facts, data = result["facts"], result["data"]
    classes = f", {len(facts['labels'])} classes" if facts["labels"] else ""
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in facts["held_out"].items())
    print(f"\ndata           {facts['task']}: {facts['rows']['train']:,} rows to train on, {facts['rows']['held_out']:,} held out{classes}")
    print(f"training       {facts['steps']} steps on {facts['device']}, {facts['seconds']:.0f} s")
    print(f"held out       {figures}{f' ({beside})' if (beside := baseline(data)) else ''}")
    print(f"model          {result['version']} in {without_credentials(tracking_uri())}")
    print(f"gate           {result['gate']}")
    texts = "'QUESTION' 'CONTEXT'" if facts["task"] == QUESTION_ANSWERING else "'TEXT' 'TEXT'" if facts["task"] == TASKS[1] else "'TEXT'"
    print(f"try            {sys.argv[0]} predict {result['version']} {texts}")


def _predict(options: argparse.Namespace) -> None:
    if (options.file is None) == (options.text is None):
        raise SettingsError("predict: wanted a text or --file, one of the two")
    if options.file is None and options.to:
        raise SettingsError("--to: got one without --file, wanted both")
    environment.set_quiet()
    if options.file is None:
        (found,) = _load(options.model).predict([(options.text, options.text_pair)])
        print_lines(_lines(found))
    else:
        _predict_many(options)


def _predict_many(options: argparse.Namespace) -> None:
    from pipeline.encoding_inputs import Source, check_source  # imports torch

    source = Source(options.file, options.column or _TEXT, options.pair_column, options.pairs)
    check_source(source, lambda name: bool(getattr(options, name)))
    if options.to:
        if not options.to.endswith(".jsonl"):
            raise SettingsError(f"--to: got {options.to}, wanted a name that ends in .jsonl, since JSON Lines are written")
        check_place(Path(options.to), options.file)
    model = _load(options.model)
    inputs = ((entry, None) if isinstance(entry, str) else entry for entry in source.read())
    lines = (json.dumps(found, ensure_ascii=False) for found in model.predict(inputs, where=source.where))
    if options.to is None:
        print_lines(lines)
        return
    with written_whole(Path(options.to)) as file:
        count = sum(1 for line in lines if file.write(f"{line}\n".encode()))
    print_lines([f"{count:,} predicted into {options.to}"])


def _load(model: str) -> "Finetuned":
    folder = Path(model)
    if model.startswith("models:"):
        from .. import models  # imports MLflow

        folder = models.download(model, models.FINETUNED)
    from pipeline.finetuning.prediction import Finetuned  # imports torch

    return Finetuned.load(folder)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if "label" not in found:
        yield f"{found['answer'] or '(no answer)'}"
        yield f"probability {found['probability']:.4f}, characters {found['start']} to {found['end']}"
        return
    yield _shown(found["label"])
    for label, probability in sorted(found["probabilities"].items(), key=lambda entry: -entry[1]):
        yield f"{_shown(label):>16}  {probability:.4f}"


def _shown(label: str) -> str:
    return label if label.isprintable() else repr(label)
