"""An address -> the parts of each split, whatever form the corpus has.

In: a folder or a zip, local, on any fsspec store or over HTTP, with text files or Parquet. Out: `Source`, whose parts
give the text in chunks. The decision that matters: names inside an archive or a folder are only compared with the
names that we look for, never used as paths, so that no archive writes where it likes.
"""

import fnmatch
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import fsspec

from ..errors import CorpusError
from .canonical import Part
from .download import FetchError, fetch_file, without_credentials
from .forms import Budget, member_chunks, open_zip, parquet_chunks, text_chunks

MAX_BYTES = 16 << 30  # downloaded, and unpacked from an archive or Parquet
SPLITS = ("train", "valid", "test")
LAYOUTS: tuple[Mapping[str, str], ...] = (
    {"train": "wiki.train.tokens", "valid": "wiki.valid.tokens", "test": "wiki.test.tokens"},
    {"train": "train.txt", "valid": "valid.txt", "test": "test.txt"},
    {"train": "train-*.parquet", "valid": "validation-*.parquet", "test": "test-*.parquet"},
)
_ONE_OF_ONE = "00000-of-00001"  # a web server lists nothing, so of Parquet sets only whole ones can be asked for
NO_SUCH_FILE = (404, 410)
_REFUSED = (403, *NO_SUCH_FILE)  # object stores answer 403 for what is not there
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Source:
    """A corpus as found: the names that it goes by (its address's, its folders') and the parts of each split."""

    names: Sequence[str]
    parts: Mapping[str, list[Part]]


def safe_name(text: str) -> str:
    """A name of the characters a-z, 0-9 and `-`, for models; never empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-") or "corpus"


def address_name(address: str) -> str:
    """The last part of an address, without `.zip`, as a safe name."""
    last = _base(without_credentials(address))
    return safe_name(urllib.parse.unquote(re.sub(r"\.zip$", "", last, flags=re.IGNORECASE)))


@contextmanager
def open_source(address: str, workspace: Path, *, max_bytes: int = MAX_BYTES) -> Iterator[Source]:
    """Find a corpus's splits; its parts can be read until the context ends.

    :param workspace: an empty local folder for what has to be downloaded or unpacked.
    :param max_bytes: most bytes to download, and to unpack.
    :raises CorpusError: nothing there, nothing usable there, or not readable.
    """
    label = without_credentials(address)
    local, name = address, ""
    if address.startswith(("http://", "https://")):
        local, name = str(_download(address, workspace, max_bytes)), address_name(address)
    with ExitStack() as stack:
        yield _find(local, label, name, workspace, Budget(max_bytes), stack)


def _find(address: str, label: str, name: str, workspace: Path, budget: Budget, stack: ExitStack) -> Source:
    try:
        fs, path = fsspec.url_to_fs(address)
        name = name or address_name(path)  # the whole path, so that `.` has a name too
        if fs.isdir(path):
            return _read_folder(fs, path, label, name, budget)
        file = stack.enter_context(fs.open(path, "rb"))
    except FileNotFoundError:
        raise CorpusError(f"{label}: nothing there; wanted {_wanted()}") from None
    except CorpusError:
        raise
    except Exception as error:  # fsspec's file systems raise what they like
        raise CorpusError(f"{label}: cannot be read ({error}); wanted {_wanted()}") from error
    return _read_zip(file, label, name, workspace, budget, stack)


def _wanted() -> str:
    names = ", ".join(layout["train"] for layout in LAYOUTS[:-1])
    return f"a folder or a .zip with {names} or {LAYOUTS[-1]['train']}, and valid and test beside it where there are any"


def is_zip(parts: urllib.parse.SplitResult) -> bool:
    """Whether a web address is a zip's; else files are asked for below it."""
    return parts.path.lower().endswith(".zip")


def url_below(parts: urllib.parse.SplitResult, pattern: str) -> str:
    """The address of the file of a layout that a web server is asked for."""
    return urllib.parse.urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{pattern.replace('*', _ONE_OF_ONE)}"))


def _download(address: str, workspace: Path, max_bytes: int) -> Path:
    """Fetch a zip, or from below a base address a train split in the first form that is there, and its companions."""
    try:
        parts = urllib.parse.urlsplit(address)
    except ValueError as error:
        raise FetchError(f"{without_credentials(address)}: not an address ({error})") from error
    if is_zip(parts):
        return _download_file(address, workspace / "corpus.zip", max_bytes)
    folder = workspace / "corpus"
    folder.mkdir()

    def fetch(pattern: str, may_be_absent: Sequence[int]) -> int | None:
        """None, or the status of an answer that is taken for: not there."""
        name = pattern.replace("*", _ONE_OF_ONE)
        try:
            _download_file(url_below(parts, pattern), folder / name, max_bytes - sum(path.stat().st_size for path in folder.iterdir()))
        except FetchError as error:
            (folder / name).unlink(missing_ok=True)
            if error.status not in may_be_absent:
                raise
            return error.status
        return None

    answers = []
    for layout in LAYOUTS:
        status = fetch(layout["train"], _REFUSED)
        if status is None:
            for split in SPLITS[1:]:
                fetch(layout[split], NO_SUCH_FILE)  # a refusal here would quietly make it another corpus
            return folder
        answers.append(f"{status} for {layout['train'].replace('*', _ONE_OF_ONE)}")
    raise FetchError(f"{without_credentials(address)}: no train split there; it answered {', '.join(answers)}")


def _download_file(url: str, target: Path, max_bytes: int) -> Path:
    try:
        fetch_file(url, target, max_bytes=max_bytes)
    except FetchError as error:
        raise FetchError(f"{without_credentials(url)}: {error}", error.status) from error
    return target


def _match(entries: Mapping[str, Sequence[str]], label: str) -> dict[str, list[str]]:
    """The base names that make up each split.

    :param entries: base name -> where it was found.
    :raises CorpusError: a name stands twice, a split has two forms, or there is no train.
    """
    chosen: dict[str, list[str]] = {}
    for split in SPLITS:
        forms = [sorted(fnmatch.filter(entries, layout[split])) for layout in LAYOUTS]
        found = [name for names in forms for name in names]
        for name in found:
            if len(entries[name]) > 1:
                raise CorpusError(f"{label}: {name} stands there {len(entries[name])} times ({', '.join(entries[name])}); leave one")
        if sum(bool(names) for names in forms) > 1:
            raise CorpusError(f"{label}: {split} is there in more than one form ({', '.join(found)}); leave one")
        if found:
            chosen[split] = found
    if "train" not in chosen:
        there = ", ".join(sorted(entries)[:8]) or "nothing"
        raise CorpusError(f"{label}: no train split there, only {there}; wanted {_wanted()}")
    return chosen


def _base(name: str) -> str:
    return re.split(r"[/\\]", name.rstrip("/"))[-1]


def folder_files(fs: Any, path: str, label: str) -> dict[str, list[Mapping[str, Any]]]:
    """The files that make up each split of a folder, as fsspec lists them.

    :raises CorpusError: a split has two forms, or there is no train.
    """
    infos = {_base(info["name"]): info for info in fs.ls(path, detail=True) if info["type"] != "directory"}
    matched = _match({base: [info["name"]] for base, info in infos.items()}, label)
    return {split: [infos[base] for base in found] for split, found in matched.items()}


def _read_folder(fs: Any, path: str, label: str, name: str, budget: Budget) -> Source:
    parts: dict[str, list[Part]] = {}
    for split, infos in folder_files(fs, path, label).items():
        parts[split] = []
        for info in infos:
            base = _base(info["name"])
            shown = f"{label.rstrip('/')}/{base}"
            opened = partial(fs.open, info["name"], "rb")
            chunks = parquet_chunks(opened, shown, budget) if base.endswith(".parquet") else text_chunks(opened, shown)
            parts[split].append(Part(shown, chunks))
    return Source([name], parts)


def _read_zip(file: BinaryIO, label: str, name: str, workspace: Path, budget: Budget, stack: ExitStack) -> Source:
    archive = stack.enter_context(open_zip(file, label, _wanted()))
    members = [member for member in archive.infolist() if not member.is_dir()]
    entries: dict[str, list[str]] = {}
    for member in members:
        entries.setdefault(_base(member.filename), []).append(member.filename)
    by_base = {_base(member.filename): member for member in members}
    parts: dict[str, list[Part]] = {}
    folders: set[str] = set()
    for split, found in _match(entries, label).items():
        parts[split] = []
        for base in found:
            shown = f"{label}: {by_base[base].filename}"
            spool = workspace / f"{split}-{len(parts[split])}.parquet"
            parts[split].append(Part(shown, member_chunks(archive, by_base[base], shown, budget, spool)))
            folders.update(safe_name(folder) for folder in re.split(r"[/\\]", by_base[base].filename)[:-1])
    return Source([name, *sorted(folders)], parts)
