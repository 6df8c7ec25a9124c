"""Settings of every stage, their limits, and the presets that fill them.

In: a preset's TOML file, overrides, dictionaries from JSON. Out: frozen dataclasses that have been checked.
The decision that matters: limits stand once, in `field(metadata=...)`, where both `__post_init__` and pydantic
(Prefect's form and server) read them. Validation rejects; it never repairs.
"""

import dataclasses
import math
import operator
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_type_hints

from .errors import SettingsError

PRESETS = "presets"
MOST_BUCKETS = 512  # each is a file that is open while documents are sorted into them
_WANTED: dict[type, str] = {int: "a whole number", float: "a finite number", str: "text"}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "pattern": ("matching", lambda value, pattern: re.fullmatch(pattern, value) is not None),
}


def setting(description: str, default: Any = dataclasses.MISSING, **limits: float | str) -> Any:
    """A dataclass field with a description and limits (`gt`, `ge`, `lt`, `le`, `pattern`) that pydantic understands.

    Without a default it is part of a recipe, and each preset states it.
    """
    return field(default=default, metadata={"description": description, **limits})


@dataclass(frozen=True)
class Settings:
    """Base of the settings of a stage: checks itself, reads strictly, takes overrides."""

    section: ClassVar[str] = "settings"
    not_in_key: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for entry in dataclasses.fields(self):
            self._check(entry, hints[entry.name])

    def _check(self, entry: "dataclasses.Field[Any]", kind: Any) -> None:
        value: Any = getattr(self, entry.name)
        name = f"{self.section}.{entry.name}"
        if kind is float and type(value) is int:
            object.__setattr__(self, entry.name, value := float(value))
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is float and not math.isfinite(value)):
            raise SettingsError(f"{name}: got {value!r}, wanted {_WANTED[kind]} ({entry.metadata['description']})")
        for limit, (sign, holds) in _LIMITS.items():
            if limit in entry.metadata and not holds(value, entry.metadata[limit]):
                wanted = f"a value {sign} {entry.metadata[limit]}"
                raise SettingsError(f"{name}: got {value!r}, wanted {wanted} ({entry.metadata['description']})")

    @classmethod
    def read(cls, values: object) -> Self:
        """Build from a dictionary that may leave out fields but may not hold unknown ones."""
        if not isinstance(values, dict):
            raise SettingsError(f"{cls.section}: got {values!r}, wanted a table of settings")
        known = [entry.name for entry in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise SettingsError(f"{cls.section}.{name}: no such setting; {cls.section} has {', '.join(known)}")
        for entry in dataclasses.fields(cls):
            if entry.default is dataclasses.MISSING and entry.name not in values:
                raise SettingsError(f"{cls.section}.{entry.name}: missing; it is {entry.metadata['description']}")
        return cls(**values)

    def override(self, overrides: object) -> Self:
        """A copy in which every field of `overrides` that is not None replaces ours.

        :param overrides: an instance of the partial class of this one, a dictionary, or None.
        """
        if overrides is None:
            return self
        if dataclasses.is_dataclass(overrides) and not isinstance(overrides, type):
            overrides = dataclasses.asdict(overrides)
        if not isinstance(overrides, dict):
            raise SettingsError(f"{self.section}: got {overrides!r}, wanted a table of settings")
        return type(self).read(dataclasses.asdict(self) | {name: value for name, value in overrides.items() if value is not None})

    def as_dict(self) -> dict[str, Any]:
        """Every field by value, ready for JSON."""
        return dataclasses.asdict(self)

    def for_key(self) -> dict[str, Any]:
        """The fields that change a stage's output."""
        return {name: value for name, value in self.as_dict().items() if name not in self.not_in_key}


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """How words become ids."""

    section: ClassVar[str] = "vocabulary"
    min_count: int = setting("words seen fewer times than this are unknown", ge=1, le=2_147_483_648)


@dataclass(frozen=True, kw_only=True)
class ShardSettings(Settings):
    """How sentence pairs and masks are made (Devlin et al. 2018, arXiv 1810.04805; the deck's variant)."""

    section: ClassVar[str] = "shards"
    max_length: int = setting("longest example in tokens, specials included; longer pairs are dropped and counted", ge=5, le=32767)
    masking_rate: float = setting("share of a row's tokens to predict", gt=0, le=1)
    max_predictions_per_seq: int = setting("most predictions in a row", ge=1, le=32767)
    mask_token_rate: float = setting("share of predicted tokens replaced by <mask>", 0.8, ge=0, le=1)
    random_token_rate: float = setting("share of predicted tokens replaced by a random word; the rest stay as they are", 0.1, ge=0, le=1)
    buckets: int = setting("shards of a split, each good for 8 MB of text; a hash says where a document falls", 16, ge=1, le=MOST_BUCKETS)
    seed: int = setting("seed of pairs and masks", 0, ge=0, lt=2**32)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_token_rate + self.random_token_rate > 1:
            rates = f"{self.mask_token_rate} + {self.random_token_rate}"
            raise SettingsError(f"shards.mask_token_rate + shards.random_token_rate: got {rates}, wanted at most 1")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The encoder's shape, under transformers' names."""

    section: ClassVar[str] = "model"
    num_hidden_layers: int = setting("transformer blocks", ge=1, le=1_000)
    hidden_size: int = setting("width of a token's vector", ge=1, le=65_536)
    num_attention_heads: int = setting("attention heads; they divide the hidden size", ge=1, le=65_536)
    intermediate_size: int = setting("width of the feed-forward layer", ge=1, le=262_144)
    hidden_dropout_prob: float = setting("dropout after each sublayer and on attention", ge=0, lt=1)
    max_position_embeddings: int = setting("longest input in tokens", ge=5, le=32767)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.num_attention_heads:
            wanted = f"a divisor of model.hidden_size, {self.hidden_size}"
            raise SettingsError(f"model.num_attention_heads: got {self.num_attention_heads}, wanted {wanted}")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """How the encoder is trained. Settings that change nothing in the finished run are recorded but not part of its key."""

    section: ClassVar[str] = "training"
    not_in_key: ClassVar[frozenset[str]] = frozenset(
        {"log_every", "checkpoint_every_steps", "checkpoint_every_seconds", "keep_checkpoints", "device"}
    )
    steps: int = setting("optimizer steps", ge=1, le=1_000_000_000)
    batch_size: int = setting("examples a step, over all devices", ge=1, le=4_194_304)
    learning_rate: float = setting("peak learning rate of Adam", gt=0)
    warmup_steps: int = setting("steps over which the learning rate rises to its peak", 0, ge=0, le=1_000_000_000)
    evaluate_every: int = setting("steps between evaluations on the held-out split; 0: only at the end", 200, ge=0, le=1_000_000_000)
    seed: int = setting("seed of initial weights, order and dropout", 0, ge=0, lt=2**32)
    log_every: int = setting("steps between lines on the terminal and writes of metrics", 5, ge=1, le=1_000_000_000)
    checkpoint_every_steps: int = setting("steps between checkpoints; 0: by seconds alone", 0, ge=0, le=1_000_000_000)
    checkpoint_every_seconds: float = setting("seconds between checkpoints; 0: by steps alone", 60.0, ge=0)
    keep_checkpoints: int = setting("newest checkpoints that are kept", 2, ge=1, le=1_000_000)
    device: str = setting("auto (a GPU where there is one), cpu or cuda", "auto", pattern="^(auto|cpu|cuda)$")
    precision: str = setting(
        "of matrix products: auto (bf16 where the device has it in hardware), fp32 or bf16", "auto", pattern="^(auto|fp32|bf16)$"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_steps > self.steps:
            raise SettingsError(f"training.warmup_steps: got {self.warmup_steps}, wanted at most training.steps, {self.steps}")

    def for_key(self) -> dict[str, Any]:
        """As of every stage, without `precision` while it is auto: then it is the device's, which is recorded."""
        return {name: value for name, value in super().for_key().items() if (name, value) != ("precision", "auto")}


@dataclass(frozen=True)
class Preset:
    """A named recipe: the settings of every stage."""

    name: str
    description: str
    vocabulary: VocabularySettings
    shards: ShardSettings
    model: ModelSettings
    training: TrainingSettings

    def __post_init__(self) -> None:
        if self.shards.max_length > self.model.max_position_embeddings:
            wanted = f"at most model.max_position_embeddings, {self.model.max_position_embeddings}"
            raise SettingsError(f"shards.max_length: got {self.shards.max_length}, wanted {wanted}")

    def override(self, *, vocabulary: object = None, shards: object = None, model: object = None, training: object = None) -> "Preset":
        """A copy with some settings replaced; None, for a section or a field, leaves the preset's value."""
        return dataclasses.replace(
            self,
            vocabulary=self.vocabulary.override(vocabulary),
            shards=self.shards.override(shards),
            model=self.model.override(model),
            training=self.training.override(training),
        )

    def as_dict(self) -> dict[str, Any]:
        """Every setting by value, ready for JSON."""
        return dataclasses.asdict(self)


def preset_names() -> list[str]:
    """The presets that come with the package, sorted."""
    files = (resources.files(__package__) / PRESETS).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """Read a preset by name.

    :raises SettingsError: no such preset, or its file holds an unknown or invalid setting.
    """
    if name not in preset_names():
        raise SettingsError(f"preset: got {name!r}, wanted one of {', '.join(preset_names())}")
    values = tomllib.loads((resources.files(__package__) / PRESETS / f"{name}.toml").read_text("utf-8"))
    sections: list[type[Settings]] = [VocabularySettings, ShardSettings, ModelSettings, TrainingSettings]
    names = ["description", *(kind.section for kind in sections)]
    for section in values:
        if section not in names:
            raise SettingsError(f"presets/{name}.toml: no such section {section!r}; a preset has {', '.join(names)}")
    read: dict[str, Any] = {kind.section: kind.read(values.get(kind.section, {})) for kind in sections}
    return Preset(name, values.get("description", ""), **read)


_S = TypeVar("_S", bound=Settings)


def _partial(kind: type[_S]) -> type[Any]:
    """The class of overrides of a settings class: the same fields and limits, each None as the preset says."""
    hints = get_type_hints(kind)
    fields = [(entry.name, hints[entry.name] | None, field(default=None, metadata=entry.metadata)) for entry in dataclasses.fields(kind)]
    name = kind.__name__.replace("Settings", "Overrides")
    namespace = {
        "__doc__": f"{kind.__doc__} Empty: as the preset says.",
        "__module__": __name__,
        "__pydantic_config__": {"extra": "forbid"},  # a misspelt setting is an error in Prefect's form too
    }
    return dataclasses.make_dataclass(name, fields, frozen=True, namespace=namespace)


if TYPE_CHECKING:

    class VocabularyOverrides: ...

    class ShardOverrides: ...

    class ModelOverrides: ...

    class TrainingOverrides: ...
else:
    VocabularyOverrides = _partial(VocabularySettings)
    ShardOverrides = _partial(ShardSettings)
    ModelOverrides = _partial(ModelSettings)
    TrainingOverrides = _partial(TrainingSettings)
