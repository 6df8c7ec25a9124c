"""SQuAD's JSON -> questions (Rajpurkar et al. 2016, arXiv 1606.05250; impossible ones: 2018, arXiv 1806.03822).

In: a file of version 1.1 or 2.0. Out: questions with their answers and where those stand. The decision that matters: an
answer has to stand where the file says, to the character; a file whose offsets are off would train on other words.
"""

import json
from collections.abc import Iterator
from typing import Any

from ..addresses import without_credentials
from ..errors import LabelledDataError
from ..tables import opened
from ..tokens import is_unicode
from .examples import Question

_FORM = "SQuAD's form, {data: [{paragraphs: [{context, qas: [{id, question, answers: [{text, answer_start}]}]}]}]}"


def read_squad(address: str) -> list[Question]:
    """The questions of a file.

    :raises LabelledDataError: names the file, the question and what is wrong with it. :raises TableError: it cannot be read.
    """
    shown = without_credentials(address)
    with opened(address, f"a JSON file in {_FORM}") as file:
        try:
            values = json.load(file)
        except (ValueError, RecursionError) as error:
            raise LabelledDataError(f"{shown}: not JSON ({error}); wanted {_FORM}") from error
    return list(_questions(values, shown))


def _questions(values: Any, shown: str) -> Iterator[Question]:
    last = "the head"
    try:
        for article in values["data"]:
            for paragraph in article["paragraphs"]:
                context = _text(paragraph, "context")
                for entry in paragraph["qas"]:
                    last = f"question {entry['id']!r}"
                    yield _question(entry, context, f"{shown}: {last}")
    except (KeyError, TypeError, AttributeError) as error:
        raise LabelledDataError(f"{shown}: after {last}: {type(error).__name__}: {error}; wanted {_FORM}") from error


def _question(entry: Any, context: str, where: str) -> Question:
    question = _text(entry, "question")
    if not question.strip() or not context.strip():
        raise LabelledDataError(f"{where}: its {'question' if context.strip() else 'context'} is empty; wanted text")
    if not isinstance(entry.get("is_impossible", False), bool):
        raise TypeError(f"is_impossible is {entry['is_impossible']!r:.40}, wanted true or false")
    answers = () if entry.get("is_impossible") else tuple((_text(answer, "text"), answer["answer_start"]) for answer in entry["answers"])
    if not answers and not entry.get("is_impossible"):
        raise LabelledDataError(f"{where}: has no answer; wanted one, or is_impossible: true")
    for text, start in answers:
        if type(start) is not int or start < 0 or not text.strip() or context[start : start + len(text)] != text:
            stands = context[start : start + len(text)] if type(start) is int and start >= 0 else ""
            raise LabelledDataError(f"{where}: the answer {text!r:.60} does not stand at {start!r:.20}, where {stands!r:.60} stands")
    return Question(str(entry["id"]), question, context, answers)


def _text(entry: Any, name: str) -> str:
    if not isinstance(entry[name], str):
        raise TypeError(f"{name} is {entry[name]!r:.40}, no text")
    if not is_unicode(entry[name]):
        raise TypeError(f"{name} has half a surrogate pair, wanted Unicode text")
    return str(entry[name])
