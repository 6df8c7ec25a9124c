"""The card of a fine-tuned encoder: what it does, on what it was trained, how good it is, how to load it, what it cannot.

In: the published output and its data. Out: Markdown, for the version's page in MLflow and the run's page in Prefect.
"""

from typing import Any

from pipeline.finetuning.labelled import HELD_OUT, TRAIN
from pipeline.storage import Output

_SHOWN = 20  # classes
_INPUTS = {
    "classification": '{"text": "a crane is flying"}',
    "pair_classification": '{"text": "a crane is flying", "text_pair": "a bird is in the air"}',
    "question_answering": '{"question": "what is flying ?", "context": "a crane is flying over the river"}',
}


def card(name: str, finetuned: Output, labelled: Output, encoder: str) -> str:
    """The card as Markdown.

    :param encoder: how the encoder is called: its version, or its key.
    """
    facts, data, settings = finetuned.facts, labelled.facts, finetuned.manifest["settings"]
    recorded = labelled.manifest["recorded"]
    how = "given" if recorded["held_out_given"] else "a share of the training data, kept out by digest"
    start = "random weights of its shape, as a baseline" if settings["random_encoder"] else "its pretrained weights"
    rows = {
        "task": facts["task"].replace("_", " ") + _classes(facts["labels"]),
        "encoder": f"{encoder}, from {start}{', frozen' if settings['freeze_encoder'] else ''}",
        "training data": f"{recorded[f'{TRAIN}_source']}: {_rows(data[TRAIN])}",
        "held-out data": f"{recorded[f'{HELD_OUT}_source']} ({how}): {_rows(data[HELD_OUT])}",
        **{f"held-out {figure.replace('_', ' ')}": f"{value:.4f}" for figure, value in facts["held_out"].items()},
        **baseline(data),
        "training": f"{settings['epochs']} epochs, {facts['steps']} steps of {settings['batch_size']} at {settings['learning_rate']:g}",
    }
    table = ["| | |", "|---|---|", *(f"| {left} | {str(right).replace('|', '&#124;')} |" for left, right in rows.items())]
    load = [
        "```python",
        "import mlflow",
        f'model = mlflow.pyfunc.load_model("models:/{name}@champion")',
        f"model.predict([{_INPUTS[facts['task']]}])",
        "```",
    ]
    return "\n".join([*table, "", *load, "", *(f"- {line}" for line in _limits(facts, settings))])


def baseline(data: dict[str, Any]) -> dict[str, str]:
    """What always giving the training data's most frequent class would reach."""
    if not data["labels"]:
        return {}
    classes = data[TRAIN]["classes"]
    frequent = max(classes, key=classes.__getitem__)
    share = data[HELD_OUT]["classes"].get(frequent, 0) / data[HELD_OUT]["rows"]
    return {"most frequent class alone": f"accuracy {share:.4f}"}


def _classes(labels: list[str]) -> str:
    return f" of {len(labels)} classes: {', '.join(labels[:_SHOWN])}{', …' if len(labels) > _SHOWN else ''}" if labels else ""


def _rows(counts: dict[str, Any]) -> str:
    without = f", {counts['impossible']:,} without an answer" if counts.get("impossible") else ""
    return f"{counts['rows']:,} rows{without}"


def _limits(facts: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    length = settings["max_length"]
    if not facts["labels"]:
        return [
            f"A context goes in windows of {length} tokens that overlap by {settings['doc_stride']}; a question is cut at what is left.",
            f"An answer is a part of the context, of {settings['max_answer_length']} tokens at most.",
            "The figures are those of the held-out rows; questions of another kind may do worse.",
        ]
    return [
        f"Rows are cut at {length} tokens; what stands behind is not read.",
        "It always gives one of its classes, also for text that fits none.",
        "The figures are those of the held-out rows; text of another kind may do worse.",
    ]
