"""The command `rollback`: the champion before the present one is the champion again."""

import argparse
import logging
import re
from typing import Any

from pipeline.errors import SettingsError

from ..names import check_model_name
from ..places import store
from .environment import set_quiet

_NAME = re.compile(r"(?:models:/)?([^/@]+)(?:@champion)?")


def add_commands(commands: Any) -> None:
    """Add it to a command line."""
    rollback = commands.add_parser("rollback", help="make the champion before the present one the champion again")
    rollback.add_argument("name", help="of the model, such as bert-tiny or models:/bert-tiny")
    rollback.add_argument("--to", metavar="NUMBER", help="make this version the champion instead, whatever the gate says")
    rollback.set_defaults(run_command=_roll_back, interrupted="the same command finishes what was begun")


def _roll_back(options: argparse.Namespace) -> None:
    set_quiet()
    if not (found := _NAME.fullmatch(options.name)):
        raise SettingsError(f"rollback: got {options.name!r}, wanted a model's name, such as bert-tiny")
    name = found[1]
    check_model_name(name)
    if options.to is not None and not (options.to.isascii() and options.to.isdecimal()):
        raise SettingsError(f"--to: got {options.to!r}, wanted the number of a version")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("pipeline").setLevel(logging.INFO)  # who is waited for, where a run's gate is at it
    from .. import aliases  # imports MLflow

    with store().lease("gate", name):
        old, new = aliases.make_champion(name, str(int(options.to))) if options.to else aliases.roll_back(name)
    was = f", {old.uri} no longer" if old and old.number != new.number else ""
    print(f"{new.uri} is champion{was}")
