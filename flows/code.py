"""Which code a run was made by: the commit of this project, for the tags of a run."""

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"
_PACKAGE = "pretrain-bert"


def code_tags() -> dict[str, str]:
    """The package's version and the commit of its folder, `-dirty` where files differ from it; `unknown` without git."""
    try:
        installed = version(_PACKAGE)
    except PackageNotFoundError:
        installed = UNKNOWN
    return {"code_version": installed, "code_commit": _commit(Path(__file__).parents[1])}


def _commit(folder: Path) -> str:
    if not (folder / ".git").exists():  # git would look further up, and find another project's
        return UNKNOWN
    try:
        commit, changed = (
            subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()  # noqa: S607
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return f"{commit}-dirty" if changed else commit
