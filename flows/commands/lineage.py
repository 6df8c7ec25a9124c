"""The commands `lineage` and `compare`: where a version comes from, and how two differ."""

import argparse
import sys
from typing import Any

from ..places import store
from .environment import make_folder, set_quiet
from .printing import print_lines

_INTERRUPTED = "it only reads, so nothing is left behind"


def add_commands(commands: Any) -> None:
    """Add both to a command line."""
    lineage = commands.add_parser("lineage", help="what a registered version was made from, back to the bytes of the corpus")
    lineage.add_argument("model", help="an address such as models:/bert-tiny@champion")
    lineage.add_argument("--verify", action="store_true", help="compute keys and digests again, as far as the store has what they are of")
    lineage.set_defaults(run_command=_lineage, interrupted=_INTERRUPTED)
    compare = commands.add_parser("compare", help="how two registered versions differ: settings, metrics, curves, neighbours")
    compare.add_argument("one", help="an address such as models:/bert-tiny/1")
    compare.add_argument("other", help="such as models:/bert-tiny@champion")
    compare.add_argument("--pictures", metavar="FOLDER", help="write a picture of both curves there")
    compare.set_defaults(run_command=_compare, interrupted=_INTERRUPTED)


def _lineage(options: argparse.Namespace) -> None:
    set_quiet()
    from .. import lineage  # imports MLflow

    broken = None
    for line in lineage.lines_of(store(), options.model, verify=options.verify):
        print_lines([str(line)])
        if line.fault is not None:
            print_lines([f"{'':<30} {f'DOES NOT HOLD: {line.fault}' if line.fault else 'holds'}"])
        if line.fault and broken is None:
            broken = line.name
    if broken:
        print(f"error: the first link that does not hold is: {broken}", file=sys.stderr)
        sys.exit(1)


def _compare(options: argparse.Namespace) -> None:
    set_quiet()
    folder = make_folder(options.pictures) if options.pictures else None
    from .. import differences  # imports MLflow

    print_lines(differences.lines_of(store(), options.one, options.other, folder))
