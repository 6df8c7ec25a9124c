"""The card of a fine-tuned encoder: what it does, on what it was trained, how good it is, how to load it, what it cannot.

In: the published output and its data. Out: Markdown, the description of the version in MLflow.
"""

from typing import Any

from pipeline.finetuning.labelled import HELD_OUT, TRAIN
from pipeline.storage import Output

from .markdown import bullets, duration, page, plain, table
from .registry import Version

_SHOWN = 20  # classes
_INPUTS = {
    "classification": '{"text": "a crane is flying"}',
    "pair_classification": '{"text": "a crane is flying", "text_pair": "a bird is in the air"}',
    "question_answering": '{"question": "what is flying ?", "context": "a crane is flying over the river"}',
}
_TAKES = {
    "classification": "a sentence the class that it is of",
    "pair_classification": "a pair of sentences the class that it is of",
    "question_answering": "a question the part of a context that answers it",
}


def name_description(task: str, encoder: str) -> str:
    """The line that describes a registered name."""
    return f"{encoder}, fine-tuned for {task.replace('_', ' ')}. A version's description is its model card."


def finetuned_card(version: Version, finetuned: Output, labelled: Output, encoder: str) -> str:
    """The card of a version.

    :param encoder: how the encoder is called: its version, or its key.
    """
    facts, settings = finetuned.facts, finetuned.manifest["settings"]
    start = "from random weights of its shape, as a baseline" if settings["random_encoder"] else "from its pretrained weights"
    what = f"{plain(encoder)} with a head, fine-tuned for {facts['task'].replace('_', ' ')} {start}. It gives {_TAKES[facts['task']]}."
    sections = {
        "Use": _use(version, facts["task"]),
        "Figures": _figures(facts, labelled.facts),
        "Data": bullets(_data(labelled)),
        "Settings": bullets(_settings(facts, settings)),
        "Limits": "\n".join(f"- {line}" for line in _limits(facts, settings)),
    }
    return page(f"{version.name}, version {version.number}", what, sections)


def _use(version: Version, task: str) -> str:
    return f"""Where mlflow, torch, tokenizers and safetensors are installed and `MLFLOW_TRACKING_URI` is the address of this registry:

```python
import mlflow

model = mlflow.pyfunc.load_model("{version.uri}")
print(model.predict([{_INPUTS[task]}]))
```

As plain files: `mlflow.artifacts.download_artifacts({version.uri!r})`, folder `artifacts/finetuned`."""


def _figures(facts: dict[str, Any], data: dict[str, Any]) -> str:
    beside = baseline(data)
    rows = [
        (f"held-out {name.replace('_', ' ')}", f"{value:.4f}", beside if name == "accuracy" else "")
        for name, value in facts["held_out"].items()
    ]
    rows.append(("training time", duration(facts["seconds"]), f"on {plain(facts['device'])}"))
    return table(("figure", "value", "beside it"), rows, right=(1,))


def baseline(data: dict[str, Any]) -> str:
    """What always giving the training data's most frequent class would reach; empty where there are no classes."""
    if not data["labels"]:
        return ""
    classes = data[TRAIN]["classes"]
    frequent = max(classes, key=classes.__getitem__)
    share = data[HELD_OUT]["classes"].get(frequent, 0) / data[HELD_OUT]["rows"]
    return f"{share:.4f}, always the most frequent class"


def _data(labelled: Output) -> list[tuple[str, str]]:
    data, recorded = labelled.facts, labelled.manifest["recorded"]
    how = "given" if recorded["held_out_given"] else "a share of the training data, kept out by digest"
    labels = data["labels"]
    classes = f"{len(labels):,}: {', '.join(labels[:_SHOWN])}{', …' if len(labels) > _SHOWN else ''}"
    return [
        ("training data", f"{recorded[f'{TRAIN}_source']}, {_rows(data[TRAIN])}"),
        ("held-out data", f"{recorded[f'{HELD_OUT}_source']} ({how}), {_rows(data[HELD_OUT])}"),
        *([("classes", classes)] if labels else []),
    ]


def _rows(counts: dict[str, Any]) -> str:
    without = f", {counts['impossible']:,} without an answer" if counts.get("impossible") else ""
    return f"{counts['rows']:,} rows{without}"


def _settings(facts: dict[str, Any], settings: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("epochs, steps, rows a step", f"{settings['epochs']:,}, {facts['steps']:,}, {settings['batch_size']:,}"),
        ("peak learning rate", f"{settings['learning_rate']:g}{', of the head alone' if settings['freeze_encoder'] else ''}"),
        ("longest row", f"{settings['max_length']:,} tokens"),
        ("seed", str(settings["seed"])),
    ]


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
