"""An encoder with a head -> classes of texts, answers to questions.

In: the folder that fine-tuning wrote, and texts. Out: for each text a class with the probability of every class; for each
question an answer and where it stands. The decision that matters: an answer's probability is its share among all spans that
could be given, over all windows of the context, and, where the head was taught that, no answer at all.

Legend: B rows, L the longest row's length, K classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ..errors import EncodingError
from ..model.finetuning import Rows as Batch
from ..tokens import TokenTable, is_unicode
from .features import Input, Row, Rows, Where, Window, numbered
from .head_format import Head, Model, load_with_head

_AT_ONCE = 4096  # inputs among which those of like length go together


@dataclass(frozen=True, slots=True)
class Prediction:
    """A class, and the probability of each class."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, where it stands in the context (`context[start:end]`), and its probability; empty: there is none."""

    answer: str
    start: int
    end: int
    probability: float


class Finetuned:
    """A fine-tuned encoder with its tokenizer."""

    def __init__(self, model: Model, head: Head, tokenizer: Tokenizer, table: TokenTable, device: torch.device | None = None) -> None:
        self.model, self.head, self.device = model, head, device or torch.device("cpu")
        self.rows = Rows(tokenizer, table, head.max_length, head.doc_stride)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load from a local folder.

        :raises EncodingError: it is not one of a fine-tuned encoder.
        """
        return cls(*load_with_head(Path(folder)))

    def predict(self, inputs: Iterable[Input], batch_size: int = 32, where: Where = numbered) -> Iterator[dict[str, Any]]:
        """What the task gives for each text or pair, of question answering for each question and context, as plain values.

        :param where: begins a message about an input.
        :raises EncodingError: an input is empty, or lacks its second text.
        """
        remaining = enumerate(inputs)
        while part := list(islice(remaining, _AT_ONCE)):
            for number, entry in part:
                self._check(where(number), entry)
            first, entries = part[0][0], [entry for _, entry in part]
            found: Sequence[Prediction | Answer]
            if self.head.labels:
                found = self.classify(entries, batch_size)
            else:
                found = self.answer([(a, b or "") for a, b in entries], batch_size, partial(_named, where, first))
            yield from map(asdict, found)

    def _check(self, where: str, entry: Input) -> None:
        texts = [text for text in entry if text is not None]
        wanted = {"classification": "one text", "pair_classification": "a pair of texts"}.get(self.head.task, "a question and its context")
        if len(texts) != (1 if self.head.task == "classification" else 2):
            raise EncodingError(f"{where}got {len(texts)} texts; wanted {wanted}, the model being one of {self.head.task}")
        for text in texts:
            if not text.strip():
                raise EncodingError(f"{where}got an empty text; wanted some words")
            if not is_unicode(text):
                raise EncodingError(f"{where}got {text!r:.80}, which is not valid text; wanted Unicode")

    def classify(self, inputs: Sequence[Input], batch_size: int = 32) -> list[Prediction]:
        """The class of each sentence or pair."""
        found = []
        for probabilities in self.class_logits(inputs, batch_size).softmax(-1).tolist():
            by_label = dict(zip(self.head.labels, probabilities, strict=True))
            found.append(Prediction(max(by_label, key=by_label.__getitem__), by_label))
        return found

    def class_logits(self, inputs: Sequence[Input], batch_size: int = 32) -> Tensor:
        """(inputs, K)."""
        rows = list(self.rows.of(inputs))
        found = torch.zeros(len(rows), len(self.head.labels))
        for numbers, logits in self._logits(rows, batch_size):
            found[numbers] = logits
        return found

    def answer(self, questions: Sequence[tuple[str, str]], batch_size: int = 32, where: Where = numbered) -> list[Answer]:
        """The answer of each question in its context."""
        windows = list(self.rows.windows(questions, where))
        owners = [(question, window) for question, found in enumerate(windows) for window in found]
        logits: list[Tensor] = [torch.empty(0)] * len(owners)
        for numbers, found in self._logits([window.row for _, window in owners], batch_size):
            for number, row_L2 in zip(numbers, found, strict=True):
                logits[number] = row_L2
        by_question: list[list[tuple[Window, Tensor]]] = [[] for _ in questions]
        for (question, window), row_L2 in zip(owners, logits, strict=True):
            by_question[question].append((window, row_L2))
        return [self._best(context, found) for (_, context), found in zip(questions, by_question, strict=True)]

    def _best(self, context: str, windows: Sequence[tuple[Window, Tensor]]) -> Answer:
        """The likeliest span of all windows, or none where that is likelier."""
        scores = [self._spans(window, row_L2) for window, row_L2 in windows]
        nothing = min(row_L2[0].sum() for _, row_L2 in windows)  # what speaks for an answer in one window is against it
        every = torch.cat([scores_LL.flatten() for scores_LL in scores] + ([nothing.view(1)] if self.head.impossible else []))
        total = every.logsumexp(0)
        number = max(range(len(scores)), key=lambda window: float(scores[window].max()))
        best = scores[number]
        if self.head.impossible and nothing > best.max():
            return Answer("", 0, 0, float((nothing - total).exp()))
        first, last = divmod(int(best.argmax()), best.shape[1])
        spans = windows[number][0].spans
        start, end = spans[first][0], spans[last][1]
        return Answer(context[start:end], start, end, float((best.max() - total).exp()))

    def _spans(self, window: Window, row_L2: Tensor) -> Tensor:
        """Logits of each first and last token of the part of the context; minus infinity where the answer would be too long."""
        logits = row_L2[window.first : window.first + len(window.spans)]
        scores = logits[:, 0, None] + logits[None, :, 1]
        allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(self.head.max_answer_length - 1)
        return scores.masked_fill(~allowed, -torch.inf)

    @torch.no_grad()
    def _logits(self, rows: Sequence[Row], batch_size: int) -> Iterator[tuple[list[int], Tensor]]:
        """Numbers of rows with their logits on the CPU; those of like length go together."""
        was_training = self.model.training
        self.model.eval()
        order = sorted(range(len(rows)), key=lambda row: len(rows[row].input_ids))
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            yield numbers, self.model(batch_of([rows[number] for number in numbers], self.device)).cpu()
        self.model.train(was_training)


def _named(where: Where, first: int, place: int) -> str:
    return where(first + place)


def batch_of(rows: Sequence[Row], device: torch.device) -> Batch:
    """Rows as the model takes them; a GPU wants few large kernels, so a grid."""
    padded = device.type == "cuda" or None
    return Batch.of([row.input_ids for row in rows], [row.token_type_ids for row in rows], padded).to(device)
