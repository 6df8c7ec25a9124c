"""Names of files -> their form, how they are packed and the split that they belong to.

In: the names of what stands in a folder, in a zip or under a glob. Out: the files of each split. The decision that
matters: names alone decide, so that the same files are found without reading them, and names are only compared, never
used as paths.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CorpusError, some

SPLITS = ("train", "valid", "test")
AUTO, WIKITEXT, TEXT, JSON_LINES, PARQUET = "auto", "wikitext", "text", "json_lines", "parquet"
"""What CorpusSettings.form may say; a file itself is text, JSON Lines or Parquet."""
_FORMS = {".txt": TEXT, ".tokens": TEXT, ".text": TEXT, ".raw": TEXT, ".jsonl": JSON_LINES, ".json": JSON_LINES, ".ndjson": JSON_LINES}
_FORMS |= {".parquet": PARQUET}
_PACKINGS = (".gz", ".zst", ".xz")
_ENDING = re.compile(rf"({'|'.join(map(re.escape, _FORMS))})?({'|'.join(map(re.escape, _PACKINGS))})?$", re.IGNORECASE)
_SPLIT = re.compile(r"(?:wiki\.)?(train|valid|validation|dev|test)(?![a-z])", re.IGNORECASE)
_SAME = {"validation": "valid", "dev": "valid"}
_SHOWN = 8  # names in a message


@dataclass(frozen=True)
class FileName:
    """What a name says.

    :param form: `text`, `json_lines` or `parquet`; None where its ending is another.
    :param packing: `.gz`, `.zst`, `.xz` or empty.
    :param split: where it begins with a split's name, else None.
    :param kind: beginning and ending, which the files of one split share.
    """

    base: str
    form: str | None
    packing: str
    split: str | None
    kind: str

    @classmethod
    def of(cls, path: str) -> "FileName":
        """Read the last part of a path."""
        base = base_name(path)
        ending = _ENDING.search(base)
        form, packing = (group.lower() if group else "" for group in (ending.groups() if ending else ("", "")))
        split = _SPLIT.match(base)
        word = split.group(1).lower() if split else ""
        kind = f"{split.group().lower() if split else ''}…{form}{packing}"
        return cls(base, _FORMS.get(form), packing, _SAME.get(word, word) or None, kind)

    @property
    def stem(self) -> str:
        """The name without what says its form and packing."""
        return _ENDING.sub("", self.base, count=1)

    def form_as(self, wanted: str) -> str:
        """The form to read it in, where the settings want one."""
        if wanted in (AUTO, WIKITEXT):
            return PARQUET if self.form == PARQUET else self.form if wanted == AUTO and self.form else TEXT
        return wanted


def base_name(path: str) -> str:
    """The last part of a path of any system."""
    return re.split(r"[/\\]", path.rstrip("/"))[-1]


def is_file(path: str) -> bool:
    """Whether a path ends as a file of a known form does."""
    return FileName.of(path).form is not None


def wanted() -> str:
    """What a corpus may be, for messages."""
    endings = f"{', '.join(list(_FORMS)[:-1])} or {list(_FORMS)[-1]}"
    return (
        f"a file {endings}, also packed ({', '.join(_PACKINGS)}), or a folder, a glob or a .zip of such files, "
        "whose names begin with train, valid or test (where none does all are train)"
    )


def choose(paths: Sequence[str], label: str, form: str, *, named: bool = False) -> dict[str, list[str]]:
    """The paths that make up each split, sorted; where no name begins with a split's, all are train.

    :param form: as CorpusSettings has it; files of another are left aside.
    :param named: a glob names them: with a form set, they may have any ending, and one name may stand in several folders.
    :raises CorpusError: a name stands twice, a split has two forms, or there is no train.
    """
    names = [(path, FileName.of(path)) for path in sorted(paths)]
    usable = [(path, name) for path, name in names if not name.base.startswith((".", "_")) and _fits(name, form, named)]
    marked = [(path, name) for path, name in usable if name.split]
    chosen: dict[str, list[str]] = {}
    for split in SPLITS if marked else SPLITS[:1]:
        found = [(path, name) for path, name in marked if name.split == split] or ([] if marked else usable)
        if not named and marked:
            _refuse_twins(found, label)
        is_forced = named and form != AUTO and not marked
        if len({name.kind if marked else name.form for _, name in found}) > 1 and not is_forced:
            bases = some((name.base for _, name in found), _SHOWN)
            raise CorpusError(f"{label}: {split} is there in more than one form ({bases}); leave one, or name it by a glob or corpus.form")
        if found:
            chosen[split] = [path for path, _ in found]
    if "train" not in chosen:
        there = some((name.base for _, name in names), _SHOWN) or "nothing"
        raise CorpusError(f"{label}: no train split there, only {there}; wanted {wanted()}")
    return chosen


def _fits(name: FileName, form: str, named: bool) -> bool:
    if form == AUTO:
        return name.form is not None
    return named or name.form == form or (form == WIKITEXT and name.form in (TEXT, PARQUET))


def _refuse_twins(found: Sequence[tuple[str, FileName]], label: str) -> None:
    places: dict[str, list[str]] = {}
    for path, name in found:
        places.setdefault(name.base, []).append(path)
    for base, paths in places.items():
        if len(paths) > 1:
            raise CorpusError(f"{label}: {base} stands there {len(paths)} times ({', '.join(paths)}); leave one")
