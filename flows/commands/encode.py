"""The commands `encode` and `fill-mask`: what a registered encoder makes of text."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import SettingsError

from ..options import whole_number
from ..places import QUIET
from .printing import numbers, print_lines, printing

if TYPE_CHECKING:
    from pipeline.encoding import Encoder
    from pipeline.streaming import Encoded, Stream

_TELL_SECONDS = 2.0
_OF_MANY = ("column", "pair_column", "pairs", "pooling", "to", "batch_size")


def add_commands(commands: Any) -> None:
    """Add both to a command line."""
    encode = commands.add_parser("encode", help="encode sentences or pairs with a registered encoder")
    encode.add_argument("model", help="an address such as models:/bert-tiny@champion, or an encoder folder")
    encode.add_argument("text", nargs="?", help="one sentence, whose tokens and the beginnings of their vectors are printed")
    encode.add_argument("text_pair", nargs="?")
    encode.add_argument("--file", help="many: a text file, a sentence a line; .tsv, .csv, .jsonl or .parquet; or - for standard input")
    encode.add_argument("--column", help="of a table, which holds the sentences (default: text)")
    encode.add_argument("--pair-column", help="of a table, which holds the second sentences of pairs")
    encode.add_argument("--pairs", action="store_true", help="each line of a text file is a pair, with a TAB between")
    encode.add_argument("--pooling", choices=["mean", "cls", "tokens"], help="of many (default: mean)")
    encode.add_argument("--to", metavar="FILE", help=".npy, .jsonl or .parquet (default: JSON Lines on standard output)")
    encode.add_argument("--truncate", action="store_true", help="drop the last tokens of what is too long, which is an error otherwise")
    encode.add_argument("--batch-size", help="how many of many go through the model at a time (default: 128)")
    encode.set_defaults(run_command=_encode, interrupted="the same command begins again")
    fill = commands.add_parser("fill-mask", help="say which tokens a registered encoder expects at masks")
    fill.add_argument("model", help="an address such as models:/bert-mini@champion, or an encoder folder")
    fill.add_argument("text", help="with the vocabulary's mask token in it: [MASK], of tiny <mask>")
    fill.add_argument("--top", default="5", help="how many tokens for each mask (default: %(default)s)")
    fill.set_defaults(run_command=_fill_mask, interrupted="nothing was begun that lasts")


def load_encoder(model: str) -> "Encoder":
    """The encoder at an address, or in a folder."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    folder = Path(model)
    if model.startswith("models:"):
        from .. import models  # imports MLflow

        folder = models.download(model)
    from pipeline.encoding import Encoder  # imports torch

    return Encoder.load(folder)


def _fill_mask(options: argparse.Namespace) -> None:
    if (top := whole_number("top", options.top)) < 1:
        raise SettingsError(f"top: got {top}, wanted a value >= 1")
    encoder = load_encoder(options.model)
    from pipeline.filling import fill_mask  # imports torch

    for number, expected in enumerate(fill_mask(encoder, options.text, top), 1):
        print(f"mask {number}")
        for token, probability in expected:
            print(f"{token:>16}  {probability:.4f}")


def _encode(options: argparse.Namespace) -> None:
    if (options.text is None) == (options.file is None):
        raise SettingsError("encode: wanted a TEXT, or --file for many, and not both")
    if options.file is not None:
        _encode_many(options)
    elif typed := [name for name in _OF_MANY if getattr(options, name)]:
        raise SettingsError(f"--{typed[0].replace('_', '-')}: is for many; wanted --file, or a TEXT alone")
    else:
        _print_one(load_encoder(options.model), options)


def _print_one(encoder: "Encoder", options: argparse.Namespace) -> None:
    text, pair, truncate = options.text, options.text_pair, options.truncate
    vectors, tokens = encoder.encode(text, pair, truncate=truncate), encoder.tokens(text, pair, truncate=truncate)
    lines = (f"{token:>16}  {numbers(vector[:4].tolist())}" for token, vector in zip(tokens, vectors[0], strict=True))
    print_lines([f"shape {tuple(vectors.shape)}", *lines])
    if unknown := encoder.unknown_words(text, pair):
        print(f"not in the vocabulary: {' '.join(unknown)}", file=sys.stderr)


def _encode_many(options: argparse.Namespace) -> None:
    from pipeline.encoding_inputs import Source, check_source  # imports torch, as the next ones do
    from pipeline.encoding_outputs import check_destination, write_json_lines, write_vectors
    from pipeline.streaming import Stream

    pooling = options.pooling or "mean"
    pooled = pooling != "tokens"
    source = Source(options.file, options.column or "text", options.pair_column, options.pairs)
    check_source(source, lambda name: bool(getattr(options, name)))
    if (size := whole_number("--batch-size", options.batch_size or "128")) < 1:
        raise SettingsError(f"--batch-size: got {size}, wanted at least 1")
    if options.to:
        check_destination(Path(options.to), pooled=pooled, source=options.file)
    encoder = load_encoder(options.model)
    stream = Stream(encoder, pooling=pooling, truncate=options.truncate, batch_size=size, where=source.where)
    encoded = _with_progress(stream.encode(source.read()), source.count())
    if options.to:
        write_vectors(Path(options.to), encoded, encoder, pooled=pooled)
        print_lines([f"{stream.inputs:,} encoded into {options.to}; {_unknown(stream)}"])
        return
    with printing():
        write_json_lines(sys.stdout, encoded, encoder, pooled=pooled)
    if stream.unknown:
        print(_unknown(stream), file=sys.stderr)


def _unknown(stream: "Stream") -> str:
    return f"{stream.unknown:,} of {stream.tokens:,} tokens not in the vocabulary"


def _with_progress(encoded: "Iterator[Encoded]", count: int | None) -> "Iterator[Encoded]":
    """The same, with a line on a terminal every few seconds."""
    begun = told = time.monotonic()
    for number, entry in enumerate(encoded, 1):
        now = time.monotonic()
        if now - told >= _TELL_SECONDS and sys.stderr.isatty():
            told, rate = now, number / (now - begun)
            left = f" of {count:,}, {(count - number) / rate:,.0f} s left" if count else ""
            print(f"{number:,}{left}, {rate:,.0f}/s", file=sys.stderr)
        yield entry
