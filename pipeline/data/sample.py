"""The built-in sample: English that every Python brings along, for a first run without a network.

In: the running Python's standard library. Out: its documentation in WikiText's form, as a source with train and
valid. The decision that matters: modules are parsed, never imported, and read in sorted order, so that a machine's
sample is always the same; another version of Python gives another sample under another key.
"""

import ast
import importlib
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from .canonical import Part
from .sources import Source

NAME = "sample"
HELD_OUT_ONE_IN = 10  # documents, counted in order
_SKIPPED = frozenset({"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages"})
_FEWEST_WORDS = 4
_LONG = 600  # characters from which a paragraph takes no further block; WikiText's have about as many
_LEAST_PROSE = 0.8  # share of a paragraph's characters that are letters, spaces or the commonest punctuation
_MARKUP = (
    (re.compile(r":[a-z:]+:`~?([^`]*)`"), r"\1"),  # roles
    (re.compile(r"``([^`]*)``|`([^`]*)`"), r"\1\2"),
    (re.compile(r"(?<!\S)\*\*?(\w[^*]*)\*\*?"), r"\1"),
    (re.compile(r"::"), ":"),
    (re.compile(r"^\s*(?:[*+-]|\d+[.)]|[@:]\w+.*?:)\s+"), ""),  # bullets, field lists
)
_NOT_PROSE = re.compile(r"^\s*(?:>>>|\.\.\.? |\.\. |\||\+[-=+]|[-=*~^\"#]{3,})|[=+~-]{4,}|::=|->", re.MULTILINE)
_WORDS = re.compile(
    r"(?:e\.?g|i\.?e|etc|vs|cf|resp|Ph\.D)\.(?=[\s,;:)])(?!$)"  # abbreviations do not end a sentence
    r"|\.\.\.+"
    r"|(?<![^\s\"'(\[])\.\w+"  # .py
    r"|\w+(?:[.'/-]\w+)*"
    r"|[^\w\s]"
)


def sample_source() -> Source:
    """The sample as a corpus; every tenth article is held out into valid."""
    splits: dict[str, list[str]] = {"train": [], "valid": []}
    for number, (title, paragraphs) in enumerate(sample_articles()):
        lines = splits["valid" if number % HELD_OUT_ONE_IN == HELD_OUT_ONE_IN - 1 else "train"]
        lines += ["", f"= {title} =", "", *paragraphs]
    parts = {}
    for split, lines in splits.items():
        text = "".join(f" {line} \n" if line else " \n" for line in lines).encode()
        parts[split] = [Part(f"built-in sample, {split}", lambda _, text=text: iter([text]))]  # type: ignore[misc]
    return Source([NAME], parts)


def sample_articles() -> Iterator[tuple[str, list[str]]]:
    """Titles and paragraphs: the language's reference by topic, then one article a module. No paragraph comes twice."""
    seen: set[str] = set()
    for title, texts in [*_topics(), *_modules(Path(sysconfig.get_path("stdlib")))]:
        paragraphs = [paragraph for text in texts for paragraph in _paragraphs(text)]
        new = [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph not in seen]
        seen.update(new)
        if new:
            yield title, new


def _topics() -> Iterator[tuple[str, Iterable[str]]]:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:  # some distributions leave it out; docstrings are most of the sample anyhow
        return
    for name in sorted(topics):
        yield name, [topics[name]]


def _modules(library: Path) -> Iterator[tuple[str, Iterable[str]]]:
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _SKIPPED.isdisjoint(parts):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # old escapes in a docstring are not the user's to mend
                    tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, OSError):  # templates and files in old encodings
                continue
            yield ".".join(part for part in parts if part != "__init__"), list(_docstrings(tree))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a module and what it defines, in the order of the file."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield text
    for field in ("body", "orelse", "handlers", "finalbody"):
        children = getattr(node, field, None)
        for child in children if isinstance(children, list) else []:
            yield from _docstrings(child)


def _paragraphs(text: str) -> Iterator[str]:
    """The prose of a text, words and punctuation spaced.

    Neighbouring blocks go into one paragraph up to a length: most docstrings are a line, then its explanation.
    """
    paragraph = ""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*+-]|\d+[.)])\s)", inspect.cleandoc(text)):  # list items are blocks too
        prose = _spaced(block)
        if len(paragraph) > _LONG and prose:
            yield paragraph
            paragraph = ""
        if paragraph[-1:].isalnum() and prose:
            paragraph += " ."  # a blank line ended that sentence
        paragraph = f"{paragraph} {prose}".strip()
    if paragraph:
        yield paragraph


def _spaced(block: str) -> str:
    """A block of prose without markup and with a space around each word and mark; empty where it is not prose."""
    if _NOT_PROSE.search(block):
        return ""
    prose = " ".join(block.split())
    for pattern, plain in _MARKUP:
        prose = pattern.sub(plain, prose)
    words = _WORDS.findall(prose)
    fitting = sum(character.isalpha() or character in " .,'" for character in prose)
    return " ".join(words) if len(words) >= _FEWEST_WORDS and fitting >= _LEAST_PROSE * len(prose) else ""
