import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.data.corpus import Corpus, fetch_corpus
from pipeline.data.sample import _paragraphs
from pipeline.storage import Store

MAX_LENGTH = 64


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return fetch_corpus(Store(str(tmp_path_factory.mktemp("store"))), "sample")


def lines_of(corpus: Corpus, split: str) -> list[str]:
    return Path(corpus.output.file(f"{split}.tokens")).read_text("utf-8").split("\n")


def fitting_pairs(lines: list[str]) -> int:
    """Neighbouring sentences, by the deck's reading rule, that fit into an example with its three special tokens."""
    pairs = 0
    for line in lines:
        lengths = [len(sentence.split()) for sentence in line.strip().lower().split(" . ")]
        pairs += sum(bool(a and b) and a + b + 3 <= MAX_LENGTH for a, b in itertools.pairwise(lengths))
    return pairs


def test_it_says_what_it_is(corpus):
    assert corpus.name == "sample"
    assert "as asked" in corpus.note
    assert "standard library" in corpus.source


def test_there_are_enough_pairs_in_both_splits(corpus):
    assert fitting_pairs(lines_of(corpus, "train")) > 8_000
    assert fitting_pairs(lines_of(corpus, "valid")) > 500
    assert 1_000_000 < sum(corpus.output.facts[split]["bytes"] for split in ("train", "valid")) < 4_000_000


def test_it_has_wikitexts_form(corpus):
    for split in ("train", "valid"):
        *lines, end = lines_of(corpus, split)
        assert end == ""
        assert all(line == " " or (line == f" {line.strip()} " and "  " not in line) for line in lines)
        titles = [line for line in lines if line.startswith(" = ") and line.endswith(" = ")]
        assert len(titles) > 30
        assert not any(">>>" in line for line in lines)


def test_the_splits_share_no_paragraph_and_one_article_in_ten_is_held_out(corpus):
    train, valid = (lines_of(corpus, split) for split in ("train", "valid"))
    shared = set(train) & set(valid)  # a topic may have a module's name
    assert all(line.startswith(" = ") for line in shared if line.strip())
    articles = [sum(line.startswith(" = ") for line in lines) for lines in (train, valid)]
    assert articles[1] == sum(articles) // 10


def test_another_process_makes_the_same(corpus, tmp_path):
    code = "import sys; from pipeline.data.corpus import fetch_corpus; from pipeline.storage import Store; "
    code += "print(fetch_corpus(Store(sys.argv[1]), 'sample').output.key, 'idlelib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.split() == [corpus.output.key, "False"]  # and no module of the library was run for it


def test_a_modules_article_begins_with_its_docstring(corpus):
    lines = lines_of(corpus, "train") + lines_of(corpus, "valid")
    first = lines[lines.index(" = ast = ") + 2]
    docstring = ast.get_docstring(ast.parse(Path(ast.__file__).read_text("utf-8")))
    assert docstring is not None
    assert first.split()[0] in docstring.split()


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("Return it.  Don't fail (ever).", ["Return it . Don't fail ( ever ) ."]),
        ("A summary of it\n\nWhat it means, in full.", ["A summary of it . What it means , in full ."]),
        ("See e.g. os.path.join, i.e. the file x.py or a .txt one...", ["See e.g. os.path.join , i.e. the file x.py or a .txt one ..."]),
        ("Use it like this:\n\n    >>> f(1)\n    2\n", ["Use it like this :"]),
        ("Takes ``a`` and :class:`~x.Y`, *all* of them.", ["Takes a and x.Y , all of them ."]),
        ("+----+\n| a b c d |\n+----+", []),
        (".. directive:: of some kind here", []),
        ("x = f(1) + [2, 3]; y[4] = {}", []),
        ("One two.", []),
    ],
)
def test_prose_is_kept_and_spaced(text, paragraphs):
    assert list(_paragraphs(text)) == paragraphs
