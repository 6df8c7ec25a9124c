"""`run.json`: everything that training needs, by value, with the addresses of its shards.

In: settings and published shards, from the flow. Out: a file that `python -m pipeline.training` reads, on this machine
or another. The decision that matters: the run's key names its outcome, so it holds what changes the finished run and nothing else.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from ..addresses import refuse_credentials
from ..encoder_format import CONFIG, shape_of
from ..errors import TrainingError
from ..files import read_file
from ..model.encoder import EncoderShape
from ..section import Settings
from ..settings import ModelSettings, Preset, ShardSettings, TrainingSettings
from ..shards import shard_buckets
from ..storage import Output, Recipe, Store
from ..stores import check_shared

FORMAT = 3
STAGE = "run"
FILE = "run.json"
METRICS = "metrics.jsonl"
WEIGHTS = "model.safetensors"
BUCKETS = ("train", "valid", "train_long", "valid_long")
"""Fields that hold addresses of buckets."""
_TYPES = {
    "store": str,
    "work": str,
    "vocabulary": str,
    "vocabulary_size": int,
    **dict.fromkeys(BUCKETS, list),
    "inputs": dict,
    "encoder": str,
}


@dataclass(frozen=True)
class RunSettings:
    """A run.

    :param store: root of the store that checkpoints and the finished run go to.
    :param work: local folder for live metrics and the log.
    :param vocabulary: address of the vocabulary, whose tokens are read where masks are drawn while training.
    :param train: addresses of the training split's buckets; `valid` those of the held-out split.
    :param train_long: the same for the steps on long rows, and `valid_long`; empty: there are none.
    :param inputs: keys of the shard sets, and of the encoder that it starts from where there is one.
    :param encoder: address of the encoder whose weights it starts from; empty: it starts from random ones.
    """

    store: str
    work: str
    vocabulary: str
    vocabulary_size: int
    train: list[str]
    valid: list[str]
    train_long: list[str]
    valid_long: list[str]
    inputs: dict[str, str]
    encoder: str
    shards: ShardSettings
    model: ModelSettings
    training: TrainingSettings

    @property
    def recipe(self) -> Recipe:
        settings = {"model": self.model.for_key(), "training": self.training.for_key()}
        return Recipe(STAGE, FORMAT, settings, self.inputs)

    @property
    def key(self) -> str:
        return self.recipe.key

    def save(self) -> Self:
        """Write `run.json` into the work folder."""
        Path(self.work).mkdir(parents=True, exist_ok=True)
        aside = Path(self.work) / f"{FILE}.{os.getpid()}"
        aside.write_text(self.text(), "utf-8")
        aside.replace(Path(self.work) / FILE)  # whole, for whoever reads it now
        return self

    def text(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=1)

    @property
    def shape(self) -> EncoderShape:
        return EncoderShape(vocab_size=self.vocabulary_size, **self.model.as_dict())


def plan_run(
    store: Store,
    preset: Preset,
    train: Output,
    valid: Output,
    work: Path,
    encoder: Output | None = None,
    *,
    long: tuple[Output, Output] | None = None,
) -> RunSettings:
    """Put a run together; `save` writes its `run.json`.

    :param train: the shard set of the training split. :param valid: that of the held-out split.
    :param work: local folder under which the run gets one of its own.
    :param encoder: a published encoder, of this project or brought along (stage pretrained), to start from; None: random weights.
    :param long: the shard sets of both splits for the steps on long rows, where the preset has some.
    :raises TrainingError: the encoder has another vocabulary or another shape.
    """
    if encoder:
        _check_encoder(store, encoder, preset, train)
    sets = {"train": train, "valid": valid} | (dict(zip(("train_long", "valid_long"), long, strict=True)) if long else {})
    run = RunSettings(
        store=store.root,
        work="",
        vocabulary=store.address("vocabulary", train.manifest["inputs"]["vocabulary"]),
        vocabulary_size=train.facts["vocabulary_size"],
        **{name: shard_buckets(store, sets[name]) if name in sets else [] for name in BUCKETS},
        inputs={name: output.key for name, output in sets.items()} | ({"encoder": encoder.key} if encoder else {}),
        encoder=encoder.address if encoder else "",
        shards=preset.shards,
        model=preset.model,
        training=preset.training,
    )
    return replace(run, work=str(work.absolute() / run.key))


def _check_encoder(store: Store, encoder: Output, preset: Preset, train: Output) -> None:
    """See that an encoder fits the shards and the model."""
    what = f"warm_start: {encoder.stage} {encoder.key}"
    found, wanted = encoder.manifest["inputs"]["vocabulary"], train.manifest["inputs"]["vocabulary"]
    if found != wanted:
        todo = "take its vocabulary by vocabulary_from, or start from random weights"
        raise TrainingError(f"{what} has vocabulary {found}, the shards {train.key} have {wanted}; {todo}")
    has = shape_of(json.loads(store.read(encoder.file(CONFIG)) or b"{}"))
    if sizes := has.differences(EncoderShape(vocab_size=train.facts["vocabulary_size"], **preset.model.as_dict())):
        raise TrainingError(f"{what} has {sizes}; give the model these sizes, or start from random weights")


def read_run(path: Path) -> RunSettings:
    """Read a run.

    :raises TrainingError: the file is missing or not a run; SettingsError: a setting in it is invalid, or an address holds credentials.
    """
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise TrainingError(f"{path}: no such file; wanted the {FILE} that the flow writes") from None
    except (ValueError, RecursionError) as error:
        raise TrainingError(f"{path}: not JSON ({error}); wanted the {FILE} that the flow writes") from error
    names = set(RunSettings.__dataclass_fields__)
    if not isinstance(values, dict) or set(values) != names:
        found = sorted(values) if isinstance(values, dict) else type(values).__name__
        raise TrainingError(f"{path}: got {found}, wanted exactly {sorted(names)}")
    _check_values(path, values)
    if values["store"]:  # a plan's is empty
        check_shared(f"{path}: store", values["store"])
    for address in (values["vocabulary"], values["encoder"], *(bucket for name in BUCKETS for bucket in values[name])):
        refuse_credentials(f"{path}", address)
    sections: dict[str, type[Settings]] = {"shards": ShardSettings, "model": ModelSettings, "training": TrainingSettings}
    return RunSettings(**values | {name: kind.read(values[name]) for name, kind in sections.items()})


def _check_values(path: Path, values: dict[str, Any]) -> None:
    """See that what is no setting has its type, and that there is something to train on."""
    for name, kind in _TYPES.items():
        if type(values[name]) is not kind:  # true is no whole number here
            raise TrainingError(f"{path}: {name}: got {values[name]!r:.80}, wanted {kind.__name__}")
    for name, texts in [*((name, values[name]) for name in BUCKETS), ("inputs", values["inputs"].values())]:
        if odd := [text for text in texts if not isinstance(text, str)]:
            raise TrainingError(f"{path}: {name}: got {odd[0]!r:.80} in it, wanted str")
    for name in ("train", "valid"):
        if not values[name]:
            raise TrainingError(f"{path}: {name}: got [], wanted some buckets")
    if values["vocabulary_size"] < 1:
        raise TrainingError(f"{path}: vocabulary_size: got {values['vocabulary_size']}, wanted 1 or more")


def read_metrics(run: Output) -> list[dict[str, Any]]:
    """The rows of a finished run's `metrics.jsonl`."""
    return [json.loads(line) for line in read_file(run.file(METRICS)).splitlines()]
