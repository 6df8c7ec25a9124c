"""A corpus on a web server -> the files that are asked for, since a web server lists nothing.

In: an http(s) address of a file or a zip, or a base address below which files lie under known names. Out: those files
in a local folder. The decision that matters: which names are asked for, in which order, stands here alone, so that
reading and asking whether anything changed look at the same files.
"""

import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ..addresses import without_credentials
from . import layout
from .download import FetchError, fetch_file

LAYOUTS: tuple[Mapping[str, str], ...] = (
    {"train": "wiki.train.tokens", "valid": "wiki.valid.tokens", "test": "wiki.test.tokens"},
    {"train": "train.txt", "valid": "valid.txt", "test": "test.txt"},
    {"train": "train-*.parquet", "valid": "validation-*.parquet", "test": "test-*.parquet"},
)
_LARGEST_SET = 2  # parts of a numbered set that are asked for; WikiText-103's train has two
NO_SUCH_FILE = (404, 410)
_REFUSED = (403, *NO_SUCH_FILE)  # object stores answer 403 for what is not there

_T = TypeVar("_T")


def is_address(address: str) -> bool:
    """Whether it is a web server's."""
    return address.startswith(("http://", "https://"))


def is_one_file(parts: urllib.parse.SplitResult) -> bool:
    """Whether a web address is a zip's or a file's of a known form; else files are asked for below it."""
    return parts.path.lower().endswith(".zip") or layout.is_file(parts.path)


def url_below(parts: urllib.parse.SplitResult, name: str) -> str:
    """The address of a file below a base address."""
    return urllib.parse.urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def take_below(take: Callable[[str, Sequence[int]], _T | None]) -> dict[str, _T | None]:
    """Take the first train split that is there, and valid and test of the same layout.

    :param take: called with a name and the answers that mean that it is not there; None where it is not.
    :returns: what was taken, by name, None where a split was looked for and is not there; nothing without a train split.
    """
    for names in LAYOUTS:
        train = _take_set(take, names["train"], _REFUSED)
        if any(train.values()):
            # A refusal of the others would quietly make it another corpus.
            return train | _take_set(take, names["valid"], NO_SUCH_FILE) | _take_set(take, names["test"], NO_SUCH_FILE)
    return {}


def _take_set(take: Callable[[str, Sequence[int]], _T | None], pattern: str, absent: Sequence[int]) -> dict[str, _T | None]:
    taken: dict[str, _T | None] = {}
    for size in range(1, _LARGEST_SET + 1) if "*" in pattern else (1,):
        first, *others = [pattern.replace("*", f"{number:05d}-of-{size:05d}") for number in range(size)]
        taken[first] = take(first, absent)
        if taken[first] is not None:
            return taken | {name: take(name, ()) for name in others}
    return taken


def download(address: str, workspace: Path, max_bytes: int) -> Path:
    """Fetch one file, or what lies below a base address.

    :returns: a local file with the ending of the one that was asked for, or a folder.
    """
    try:
        parts = urllib.parse.urlsplit(address)
    except ValueError as error:
        raise FetchError(f"{without_credentials(address)}: not an address ({error})") from error
    if is_one_file(parts):
        name = layout.FileName.of(urllib.parse.unquote(parts.path))
        ending = name.base.removeprefix(name.stem) or ".zip"
        return _download_file(address, workspace / f"corpus{ending}", max_bytes)
    folder = workspace / "corpus"
    folder.mkdir()
    answers = []

    def take(name: str, absent: Sequence[int]) -> Path | None:
        try:
            return _download_file(url_below(parts, name), folder / name, max_bytes - sum(path.stat().st_size for path in folder.iterdir()))
        except FetchError as error:
            (folder / name).unlink(missing_ok=True)
            if error.status not in absent:
                raise
            answers.append(f"{error.status} for {name}")
            return None

    if not take_below(take):
        tried = f"no train split there; it answered {', '.join(answers)}"
        raise FetchError(f"{without_credentials(address)}: {tried}; wanted one of these below it, or the address of a file or a .zip")
    return folder


def _download_file(url: str, target: Path, max_bytes: int) -> Path:
    try:
        fetch_file(url, target, max_bytes=max_bytes)
    except FetchError as error:
        raise FetchError(f"{without_credentials(url)}: {error}", error.status) from error
    return target
