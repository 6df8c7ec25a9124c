"""The estimates that docs/scaling.md shows, printed anew by the commands above them.

python -m tests.flows.scaling_page      # from the project's folder: writes the page
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

from flows import cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scaling.md"
_BLOCK = re.compile(r"^```\n\$ pretrain-bert (estimate (?:[^\n]*\\\n)*[^\n]*)\n.*?^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The arguments of each command that the page shows with its output."""
    return [shlex.split(found[1].replace("\\\n", " ")) for found in _BLOCK.finditer(page)]


def printed_anew(page: str) -> str:
    """The page with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = cli.main(shlex.split(found[1].replace("\\\n", " ")))
        assert status == 0, found[1]
        return f"```\n$ pretrain-bert {found[1]}\n{printed.getvalue()}```"

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    PAGE.write_text(printed_anew(PAGE.read_text("utf-8")), "utf-8")
