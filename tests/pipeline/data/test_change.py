"""What changed between two corpora, and a vocabulary that is kept for another."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.data.change import Change, compare
from pipeline.data.vocabulary import build_vocabulary, kept_vocabulary
from pipeline.errors import CorpusError
from pipeline.settings import Preset, load_preset
from pipeline.storage import Output, Store

TINY = load_preset("tiny")
LINES = [f"crane {number} is flying . he left . \n" for number in range(20)]


@pytest.mark.parametrize(
    ("lines", "change"),
    [
        (LINES, Change(20, 20, 0, 0)),
        (LINES[::-1], Change(20, 20, 0, 0)),
        ([*LINES, "a new one . is here . \n"], Change(20, 21, 1, 0)),
        (LINES[3:], Change(20, 17, 0, 3)),
        ([*LINES[1:], "crane 0 is not flying . he left . \n"], Change(20, 20, 1, 1)),
        ([*LINES, LINES[0], LINES[0]], Change(20, 22, 2, 0)),
        ([*LINES, "no sentence\n"], Change(20, 20, 0, 0)),
    ],
    ids=["same", "moved", "added", "removed", "edited", "repeated", "no document"],
)
def test_documents_that_came_and_went_are_counted(tmp_path: Path, publish: Callable[..., Output], lines: list[str], change: Change) -> None:
    store = Store(str(tmp_path))
    assert compare(publish(store, "".join(LINES)), publish(store, "".join(lines)), TINY.text) == change


def counting(min_count: int) -> Preset:
    return TINY.override(vocabulary={"min_count": min_count})


def test_a_kept_vocabulary_is_the_one_that_was_made(tmp_path: Path, publish: Callable[..., Output]) -> None:
    store, preset = Store(str(tmp_path)), counting(1)
    made = build_vocabulary(store, publish(store, "".join(LINES)), preset)
    kept = kept_vocabulary(store, made.key, preset)
    assert (kept.key, kept.found) == (made.key, True)
    with pytest.raises(CorpusError, match=rf"vocabulary {made.key} was made with .*'min_count': 1.*, these settings are .*'min_count': 2"):
        kept_vocabulary(store, made.key, counting(2))
    store.withdraw("vocabulary", made.key)
    with pytest.raises(CorpusError, match=f"vocabulary {made.key} is not whole in {tmp_path}"):
        kept_vocabulary(store, made.key, preset)


def test_a_kept_vocabulary_that_is_gone_is_made_again_from_its_corpus(tmp_path: Path, publish: Callable[..., Output]) -> None:
    store, preset = Store(str(tmp_path)), counting(1)
    corpus, other = publish(store, "".join(LINES)), publish(store, "another . text . \n")
    made = build_vocabulary(store, corpus, preset)
    store.withdraw("vocabulary", made.key)
    with pytest.raises(CorpusError, match="is not whole"):
        kept_vocabulary(store, made.key, preset, other.key)
    again = kept_vocabulary(store, made.key, preset, corpus.key)
    assert (again.key, again.manifest["files"]) == (made.key, made.manifest["files"])
