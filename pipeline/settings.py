"""Settings of every stage, and the presets that fill them.

In: a preset's TOML file, overrides, dictionaries from JSON. Out: frozen dataclasses that have been checked. The decision
that matters: a preset states its recipe; what is the same in every recipe has its default here, in one place.
"""

import dataclasses
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

from .addresses import PLAIN, refuse_credentials
from .errors import SettingsError
from .section import Settings, partial, setting

PRESETS = "presets"
MOST_BUCKETS = 16_384  # each is an output with a manifest of its own, and an entry in that of its set


@dataclass(frozen=True, kw_only=True)
class CorpusSettings(Settings):
    """How a corpus's files are read. Its key is the digest of the text that they give, so none of these is in it."""

    section: ClassVar[str] = "corpus"
    form: str = setting(
        "of the files: auto (by their names and first line), wikitext, text (a blank line between documents), json_lines or parquet",
        "auto",
        pattern="^(auto|wikitext|text|json_lines|parquet)$",
    )
    text_column: str = setting("column of JSON Lines and Parquet that holds a document's text", "text", pattern=".+")
    title_column: str = setting("column of JSON Lines and Parquet that holds its title; empty: none", "")


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """What a document and a sentence are."""

    section: ClassVar[str] = "text"
    documents: str = setting(
        "article (a title and its paragraphs, or what stands between blank lines) or paragraph (the deck's: each with ` . ` in it)",
        pattern="^(article|paragraph)$",
    )
    sentences: str = setting(
        "prose (split by the language's rules), line (a line is a sentence) or deck (a sentence ends at ` . `)",
        pattern="^(prose|line|deck)$",
    )
    language: str = setting(
        "of prose, as an ISO 639 code; one that sentencex does not know is split as English", "en", pattern="^[a-z]{2,3}(-[a-zA-Z]+)*$"
    )

    def for_key(self) -> dict[str, Any]:
        """Without the language of what is no prose."""
        return {name: value for name, value in super().for_key().items() if name != "language" or self.sentences == "prose"}


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """How text becomes ids."""

    section: ClassVar[str] = "vocabulary"
    kind: str = setting("words, wordpiece, or file: a tokenizer.json that is brought along", pattern="^(words|wordpiece|file)$")
    min_count: int = setting("of words: those seen fewer times than this are unknown", 5, ge=1, le=2_147_483_648)
    size: int = setting("of wordpiece: tokens, special ones included", 30_522, ge=100, le=1_000_000)
    megabytes: int = setting("of wordpiece: most text to train it on, documents picked by their digests", 200, ge=1, le=1_000_000)
    lowercase: bool = setting("of wordpiece: upper and lower case are one, and accents are dropped", True)
    file: str = setting("of file: the address of the tokenizer.json", "", pattern=PLAIN)

    def __post_init__(self) -> None:
        if isinstance(self.file, str):
            refuse_credentials("vocabulary.file", self.file)  # before a limit that is not kept repeats them
        super().__post_init__()
        if (self.kind == "file") != bool(self.file):
            raise SettingsError(
                f"vocabulary.file: got {self.file!r} with vocabulary.kind {self.kind}, wanted an address with kind file alone"
            )

    def for_key(self) -> dict[str, Any]:
        """What the kind heeds; of a file its contents count, not its address."""
        heeded = {"words": ("min_count",), "wordpiece": ("size", "megabytes", "lowercase"), "file": ()}[self.kind]
        return {name: value for name, value in super().for_key().items() if name in ("kind", *heeded)}


@dataclass(frozen=True, kw_only=True)
class ShardSettings(Settings):
    """How sentence pairs and masks are made (Devlin et al. 2018, arXiv 1810.04805; the deck's variant)."""

    section: ClassVar[str] = "shards"
    pairs: str = setting(
        "neighbours (the deck's: each two sentences that follow one another, longer ones dropped), or segments filled to the length: "
        "next_sentence, sentence_order (Lan et al. 2019, arXiv 1909.11942) or none (one segment and no pair task)",
        pattern="^(neighbours|next_sentence|sentence_order|none)$",
    )
    max_length: int = setting("longest example in tokens, specials included", ge=5, le=32767)
    max_predictions_per_seq: int = setting("most predictions in a row", ge=1, le=32767)
    long_max_length: int = setting("longest example of training's last part, training.long_ratio; 0: there is none", 0, ge=0, le=32767)
    long_max_predictions_per_seq: int = setting("most predictions in a row of that part", 0, ge=0, le=32767)
    short_seq_prob: float = setting("share of segments' rows that are filled to a random shorter length", 0.1, ge=0, le=1)
    dupe_factor: int = setting("how many times each document is gone through, with other pairs and masks each time", 1, ge=1, le=1_000)
    masking: str = setting(
        "static (in the shards) or dynamic (drawn anew each epoch, while training)", "static", pattern="^(static|dynamic)$"
    )
    masking_rate: float = setting("share of a row's tokens to predict", gt=0, le=1)
    whole_word: bool = setting("mask all pieces of a word or none", False)
    mask_token_rate: float = setting("share of predicted tokens replaced by the mask token", 0.8, ge=0, le=1)
    random_token_rate: float = setting("share of predicted tokens replaced by a random word; the rest stay as they are", 0.1, ge=0, le=1)
    buckets: int = setting("shards of train, each good for 8 MB of text; a hash says where a document falls", 16, ge=1, le=MOST_BUCKETS)
    held_out_buckets: int = setting("shards of the held-out split; negatives are drawn within one", 16, ge=1, le=MOST_BUCKETS)
    seed: int = setting("seed of pairs and masks", 0, ge=0, lt=2**32)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_token_rate + self.random_token_rate > 1:
            rates = f"{self.mask_token_rate} + {self.random_token_rate}"
            raise SettingsError(f"shards.mask_token_rate + shards.random_token_rate: got {rates}, wanted at most 1")
        if bool(self.long_max_length) != bool(self.long_max_predictions_per_seq) or 0 < self.long_max_length < 5:
            got = f"{self.long_max_length} and {self.long_max_predictions_per_seq}"
            raise SettingsError(f"shards.long_max_length and shards.long_max_predictions_per_seq: got {got}, wanted both (5 or more) or 0")

    def of_long_part(self) -> "ShardSettings":
        """The settings of the shards of training's last part."""
        length, predictions = self.long_max_length, self.long_max_predictions_per_seq
        return dataclasses.replace(
            self, max_length=length, max_predictions_per_seq=predictions, long_max_length=0, long_max_predictions_per_seq=0
        )

    def for_key(self) -> dict[str, Any]:
        """Without the lengths of the long part, whose shards are a set of their own."""
        return {name: value for name, value in super().for_key().items() if not name.startswith("long_")}


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The encoder's shape, under transformers' names."""

    section: ClassVar[str] = "model"
    architecture: str = setting(
        "bert (as published: norm and dropout after the embeddings, GELU, tied decoder) or deck (the deck's variant)",
        pattern="^(bert|deck)$",
    )
    num_hidden_layers: int = setting("transformer blocks", ge=1, le=1_000)
    hidden_size: int = setting("width of a token's vector", ge=1, le=65_536)
    num_attention_heads: int = setting("attention heads; they divide the hidden size", ge=1, le=65_536)
    intermediate_size: int = setting("width of the feed-forward layer", ge=1, le=262_144)
    hidden_dropout_prob: float = setting("dropout after each sublayer", ge=0, lt=1)
    attention_probs_dropout_prob: float = setting("dropout on attention", ge=0, lt=1)
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
        {
            "log_every",
            "checkpoint_every_steps",
            "checkpoint_every_seconds",
            "keep_checkpoints",
            "device",
            "micro_batch_size",
            "data_parallel",
            "nodes",
            "rendezvous",
            "cache_gigabytes",
            "deployment",
        }
    )
    steps: int = setting("optimizer steps", ge=1, le=1_000_000_000)
    long_ratio: float = setting("share of them, the last ones, that train on rows of shards.long_max_length", 0.0, ge=0, le=1)
    batch_size: int = setting("examples a step, over all devices", ge=1, le=4_194_304)
    micro_batch_size: int = setting("examples that a device takes at a time, their gradients summed; 0: all", 0, ge=0, le=4_194_304)
    optimizer: str = setting(
        "adam (Kingma and Ba 2014), adamw (Loshchilov and Hutter 2017) or lamb (You et al. 2019)", "adam", pattern="^(adam|adamw|lamb)$"
    )
    learning_rate: float = setting("peak learning rate", gt=0)
    warmup_ratio: float = setting("share of the steps over which the learning rate rises to its peak", 0.0, ge=0, le=1)
    schedule: str = setting(
        "of the learning rate after the warm-up: constant, linear or cosine to 0, or wsd (constant, then linear to 0 over decay_ratio)",
        "constant",
        pattern="^(constant|linear|cosine|wsd)$",
    )
    decay_ratio: float = setting("of wsd: share of the steps, the last ones, over which the learning rate falls to 0", 0.0, ge=0, le=1)
    weight_decay: float = setting("of adamw and lamb, on weights but not on norms and biases", 0.0, ge=0, lt=1)
    adam_epsilon: float = setting("what is added to the root of the second moment", 1e-8, gt=0, lt=1)
    max_gradient_norm: float = setting("gradients of a larger norm are scaled down to it; 0: never", 0.0, ge=0)
    evaluate_every: int = setting("steps between evaluations on the held-out split; 0: only at the end", 200, ge=0, le=1_000_000_000)
    seed: int = setting("seed of initial weights, order and dropout", 0, ge=0, lt=2**32)
    log_every: int = setting("steps between lines on the terminal and writes of metrics", 5, ge=1, le=1_000_000_000)
    checkpoint_every_steps: int = setting("steps between checkpoints; 0: by seconds alone", 0, ge=0, le=1_000_000_000)
    checkpoint_every_seconds: float = setting("seconds between checkpoints; 0: by steps alone", 60.0, ge=0)
    keep_checkpoints: int = setting("newest checkpoints that are kept", 2, ge=1, le=1_000_000)
    device: str = setting("auto (a GPU where there is one), cpu or cuda", "auto", pattern="^(auto|cpu|cuda)$")
    shuffle_buffer_rows: int = setting(
        "most rows that are shuffled together and held in memory; of more, whole buckets come in turn", 1_000_000, ge=1, le=2**31
    )
    cache_gigabytes: float = setting("most disk that a machine keeps for shards of a store that is not its own; 0: none", 20.0, ge=0)
    data_parallel: str = setting(
        "how several devices share a model: ddp (each has all of it) or fsdp (each has a part of weights and optimizer)",
        "ddp",
        pattern="^(ddp|fsdp)$",
    )
    nodes: int = setting("machines that train together, each with all its devices", 1, ge=1, le=10_000)
    rendezvous: str = setting("of several machines: HOST:PORT of the first, which the others reach", "", pattern=r"^([^:\s]+:\d{1,5})?$")
    deployment: str = setting(
        "deployment that a run of a deployment hands its training to, such as pretrain-encoder/gpu; empty: it trains in place",
        "",
        pattern="^([^/]+/[^/]+)?$",
    )
    precision: str = setting(
        "of matrix products: auto (bf16 where the device has it in hardware), fp32 or bf16", "auto", pattern="^(auto|fp32|bf16)$"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.schedule == "wsd") != bool(self.decay_ratio) or self.warmup_ratio + self.decay_ratio > 1:
            wanted = f"more than 0 and at most {1 - self.warmup_ratio:g}, what the warm-up leaves" if self.schedule == "wsd" else "0"
            raise SettingsError(f"training.decay_ratio: got {self.decay_ratio} with schedule {self.schedule}, wanted {wanted}")
        if (self.nodes > 1) != bool(self.rendezvous):
            got = f"{self.rendezvous!r} with training.nodes {self.nodes}"
            raise SettingsError(f"training.rendezvous: got {got}, wanted HOST:PORT with several machines alone")
        if self.rendezvous and not 0 < int(self.rendezvous.rpartition(":")[2]) < 2**16:
            raise SettingsError(f"training.rendezvous: got {self.rendezvous!r}, wanted a port of 1 to 65535")
        if self.data_parallel == "fsdp" and self.optimizer == "lamb":  # whose norms are those of whole weights
            raise SettingsError("training.data_parallel: got fsdp with optimizer lamb, wanted ddp, or adam or adamw")
        if self.weight_decay and self.optimizer == "adam":
            raise SettingsError(f"training.weight_decay: got {self.weight_decay} with optimizer adam, wanted 0, or adamw or lamb")

    @property
    def warmup_steps(self) -> int:
        """Steps over which the learning rate rises."""
        return round(self.warmup_ratio * self.steps)

    @property
    def decay_steps(self) -> int:
        """Steps over which it falls in the end, with schedule wsd."""
        return round(self.decay_ratio * self.steps)

    @property
    def long_steps(self) -> int:
        """The last steps, which train on long rows."""
        return round(self.long_ratio * self.steps)

    def for_key(self) -> dict[str, Any]:
        """As of every stage, without `precision` while it is auto: then it is the device's, which is recorded."""
        return {name: value for name, value in super().for_key().items() if (name, value) != ("precision", "auto")}


@dataclass(frozen=True, kw_only=True)
class BuilderSettings(Settings):
    """Who builds the shards of a large corpus. What is built is the same, so none of these is in a key."""

    section: ClassVar[str] = "builders"
    runner: str = setting(
        "threads or processes of this machine, or dask (a cluster of this machine, or that of an address; extra [dask])",
        "threads",
        pattern="^(threads|processes|dask)$",
    )
    workers: int = setting(
        "how many build at a time; 0: one a core of this machine (threads: at most 8), or all of the address", 0, ge=0, le=100_000
    )
    address: str = setting("of dask: its scheduler, such as tcp://HOST:8786; empty: a cluster of this machine for the while", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address and self.runner != "dask":
            raise SettingsError(f"builders.address: got one with builders.runner {self.runner}, wanted it with dask alone")
        if "@" in self.address:  # which is recorded with the run, so it is not repeated here either
            raise SettingsError("builders.address: got one with a user or a password, wanted PROTOCOL://HOST:PORT")


@dataclass(frozen=True, kw_only=True)
class GateSettings(Settings):
    """When a new version becomes the champion of its name. It changes no output, so none of these is in a key."""

    section: ClassVar[str] = "gate"
    margin: float = setting("how much worse than the champion it may be, as a share of the champion's figure", 0.01, ge=0, le=1)
    examples: int = setting("most held-out examples that both are evaluated on", 4_096, ge=1, le=1_000_000_000)
    sentences: int = setting("most held-out sentences for bits per character, where the vocabularies differ", 200, ge=1, le=1_000_000)


SECTIONS: dict[str, type[Settings]] = {
    kind.section: kind
    for kind in (
        CorpusSettings,
        TextSettings,
        VocabularySettings,
        ShardSettings,
        BuilderSettings,
        ModelSettings,
        TrainingSettings,
        GateSettings,
    )
}


@dataclass(frozen=True)
class Preset:
    """A named recipe: the settings of every stage."""

    name: str
    description: str
    corpus: CorpusSettings
    text: TextSettings
    vocabulary: VocabularySettings
    shards: ShardSettings
    builders: BuilderSettings
    model: ModelSettings
    training: TrainingSettings
    gate: GateSettings

    def __post_init__(self) -> None:
        for name in ("max_length", "long_max_length"):
            if (length := getattr(self.shards, name)) > self.model.max_position_embeddings:
                wanted = f"at most model.max_position_embeddings, {self.model.max_position_embeddings}"
                raise SettingsError(f"shards.{name}: got {length}, wanted {wanted}")
        if bool(self.shards.long_max_length) != bool(self.training.long_ratio):
            got = f"{self.shards.long_max_length} with training.long_ratio {self.training.long_ratio}"
            raise SettingsError(f"shards.long_max_length: got {got}, wanted both or neither")

    def override(self, **sections: object) -> "Preset":
        """A copy with some settings replaced; None, for a section or a field, leaves the preset's value.

        :param sections: by name, each an instance of the partial class, a dictionary, or None.
        """
        return dataclasses.replace(self, **{name: getattr(self, name).override(values) for name, values in sections.items()})

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
    names = ["description", *SECTIONS]
    for section in values:
        if section not in names:
            raise SettingsError(f"presets/{name}.toml: no such section {section!r}; a preset has {', '.join(names)}")
    read: dict[str, Any] = {section: kind.read(values.get(section, {})) for section, kind in SECTIONS.items()}
    return Preset(name, values.get("description", ""), **read)


def recipe_of(preset: str, steps: int | None, seed: int | None, **sections: object) -> Preset:
    """A preset with what a run changes; what a section says wins over `steps` and `seed`, and None is as the preset says.

    :param seed: of pairs and masks, and of training. :param sections: as `Preset.override` takes them.
    :raises SettingsError: no such preset, or a setting is unknown or invalid.
    """
    return load_preset(preset).override(shards={"seed": seed}, training={"seed": seed, "steps": steps}).override(**sections)


if TYPE_CHECKING:

    class CorpusOverrides: ...

    class TextOverrides: ...

    class VocabularyOverrides: ...

    class ShardOverrides: ...

    class BuilderOverrides: ...

    class GateOverrides: ...

    class ModelOverrides: ...

    class TrainingOverrides: ...
else:
    CorpusOverrides = partial(CorpusSettings)
    TextOverrides = partial(TextSettings)
    VocabularyOverrides = partial(VocabularySettings)
    ShardOverrides = partial(ShardSettings)
    BuilderOverrides = partial(BuilderSettings)
    GateOverrides = partial(GateSettings)
    ModelOverrides = partial(ModelSettings)
    TrainingOverrides = partial(TrainingSettings)
