"""Keys and contents of each data stage on a fixed corpus.

When a test here fails, the code has changed what a stage writes. If that is meant, raise the stage's FORMAT, so that no
store mixes old outputs with new ones, and put the new values in. Contents are digested without regard to the versions of
pyarrow and `tokenizers` that wrote them.
"""

from pathlib import Path

from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.vocabulary import Vocabulary, build_vocabulary
from pipeline.storage import Store, digest

LINES = [f" crane {i} is flying over w{i % 7} . he left x{i % 5} and came . they saw y{i % 3} \n" for i in range(60)]


def test_keys_and_contents(tmp_path: Path, small_preset) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wiki.train.tokens").write_text("".join(LINES), "utf-8")
    store = Store(str(tmp_path / "store"))
    corpus = fetch_corpus(store, str(tmp_path / "own")).output
    vocabulary = build_vocabulary(store, corpus, small_preset.vocabulary)
    shards = {split: build_shards(store, corpus, vocabulary, split, small_preset.shards) for split in ("train", "valid")}
    found = {
        "corpus": (corpus.key, corpus.facts["train"]["sha256"][:16]),
        "vocabulary": (vocabulary.key, digest("\n".join(Vocabulary.open(vocabulary).words).encode())[:16]),
        **{split: (output.key, output.facts["contents"][:16]) for split, output in shards.items()},
    }
    assert found == {
        "corpus": ("c8845dfbc022b524ee0e", "99fc4ffd583a150a"),
        "vocabulary": ("7ba7da0b7474a28013f4", "552e536556ff196a"),
        "train": ("7011d0276211fc8f1bb7", "f84d75f3b41269e3"),
        "valid": ("ab66cffbddedf573ce13", "1a12a6921df9f9b6"),
    }
