"""Labelled rows: sentences or pairs with a class, questions with answers in a context.

In: what a reader found. Out: small frozen records, and the Parquet columns that hold them. The decision that matters: a
row's group decides on which side of a split it falls: equal texts, hypotheses of one premise and questions on one context
are never on both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Labelled:
    """A sentence, or a pair where `text_pair` is given, and its class."""

    text: str
    text_pair: str | None
    label: str

    @property
    def group(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Question:
    """A question on a context. :param answers: (text, where it begins in the context); none: the context has no answer."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = field(default=())

    @property
    def group(self) -> str:
        return self.context


Example = Labelled | Question

_ANSWER = pa.struct([("text", pa.string()), ("start", pa.int32())])
_LABELLED = pa.schema([("text", pa.string()), ("text_pair", pa.string()), ("label", pa.string())])
_QUESTIONS = pa.schema([("id", pa.string()), ("question", pa.string()), ("context", pa.string()), ("answers", pa.list_(_ANSWER))])


def to_table(examples: Sequence[Example]) -> pa.Table:
    """Examples of one kind as a table."""
    if isinstance(examples[0], Labelled):
        rows = [{"text": row.text, "text_pair": row.text_pair, "label": row.label} for row in examples if isinstance(row, Labelled)]
        return pa.Table.from_pylist(rows, _LABELLED)
    return pa.Table.from_pylist([_question_row(row) for row in examples if isinstance(row, Question)], _QUESTIONS)


def _question_row(row: Question) -> dict[str, object]:
    answers = [{"text": text, "start": start} for text, start in row.answers]
    return {"id": row.id, "question": row.question, "context": row.context, "answers": answers}


def from_table(table: pa.Table) -> list[Example]:
    """The inverse of `to_table`."""
    return list(_rows(table))


def _rows(table: pa.Table) -> Iterator[Example]:
    for batch in table.to_batches():
        for row in batch.to_pylist():
            if "label" in row:
                yield Labelled(row["text"], row["text_pair"], row["label"])
            else:
                answers = tuple((answer["text"], answer["start"]) for answer in row["answers"])
                yield Question(row["id"], row["question"], row["context"], answers)
