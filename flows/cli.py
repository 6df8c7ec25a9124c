"""The command `pretrain-bert`.

    pretrain-bert run [--preset tiny] [--corpus …] [--steps N] [--seed N] [--set training.learning_rate=3e-4 …]
    pretrain-bert encode models:/bert-tiny@champion "a crane is flying" ["he just left"]
    pretrain-bert clean [--days 7] [--yes]

A `PipelineError` ends it with one line on standard error and exit status 1. Prefect and MLflow are imported late, after
the settings were checked and after their environment was set, so that a wrong setting is answered at once.
"""

import argparse
import os
import signal
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.clean import days_ago
from pipeline.data.download import without_credentials
from pipeline.encoding import Encoder
from pipeline.errors import PipelineError, SettingsError
from pipeline.samples import WORD
from pipeline.settings import load_preset, preset_names

from .names import check_model_name, check_version_address
from .places import CORPUS, QUIET, artifacts, tracking_uri
from .services import check_prefect

_VERSION = "previous, the newest of another text, or models:/NAME/NUMBER"
_SECTIONS = ("vocabulary", "shards", "model", "training")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    options = _parser().parse_args(arguments)
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
        print("error: interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


def _terminate(number: int, frame: object) -> None:
    """End as Ctrl-C does, so that the temporary server ends too."""
    print("error: terminated; the same command goes on from the last checkpoint", file=sys.stderr)
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pretrain-bert", description="Pretrain BERT encoders and use them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="the whole job here: corpus, shards, training, registered encoder")
    run.add_argument("--preset", default="tiny", help=f"one of {', '.join(preset_names())} (default: %(default)s)")
    run.add_argument("--corpus", help="folder, zip or address of a corpus (default: WikiText-2)")
    run.add_argument("--steps", help="optimizer steps (default: as the preset says)")
    run.add_argument("--seed", help="seed of pairs, masks, weights and order (default: as the preset says)")
    run.add_argument("--model-name", help="name in the registry (default: bert-PRESET, with the corpus's name if it is not WikiText-2)")
    run.add_argument("--vocabulary-from", metavar="VERSION", help=f"keep its vocabulary instead of counting words: {_VERSION}")
    run.add_argument("--warm-start", metavar="VERSION", help=f"start from its weights instead of random ones: {_VERSION}")
    run.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help=f"a setting of {', '.join(_SECTIONS)}")
    run.set_defaults(run_command=_run)
    encode = commands.add_parser("encode", help="encode a sentence or a pair with a registered encoder")
    encode.add_argument("model", help="an address such as models:/bert-tiny@champion, or an encoder folder")
    encode.add_argument("text")
    encode.add_argument("text_pair", nargs="?")
    encode.set_defaults(run_command=_encode)
    clean = commands.add_parser("clean", help="show, or remove, outputs that no registered version and no recent run leads to")
    clean.add_argument("--days", default="7", help="keep what was made or run within so many days (default: %(default)s)")
    clean.add_argument("--yes", action="store_true", help="remove; without it nothing is")
    clean.set_defaults(run_command=_clean)
    return parser


def _run(options: argparse.Namespace) -> None:
    sections = _read_settings(options.set)
    steps, seed = (None if value is None else _number(name, value) for name, value in (("steps", options.steps), ("seed", options.seed)))
    recipe = load_preset(options.preset).override(shards={"seed": seed}, training={"seed": seed, "steps": steps}).override(**sections)
    del recipe  # all that matters is that nothing was refused
    check_model_name(options.model_name)
    check_version_address("--vocabulary-from", options.vocabulary_from)
    check_version_address("--warm-start", options.warm_start)
    signal.signal(signal.SIGTERM, _terminate)
    _prepare_environment()
    if server := os.environ["PREFECT_API_URL"]:
        check_prefect(server)
    from . import runner  # imports Prefect and MLflow

    parameters = {
        "preset": options.preset,
        "corpus": _hide_credentials(options.corpus),
        "steps": steps,
        "seed": seed,
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


def _read_settings(entries: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`section.name=value` entries by section, each value read as TOML, or as text where it is none.

    :raises SettingsError: an entry has another form or an unknown section.
    """
    sections: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for entry in entries:
        place, equals, text = entry.partition("=")
        section, dot, name = place.partition(".")
        if not (equals and dot and name) or section not in sections:
            raise SettingsError(f"--set: got {entry!r}, wanted SECTION.NAME=VALUE with a section of {', '.join(_SECTIONS)}")
        try:
            sections[section][name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            sections[section][name] = text
    return sections


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{name}: got {text!r}, wanted a whole number") from None


def _prepare_environment() -> None:
    defaults = QUIET | {
        "PREFECT_HOME": str(artifacts() / "prefect"),
        "PREFECT_API_URL": "",  # no server needed
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    try:
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}; wanted a folder that can be written") from error


def _report(result: dict[str, Any]) -> None:
    run, held_out = result["run"], result["run"]["held_out"]
    print(f"\ncorpus         {result['corpus']}: {result['note']}")
    print(f"training       {run['steps']} steps on {run['device']}, {run['pairs_per_second']:,.0f} pairs/s")
    print(f"running means  MLM loss {run['mlm_loss_mean']:.3f}, NSP loss {run['next_sentence_loss_mean']:.3f}")
    mlm = f"MLM loss {held_out['mlm_loss']:.3f}, accuracy {held_out['mlm_accuracy']:.3f}"
    print(f"held out       {mlm}; NSP loss {held_out['next_sentence_loss']:.3f}, accuracy {held_out['next_sentence_accuracy']:.3f}")
    for sample in result["samples"]:
        text = " / ".join(part for part in (sample["text"], sample["text_pair"]) if part)
        unknown = f", unknown: {' '.join(sample['unknown'])}" if sample["unknown"] else ""
        print(f"encoding       {text!r}: {tuple(sample['shape'])}, {WORD} {_numbers(sample['word'])}{unknown}")
    print(f"encoder        {result['version']} in {without_credentials(tracking_uri())}")
    print(f"try            {sys.argv[0]} encode {result['version']} 'a crane is flying'")


def _numbers(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4f}" for value in values) + ", …]"


def _encode(options: argparse.Namespace) -> None:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    folder = Path(options.model)
    if ":/" in options.model:
        from . import registry  # imports MLflow

        folder = registry.download_encoder(options.model)
    encoder = Encoder.load(folder)
    vectors = encoder.encode(options.text, options.text_pair)
    print(f"shape {tuple(vectors.shape)}")
    for token, vector in zip(encoder.tokens(options.text, options.text_pair), vectors[0], strict=True):
        print(f"{token:>16}  {_numbers(vector[:4].tolist())}")


def _clean(options: argparse.Namespace) -> None:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    since = days_ago(_number("days", options.days))
    from . import clean  # imports MLflow

    clean.clean(since, yes=options.yes)


if __name__ == "__main__":
    sys.exit(main())
