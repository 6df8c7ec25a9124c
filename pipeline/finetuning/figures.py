"""Figures of merit on held-out rows.

In: what was predicted and what is right. Out: accuracy and macro F1 of classes; exact match and F1 of answers. The decision
that matters: answers are compared as SQuAD's own script does (Rajpurkar et al. 2016, arXiv 1606.05250), so that figures stand
beside published ones: without case, punctuation and articles, the best of a question's answers counting.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def class_figures(predicted: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """The share that is right, and the mean over classes of F1, those that are neither given nor predicted left out."""
    given, found = Counter(labels), Counter(predicted)
    hits = Counter(label for label, guess in zip(labels, predicted, strict=True) if label == guess)
    scores = [2 * hits[label] / (given[label] + found[label]) for label in given | found]
    return {"accuracy": sum(hits.values()) / len(labels), "macro_f1": sum(scores) / len(scores)}


def answer_figures(predicted: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1, in [0, 1]. :param answers: of each question those that are right; none: it has no answer."""
    wanted = [found or ("",) for found in answers]
    pairs = list(zip(predicted, wanted, strict=True))
    exact = sum(max(normalized(guess) == normalized(answer) for answer in found) for guess, found in pairs)
    return {
        "exact_match": exact / len(pairs),
        "f1": sum(max(word_f1(guess, answer) for answer in found) for guess, found in pairs) / len(pairs),
    }


def normalized(answer: str) -> str:
    """Lower case, without punctuation, articles and spare white space."""
    plain = "".join(character for character in answer.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def word_f1(predicted: str, answer: str) -> float:
    """F1 of two answers' words; of an empty one, whether both are."""
    found, wanted = normalized(predicted).split(), normalized(answer).split()
    if not found or not wanted:
        return float(found == wanted)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted))
