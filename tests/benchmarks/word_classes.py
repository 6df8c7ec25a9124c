"""A small labelled set out of WikiText-2: words, and whether they stand after an article or after a pronoun.

In: `wikitext-2-v1.zip`, or a folder of its texts, and a folder to write to. Out: `train.tsv` and `held_out.tsv` there, whose words
are different ones, with the columns `text` and `label`, both labels as often. What an encoder says of a held-out word, it has
from pretraining, where it read the word in its places.

    python tests/benchmarks/word_classes.py wikitext-2-v1.zip words
"""

import random
import sys
import zipfile
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

ARTICLES = frozenset(("the", "a", "an", "his", "their", "its"))
PRONOUNS = frozenset(("he", "she", "they", "who", "it", "would", "could", "can", "will", "may", "not", "to"))
LABELS = {"after an article": (ARTICLES, PRONOUNS), "after a pronoun": (PRONOUNS, ARTICLES)}
LEAST = 40  # times that a word stands in the text
OFTEN, HARDLY = 0.15, 0.02  # shares of a word's places that follow the label's words, and the other label's


def words_by_label(text: str) -> dict[str, list[str]]:
    """The words of each label, in the alphabet's order."""
    tokens = text.lower().split()
    counts = Counter(tokens)
    follows = {group: Counter(word for before, word in pairwise(tokens) if before in group) for group in (ARTICLES, PRONOUNS)}
    found = defaultdict(list)
    for word, count in sorted(counts.items()):
        for label, (own, other) in LABELS.items():
            if count >= LEAST and word.isalpha() and follows[own][word] / count >= OFTEN and follows[other][word] / count <= HARDLY:
                found[label].append(word)
    return found


def write(text: str, folder: Path) -> None:
    """Write both files."""
    rng = random.Random(0)
    rows = [(word, label) for label, words in words_by_label(text).items() for word in words]
    rows.sort()
    rng.shuffle(rows)
    fewest = min(Counter(label for _, label in rows).values())
    kept = [row for label in LABELS for row in [row for row in rows if row[1] == label][:fewest]]
    rng.shuffle(kept)
    half = len(kept) // 2
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", kept[:half]), ("held_out", kept[half:])):
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{word}\t{label}\n" for word, label in part), "utf-8")


def read(address: str) -> str:
    """The training split."""
    if Path(address).is_dir():
        return (Path(address) / "wiki.train.tokens").read_text("utf-8")
    with zipfile.ZipFile(address) as archive:
        return archive.read("wikitext-2/wiki.train.tokens").decode()


if __name__ == "__main__":
    write(read(sys.argv[1]), Path(sys.argv[2]))
