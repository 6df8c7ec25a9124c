"""A fine-tuned encoder on held-out rows.

In: the model and labelled examples. Out: the task's figures. The decision that matters: what is evaluated is what a user
gets, by the same code, in fp32; classes go by their names, so that models of other labels can be compared.
"""

from collections.abc import Sequence

from ..comparison import Comparison
from .examples import Example, Labelled, Question
from .figures import answer_figures, class_figures
from .prediction import Finetuned

_MISSES = {"accuracy": "error rate", "f1": "1 - F1"}  # lower is better


def evaluate(model: Finetuned, examples: Sequence[Example], batch_size: int = 32) -> dict[str, float]:
    """Accuracy and macro F1, of question answering exact match and F1; the first is the one that versions are compared by."""
    if model.head.labels:
        rows = [row for row in examples if isinstance(row, Labelled)]
        predicted = model.classify([(row.text, row.text_pair) for row in rows], batch_size)
        return class_figures([found.label for found in predicted], [row.label for row in rows])
    questions = [row for row in examples if isinstance(row, Question)]
    answers = model.answer([(row.question, row.context) for row in questions], batch_size)
    return answer_figures([found.answer for found in answers], [[text for text, _ in row.answers] for row in questions])


def compare(ours: dict[str, float], theirs: dict[str, float] | None, rows: int) -> Comparison:
    """A candidate's figures beside a champion's on the same rows, by what accuracy lacks, or of answers F1.

    :param theirs: None: there is no champion.
    """
    name = "accuracy" if "accuracy" in ours else "f1"
    both = {figure: (value, theirs[figure] if theirs else None) for figure, value in ours.items()}
    return Comparison(_MISSES[name], rows, 1 - ours[name], 1 - theirs[name] if theirs else None, both)
