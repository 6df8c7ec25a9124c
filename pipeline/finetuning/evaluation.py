"""A fine-tuned encoder on held-out rows.

In: the model and labelled examples. Out: the task's figures. The decision that matters: what is evaluated is what a user
gets, by the same code, in fp32; classes go by their names, so that models of other labels can be compared.
"""

from collections.abc import Sequence

from .examples import Example, Labelled, Question
from .figures import answer_figures, class_figures
from .prediction import Finetuned


def evaluate(model: Finetuned, examples: Sequence[Example], batch_size: int = 32) -> dict[str, float]:
    """Accuracy and macro F1, of question answering exact match and F1; the first is the one that versions are compared by."""
    if model.head.labels:
        rows = [row for row in examples if isinstance(row, Labelled)]
        predicted = model.classify([(row.text, row.text_pair) for row in rows], batch_size)
        return class_figures([found.label for found in predicted], [row.label for row in rows])
    questions = [row for row in examples if isinstance(row, Question)]
    answers = model.answer([(row.question, row.context) for row in questions], batch_size)
    return answer_figures([found.answer for found in answers], [[text for text, _ in row.answers] for row in questions])


def deciding(figures: dict[str, float]) -> tuple[str, float]:
    """The figure that versions are compared by: accuracy, or of answers F1."""
    name = "accuracy" if "accuracy" in figures else "f1"
    return name, figures[name]
