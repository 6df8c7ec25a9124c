"""How two registered versions differ.

In: two addresses, of encoders or of fine-tuned ones. Out: lines: settings that differ, what they were made from, metrics,
curves, and, of encoders, which held-out sentences each finds near the test sentences.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlflow.entities import Run

from pipeline.comparison import pick_sentences
from pipeline.data.change import compare as compare_corpora
from pipeline.data.corpus import STAGE as CORPUS
from pipeline.encoding import Encoder, Input
from pipeline.errors import EncodingError, SettingsError
from pipeline.samples import SENTENCES, WORD, sample_encodings
from pipeline.settings import TextSettings
from pipeline.storage import Store
from pipeline.streaming import Stream

from . import models, pictures, versions
from .registry import Version, connect

_CURVES = {"train/mlm_loss_mean": "MLM, running mean", "held_out/mlm_loss": "MLM, held out"}
_CURVES_OF_HEADS = {"train/loss": "loss", "held_out/accuracy": "accuracy, held out", "held_out/f1": "F1, held out"}
_STEPS = 8  # of a curve that are shown
_SENTENCES = 1_000  # held-out ones, among which neighbours are looked for
_NEIGHBOURS = 3
_MADE_FROM = ("corpus", "corpus_key", "vocabulary_key", "encoder_key", "code_commit")
_HEADS_MADE_FROM = ("encoder_version", "encoder_key", "labelled_key", "random_encoder")


@dataclass(frozen=True)
class _Side:
    """One of the two. :param curves: value by step, by metric; empty where there is none."""

    version: Version
    run: Run
    curves: Mapping[str, Mapping[int, float]]

    @property
    def tags(self) -> dict[str, str]:
        return {**self.run.data.tags, **self.version.tags}

    @property
    def has_head(self) -> bool:
        return models.FINETUNED.key_tag in self.version.tags


def lines_of(store: Store, one: str, other: str, folder: Path | None) -> Iterator[str]:
    """Lines that tell two versions apart.

    :param folder: where a picture of both curves goes; None: nowhere.
    :raises RegistryError: there is no such version. :raises SettingsError: they are not of a kind.
    """
    sides = [_side(one), _side(other)]
    if sides[0].has_head != sides[1].has_head:
        kinds = (f"{side.version.uri}, {'fine-tuned' if side.has_head else 'an encoder'}" for side in sides)
        raise SettingsError(f"compare: got {' and '.join(kinds)}; wanted two encoders, or two that are fine-tuned")
    yield _row("", *(side.version.uri for side in sides))
    yield from _told("settings that differ", _different([side.run.data.params for side in sides]))
    yield from (_of_heads if sides[0].has_head else _of_encoders)(store, sides, folder)


def _of_heads(store: Store, sides: Sequence[_Side], folder: Path | None) -> Iterator[str]:
    yield from _made_from(sides, _HEADS_MADE_FROM)
    yield from _figures(sides, "labelled_key", "labelled data", _CURVES_OF_HEADS, folder)


def _of_encoders(store: Store, sides: Sequence[_Side], folder: Path | None) -> Iterator[str]:
    yield from _made_from(sides, _MADE_FROM)
    encoders = [Encoder.load(models.download(side.version.uri)) for side in sides]
    yield from (f"  {line}" for line in (_corpora(store, sides), _vocabularies(encoders)))
    yield from _figures(sides, "valid_shards_key", "held-out shards", _CURVES, folder)
    yield from _neighbours(store, sides, encoders)


def _made_from(sides: Sequence[_Side], names: Sequence[str]) -> Iterator[str]:
    return _told("made from", [(name, [side.tags.get(name, "") for side in sides]) for name in names])


def _figures(sides: Sequence[_Side], key: str, what: str, titles: Mapping[str, str], folder: Path | None) -> Iterator[str]:
    """Held-out figures and curves.

    :param key: the tag of what is held out. :param what: how that is called. :param titles: of curves, by metric.
    """
    same = len({side.tags.get(key) for side in sides}) == 1
    yield from _told("metrics" if same else f"metrics, each on its own {what}", _metrics(sides))
    drawn = {metric: title for metric, title in titles.items() if any(side.curves[metric] for side in sides)}
    for metric, title in drawn.items():
        yield from _told(title, _curve([side.curves[metric] for side in sides]))
    if folder and drawn:
        path = folder / "curves.png"
        figure = pictures.both_curves({side.version.uri: side.curves for side in sides}, drawn)
        figure.savefig(path, dpi=pictures.DPI)
        yield f"\npicture  {path}"


def _side(address: str) -> _Side:
    version = versions.at(address)
    with connect() as client:
        run, names = client.get_run(version.run_id), [*_CURVES, *_CURVES_OF_HEADS]
        curves = {name: {entry.step: entry.value for entry in client.get_metric_history(version.run_id, name)} for name in names}
    return _Side(version, run, curves)


def _row(name: str, *values: str) -> str:
    return f"{name:<36} {values[0]:<28} {values[1]}".rstrip()


def _told(title: str, rows: Sequence[tuple[str, list[str]]]) -> Iterator[str]:
    yield f"\n{title}"
    yield from (_row(f"  {name}", *values) for name, values in rows)
    if not rows:
        yield "  none"


def _different(params: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    names = sorted({name for side in params for name in side})
    rows = [(name, [side.get(name, "-") for side in params]) for name in names]
    return [(name, values) for name, values in rows if values[0] != values[1]]


def _metrics(sides: Sequence[_Side]) -> list[tuple[str, list[str]]]:
    wanted = sorted({name for side in sides for name in side.run.data.metrics if name.startswith("held_out/")})
    return [(name, [_number(side.run.data.metrics.get(name)) for side in sides]) for name in wanted]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _curve(curves: Sequence[Mapping[int, float]]) -> list[tuple[str, list[str]]]:
    steps = sorted({step for curve in curves for step in curve})
    shown = [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, min(_STEPS, len(steps))).round().astype(int))]
    return [(f"step {step}", [_number(curve.get(step)) for curve in curves]) for step in shown]


def _corpora(store: Store, sides: Sequence[_Side]) -> str:
    """What changed from one corpus to the other, in words."""
    keys = [side.tags.get("corpus_key", "") for side in sides]
    if keys[0] == keys[1]:
        return "the corpus is the same"
    found = [store.whole(CORPUS, key) for key in keys]
    if not (found[0] and found[1]):
        absent = " and ".join(key or "without a key" for key, corpus in zip(keys, found, strict=True) if corpus is None)
        return f"the corpus is another; what changed is not counted, since corpus {absent} is not in this store"
    change = compare_corpora(found[0], found[1], _text_settings(sides[0].run.data.params))
    documents = f"{change.before:,} documents to train on became {change.after:,}"
    return f"the corpus is another: {documents}; {change.added:,} came, {change.removed:,} went"


def _vocabularies(encoders: Sequence[Encoder]) -> str:
    """What changed from one vocabulary to the other, in words."""
    one, other = (set(encoder.table.tokens) for encoder in encoders)
    if encoders[0].table.tokens == encoders[1].table.tokens:
        return f"the vocabulary is the same, of {len(one):,} tokens"
    return f"the vocabulary is another: of {len(one):,} tokens {len(one & other):,} stayed, {len(other - one):,} are new"


def _neighbours(store: Store, sides: Sequence[_Side], encoders: Sequence[Encoder]) -> Iterator[str]:
    """The held-out sentences of the first one's corpus that each finds nearest to the test sentences."""
    cosines = [f"{sample_encodings(encoder).word_similarity:.4f}" for encoder in encoders]
    yield from _told(f"cosine of {WORD} in the two sentences", [("", cosines)])
    corpus = store.whole(CORPUS, sides[0].tags.get("corpus_key", ""))
    if corpus is None:
        yield f"\nneighbours: corpus {sides[0].tags.get('corpus_key', '')} is not in this store, so none are looked for"
        return
    sentences = pick_sentences(corpus, _text_settings(sides[0].run.data.params), _SENTENCES)
    yield f"\nnearest of {len(sentences):,} held-out sentences of {sides[0].tags.get('corpus')}, by the cosine of mean vectors"
    for text, pair in SENTENCES:
        query: Input = text if pair is None else (text, pair)
        yield f"  {text if pair is None else f'{text} / {pair}'}"
        for side, encoder in zip(sides, encoders, strict=True):
            yield f"    {side.version.uri}"
            yield from (f"      {similarity:.3f}  {sentence:.100}" for similarity, sentence in _nearest(encoder, query, sentences))


def _text_settings(params: Mapping[str, str]) -> TextSettings:
    try:
        return TextSettings.read({name: params[f"text.{name}"] for name in ("documents", "sentences", "language")})
    except KeyError as error:
        raise SettingsError(f"{error.args[0]}: not among the run's parameters; wanted a run of this project") from None


def _nearest(encoder: Encoder, query: Input, sentences: Sequence[str]) -> list[tuple[float, str]]:
    if not sentences:
        raise EncodingError("the corpus holds out no sentence; wanted some to look for neighbours among")
    found = [entry.vectors.numpy() for entry in Stream(encoder, truncate=True).encode([query, *sentences])]
    vectors = np.stack(found)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = vectors[1:] @ vectors[0]
    return [(float(similarities[place]), sentences[place]) for place in np.argsort(-similarities, kind="stable")[:_NEIGHBOURS]]
