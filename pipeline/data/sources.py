"""An address -> the parts of each split, whatever kind of corpus lies there.

In: a file, a folder, a glob or a zip, local, on any fsspec store or over HTTP. Out: `Source`, whose parts give the text
in blocks, and the form of its canonical text. The decision that matters: the form is the train split's, told by the
names of its files and, of text, by its first line, so that one kind of corpus is read in one way.
"""

import glob
import itertools
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from fsspec.implementations.local import LocalFileSystem

from ..addresses import without_credentials
from ..errors import CorpusError
from ..files import find_file_system
from ..settings import CorpusSettings
from . import documents, layout, records, web
from .canonical import Part
from .counts import Counts
from .decoding import decode
from .forms import Budget, File, Opener, member_opener, open_zip
from .layout import AUTO, JSON_LINES, PARQUET, FileName, base_name, wanted

MAX_BYTES = 16 << 30  # downloaded, and unpacked from what is packed
DEFAULT = CorpusSettings()
ZIP = "zip"
_LONGEST_NAME = 60
_LONGEST_TITLE = 1 << 16  # bytes


@dataclass(frozen=True)
class Source:
    """A corpus as found: the names that it goes by (its address's, its folders'), the parts of each split, their form."""

    names: Sequence[str]
    parts: Mapping[str, list[Part]]
    form: str = documents.WIKITEXT


def safe_name(text: str) -> str:
    """A name of the characters a-z, 0-9 and `-`, for models; never empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-") or "corpus"


def address_name(address: str) -> str:
    """The last part of an address, without what tells its form, as a safe name."""
    last = urllib.parse.unquote(base_name(without_credentials(address)))
    return safe_name(re.sub(r"\.zip$", "", FileName.of(last).stem if layout.is_file(last) else last, flags=re.IGNORECASE))


@contextmanager
def open_source(address: str, workspace: Path, settings: CorpusSettings = DEFAULT, *, max_bytes: int = MAX_BYTES) -> Iterator[Source]:
    """Find a corpus's splits; its parts can be read until the context ends.

    :param workspace: an empty local folder for what has to be downloaded or unpacked.
    :param max_bytes: most bytes to download, and to unpack.
    :raises CorpusError: nothing there, nothing usable there, or not readable.
    """
    label = without_credentials(address)
    local, name = address, ""
    if web.is_address(address):
        local, name = str(web.download(address, workspace, max_bytes)), address_name(address)
    with ExitStack() as stack:
        yield _Finder(label, workspace, settings, Budget(max_bytes), stack).find(local, name)


def is_glob(fs: Any, path: str) -> bool:
    """Whether a path is a pattern; one that is there as it stands is none, whatever its characters."""
    return glob.has_magic(path) and not fs.exists(path)


def _fixed_part(pattern: str) -> str:
    """What stands before the first part with a wildcard."""
    return "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), pattern.split("/")))


def list_files(fs: Any, path: str, label: str, settings: CorpusSettings) -> dict[str, list[Mapping[str, Any]]]:
    """The files that make up each split, as fsspec lists them; of a zip, which has to be opened to know, itself under `ZIP`.

    :raises FileNotFoundError: nothing there. :raises CorpusError: a split has two forms, or there is no train.
    """
    if is_pattern := is_glob(fs, path):
        found = list(fs.glob(path, detail=True).values())
        if not found:
            raise FileNotFoundError(path)
    elif fs.isdir(path):
        found = fs.ls(path, detail=True)
    else:
        is_zip = path.lower().endswith(".zip") or (settings.form == AUTO and not layout.is_file(path))
        return {ZIP if is_zip else "train": [fs.info(path)]}
    infos = {info["name"]: info for info in found if info["type"] != "directory"}
    chosen = layout.choose(list(infos), label, settings.form, named=is_pattern)
    return {split: [infos[name] for name in names] for split, names in chosen.items()}


@dataclass(frozen=True)
class _Finder:
    """Reads one address; `label` is what messages call it."""

    label: str
    workspace: Path
    settings: CorpusSettings
    budget: Budget
    stack: ExitStack
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def find(self, address: str, name: str) -> Source:
        try:
            fs, path = find_file_system(address)
            is_pattern = is_glob(fs, path)
            name = name or address_name(_fixed_part(path) if is_pattern else path)  # the whole path, so that `.` has a name too
            found = list_files(fs, path, self.label, self.settings)
            zipped = self.stack.enter_context(fs.open(found[ZIP][0]["name"], "rb")) if ZIP in found else None
        except FileNotFoundError:
            raise CorpusError(f"{self.label}: nothing there; wanted {wanted()}") from None
        except CorpusError:
            raise
        except Exception as error:  # fsspec's file systems raise what they like
            raise CorpusError(f"{self.label}: cannot be read ({error}); wanted {wanted()}") from error
        if zipped is not None:
            return self._read_zip(zipped, name)
        files = {}
        for split, infos in found.items():
            files[split] = [
                self._file(info["name"], self._shown(fs, path, info["name"], is_pattern), partial(fs.open, info["name"], "rb"))
                for info in infos
            ]
        return self._source([name], files)

    def _shown(self, fs: Any, path: str, found: str, is_pattern: bool) -> str:
        """What to call a file, where the user has it: the address, or what lies below it."""
        if is_pattern:
            return found if isinstance(fs, LocalFileSystem) else str(fs.unstrip_protocol(found))
        return self.label if found.rstrip("/") == path.rstrip("/") else f"{self.label.rstrip('/')}/{base_name(found)}"

    def _file(self, path: str, label: str, opened: Opener, *, in_zip: bool = False) -> File:
        name = FileName.of(path)
        spool = self.workspace / f"unpacked-{next(self._numbers)}"
        return File(label, name.form_as(self.settings.form), name.packing, opened, in_zip, spool)

    def _read_zip(self, file: BinaryIO, name: str) -> Source:
        archive = self.stack.enter_context(open_zip(file, self.label, wanted()))
        found = [member for member in archive.infolist() if not member.is_dir()]
        members = {member.filename: member for member in found}
        files: dict[str, list[File]] = {}
        folders: set[str] = set()
        for split, paths in layout.choose([member.filename for member in found], self.label, self.settings.form).items():
            files[split] = []
            for path in paths:
                shown = f"{self.label}: {path}"
                files[split].append(self._file(path, shown, member_opener(archive, members[path], shown, self.budget), in_zip=True))
                folders.update(safe_name(folder) for folder in re.split(r"[/\\]", path)[:-1])
        return self._source([name, *sorted(folders)], files)

    def _source(self, names: Sequence[str], files: Mapping[str, list[File]]) -> Source:
        form = self._form(files["train"])
        return Source(names, {split: [self._part(file, form) for file in found] for split, found in files.items()}, form)

    def _form(self, train: Sequence[File]) -> str:
        """WikiText's where the settings say so or the first line of text is an article's title, else documents."""
        if self.settings.form != AUTO:
            return documents.WIKITEXT if self.settings.form == layout.WIKITEXT else documents.TEXT
        for file in train:
            if file.form != JSON_LINES and (is_wikitext := self._begins_with_title(file)) is not None:
                return documents.WIKITEXT if is_wikitext else documents.TEXT
        return documents.TEXT

    def _begins_with_title(self, file: File) -> bool | None:
        budget = Budget(self.budget.limit)  # what is read twice counts once
        if file.form == PARQUET:
            if self.settings.title_column:  # then no title is looked for in the text
                return False
            return records.begins_with_title(records.parquet_rows(file, self.settings, budget))
        head = b""
        for block in decode(file.blocks(budget), file.label, Counts()):
            head = (head + block).lstrip()
            if b"\n" in head or len(head) > _LONGEST_TITLE:
                break
        return documents.is_title(head.partition(b"\n")[0]) if head else None

    def _part(self, file: File, form: str) -> Part:
        if form == documents.WIKITEXT and file.form == JSON_LINES:
            raise CorpusError(f"{file.label}: JSON Lines beside a train split in WikiText's form; leave one, or set corpus.form")

        def read(counts: Counts) -> Iterator[bytes]:
            if file.form == JSON_LINES:
                return records.documents(records.json_rows(file, self.settings, self.budget, counts), counts)
            if file.form == PARQUET:
                rows = records.parquet_rows(file, self.settings, self.budget)
                return records.wikitext_lines(rows, counts) if form == documents.WIKITEXT else records.documents(rows, counts)
            return decode(file.blocks(self.budget), file.label, counts)

        return Part(file.label, read)
