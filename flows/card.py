"""The model card of a version, as its description in MLflow, and the figures that the run's report shares with it.

In: settings, counts and figures. Out: Markdown. The decision that matters: a card says what was measured and what is not
known, from what the outputs recorded; nothing in it is typed by hand but the limits, which hold for every encoder.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.samples import WORD, Samples
from pipeline.settings import Preset, ShardSettings, TrainingSettings

from .markdown import bullets, duration, page, plain, table

_ATTRIBUTION = "Creative Commons Attribution-ShareAlike 3.0, that of Wikipedia's articles, of which it is made"
_LICENCES = {
    "wikitext-2": _ATTRIBUTION,
    "wikitext-103": _ATTRIBUTION,
    "sample": "Python Software Foundation License, that of Python's documentation, of which it is made",
}
_UNKNOWN = "not known to this project; who passes the encoder on has to know it"
_PAIRS = {
    "neighbours": "neighbouring sentences, or one with a random other",
    "next_sentence": "the segment that follows, or a random one",
    "sentence_order": "two segments in their order, or swapped",
    "none": "no pair task",
}
_PAIR_TASK = {"sentence_order": "sentence order"}
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """What a card is about.

    :param corpus: its name. :param counts: of the training shards. :param vocabulary_size: tokens.
    :param run: facts of the finished run; `recorded` what its manifest recorded beside them. :param start: key of the encoder
        that it started from; None: random weights.
    """

    preset: Preset
    corpus: str
    counts: Mapping[str, int]
    vocabulary_size: int
    run: Facts
    recorded: Facts
    start: str | None
    samples: Samples


def name_description(preset: Preset, corpus: str) -> str:
    """The line that describes a registered name."""
    return f"BERT encoders of preset {preset.name}, pretrained on {corpus}. A version's description is its model card."


def model_card(subject: Subject, name: str, number: str) -> str:
    """The card of a version."""
    sections = {
        "Use": _use(subject, f"models:/{name}/{number}"),
        "Figures": figures_markdown(subject.run, subject.preset.shards),
        "Data": _data(subject),
        "Settings": _settings(subject),
        "Sample encodings": samples_markdown(subject.samples),
        "Limits": _limits(subject),
    }
    return page(f"{name}, version {number}", _what(subject), sections)


def _what(subject: Subject) -> str:
    model, run = subject.preset.model, subject.run
    start = f"the weights of encoder `{subject.start}`" if subject.start else "random weights"
    return (
        f"A BERT encoder of preset `{subject.preset.name}`, pretrained on {subject.corpus} for {run['steps']:,} steps from {start}: "
        f"{model.num_hidden_layers} layers, {model.hidden_size} hidden, {model.num_attention_heads} heads, "
        f"{run['parameters']:,} parameters with the heads that pretraining needs. It turns a sentence or a pair of sentences into "
        f"a vector of {model.hidden_size} numbers for each token."
    )


def _use(subject: Subject, uri: str) -> str:
    files = f"As plain files: `mlflow.artifacts.download_artifacts({uri!r})`, folder `artifacts/encoder`"
    reads = ", which `AutoModel.from_pretrained` of transformers loads as it is" if subject.preset.model.architecture == "bert" else ""
    return f"""Where mlflow, torch, tokenizers and safetensors are installed and `MLFLOW_TRACKING_URI` is the address of this registry:

```python
import mlflow

model = mlflow.pyfunc.load_model("{uri}")
encoded = model.predict([{{"text": "a crane driver came", "text_pair": "he just left"}}])
print(encoded[0]["tokens"])
print(len(encoded[0]["vectors"]), "vectors of", len(encoded[0]["vectors"][0]), "numbers")
```

{files}{reads}."""


def figures_markdown(run: Facts, shards: ShardSettings) -> str:
    """The figures of a finished run, those that are held out beside what knowing nothing of the context gives."""
    held_out, task = run["held_out"], _PAIR_TASK.get(shards.pairs, "next sentence")
    rows = [
        ("held-out loss, masked words", f"{held_out['mlm_loss']:.3f}", f"{held_out['unigram_loss']:.3f}, the unigram level"),
        ("held-out accuracy, masked words", f"{held_out['mlm_accuracy']:.1%}", ""),
        ("running mean of the loss, masked words", f"{run['mlm_loss_mean']:.3f}", "over all steps"),
    ]
    if "next_sentence_loss" in held_out:
        guess = f"{math.log(2):.3f}, as guessing gives"
        rows += [
            (f"held-out loss, {task}", f"{held_out['next_sentence_loss']:.3f}", guess),
            (f"held-out accuracy, {task}", f"{held_out['next_sentence_accuracy']:.1%}", "50%, as guessing gives where labels are even"),
            (f"running mean of the loss, {task}", f"{run['next_sentence_loss_mean']:.3f}", "over all steps"),
        ]
    rows += [
        ("training speed", f"{run['pairs_per_second']:,.0f} pairs/s", f"on {plain(run['device'])}"),
        ("training time", duration(run["seconds"]), f"{run['pairs']:,} pairs"),
    ]
    text = table(("figure", "value", "beside it"), rows, right=(1,))
    if held_out["mlm_loss"] < held_out["unigram_loss"]:
        return text
    return f"{text}\n\nThe held-out loss is not below the unigram level: the encoder has learnt how frequent words are and nothing else."


def _data(subject: Subject) -> str:
    counts, vocabulary = subject.counts, subject.preset.vocabulary
    rows = [
        ("corpus", subject.corpus),
        ("licence of the corpus", _LICENCES.get(subject.corpus, _UNKNOWN)),
        ("documents, sentences", f"{counts['documents']:,}, {counts['sentences']:,}"),
        ("tokens of the text, unknown", f"{counts['tokens']:,}, {counts['unknown_tokens']:,}"),
        ("examples to train on", f"{counts['rows']:,}"),
        ("vocabulary", f"{vocabulary.kind}, {subject.vocabulary_size:,} tokens"),
    ]
    return bullets(rows)


def _settings(subject: Subject) -> str:
    shards, training = subject.preset.shards, subject.preset.training
    dynamic = ", drawn anew each epoch" if shards.masking == "dynamic" else ""
    longest = f", {shards.long_max_length} for the last {training.long_ratio:.0%} of the steps" if shards.long_max_length else ""
    rows = [
        ("pairs", _PAIRS[shards.pairs]),
        ("masks", f"{shards.masking_rate:.0%} of the tokens{', whole words' if shards.whole_word else ''}{dynamic}"),
        ("longest example", f"{shards.max_length} tokens{longest}"),
        ("steps, examples a step", f"{training.steps:,}, {training.batch_size:,}"),
        ("optimizer, peak learning rate", f"{training.optimizer}, {training.learning_rate:g}"),
        ("schedule, warm-up", f"{_schedule(training)}, {training.warmup_ratio:.0%} of the steps"),
        ("matrix products", str(subject.recorded.get("precision", training.precision))),
        ("seeds of data, of training", f"{shards.seed}, {training.seed}"),
    ]
    return f"{bullets(rows)}\n\nAll settings, and the keys of all inputs, stand with the run that made this version."


def _schedule(training: TrainingSettings) -> str:
    return f"{training.schedule}, falling over {training.decay_ratio:.0%}" if training.schedule == "wsd" else training.schedule


def _limits(subject: Subject) -> str:
    model, vocabulary = subject.preset.model, subject.preset.vocabulary
    case = {"words": "Text is split at white space and put in lower case", "wordpiece": "Words are split into pieces"}
    text = case.get(vocabulary.kind, "Text is split as the tokenizer.json that was brought along says")
    lines = [
        f"It takes at most {model.max_position_embeddings} tokens, and was trained on examples of "
        f"at most {max(subject.preset.shards.max_length, subject.preset.shards.long_max_length)}.",
        f"{text}; what the vocabulary lacks is the unknown token.",
        "It was pretrained alone: no task was trained or measured, and no bias of its text was looked for.",
        "The figures are of held-out text of the same corpus; of other text nothing is known.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def samples_table(samples: Samples) -> dict[str, list[Any]]:
    """Columns of the sample encodings."""
    entries = samples.encodings
    return {
        "text": [entry.text for entry in entries],
        "text_pair": [entry.text_pair or "" for entry in entries],
        "tokens": [" ".join(entry.tokens) for entry in entries],
        "shape": [str(tuple(entry.shape)) for entry in entries],
        "cls": [_numbers(entry.cls) for entry in entries],
        WORD: [_numbers(entry.word) for entry in entries],
        "unknown_words": [" ".join(entry.unknown) or "none" for entry in entries],
    }


def samples_markdown(samples: Samples) -> str:
    """The sample encodings, the first three numbers of a vector, and how alike the two are."""
    columns = samples_table(samples)
    texts = [f"{text} / {pair}" if pair else text for text, pair in zip(columns.pop("text"), columns.pop("text_pair"), strict=True)]
    names = {"cls": "vector of the first token", WORD: f"vector of {WORD}", "unknown_words": "unknown words"}
    rows = ([names.get(name, name), *map(plain, cells)] for name, cells in columns.items())
    encodings = table(("", *map(plain, texts)), rows)
    alike = [
        (f"vector of {WORD}", f"{samples.word_similarity:.4f}"),
        ("mean vector of all tokens", f"{samples.sentence_similarity:.4f}"),
    ]
    return f"{encodings}\n\n{table(('of the two', 'cosine similarity'), alike, right=(1,))}"


def _numbers(vector: Sequence[float]) -> str:
    return ", ".join(f"{number:.4f}" for number in vector)
