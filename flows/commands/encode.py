"""The commands `encode` and `fill-mask`: what a registered encoder makes of text."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import SettingsError

from ..options import whole_number
from ..places import QUIET
from .printing import numbers

if TYPE_CHECKING:
    from pipeline.encoding import Encoder


def add_commands(commands: Any) -> None:
    """Add both to a command line."""
    encode = commands.add_parser("encode", help="encode a sentence or a pair with a registered encoder")
    encode.add_argument("model", help="an address such as models:/bert-tiny@champion, or an encoder folder")
    encode.add_argument("text")
    encode.add_argument("text_pair", nargs="?")
    encode.set_defaults(run_command=_encode)
    fill = commands.add_parser("fill-mask", help="say which tokens a registered encoder expects at masks")
    fill.add_argument("model", help="an address such as models:/bert-mini@champion, or an encoder folder")
    fill.add_argument("text", help="with the vocabulary's mask token in it: [MASK], of tiny <mask>")
    fill.add_argument("--top", default="5", help="how many tokens for each mask (default: %(default)s)")
    fill.set_defaults(run_command=_fill_mask)


def load_encoder(model: str) -> "Encoder":
    """The encoder at an address, or in a folder."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    folder = Path(model)
    if ":/" in model:
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
    encoder = load_encoder(options.model)
    vectors = encoder.encode(options.text, options.text_pair)
    print(f"shape {tuple(vectors.shape)}")
    for token, vector in zip(encoder.tokens(options.text, options.text_pair), vectors[0], strict=True):
        print(f"{token:>16}  {numbers(vector[:4].tolist())}")
