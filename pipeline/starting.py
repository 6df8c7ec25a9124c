"""A BERT checkpoint that transformers wrote -> a published start for a run, of pretraining or fine-tuning.

In: the address of a folder with `config.json`, `model.safetensors` and `tokenizer.json`. Out: an output of the stage
`pretrained` in the encoder folder's format. The decision that matters: ids, sizes and arithmetic have to be the run's own,
and each difference is named; only heads may be missing, and those start at random.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from .addresses import without_credentials
from .encoder_format import CONFIG, HEADS, WEIGHTS, config_of, from_transformers, names_of_head, shape_of, to_transformers
from .errors import TrainingError, some
from .files import file_digest, file_system, read_file
from .model.encoder import EncoderShape
from .model.pretraining import BertForPretraining
from .settings import Preset
from .storage import Output, Recipe, Store, digest
from .tensors import save_tensors
from .tokens import TOKENIZER, TokenTable

FORMAT = 1
STAGE = "pretrained"
_OTHER_WEIGHTS = {
    "model.safetensors.index.json": "the weights are in several files; save them in one, save_pretrained(folder, max_shard_size='1TB')",
    "pytorch_model.bin": "the weights are pickled; save them again, save_pretrained(folder, safe_serialization=True)",
}
_DECODER = "cls.predictions.decoder.weight"  # of tied weights, where a file has them twice
_OLD_KINDS = {"gamma": "weight", "beta": "bias"}  # of norms in checkpoints that came from TensorFlow
_SHOWN = 3  # parameters that a message names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder whose `config.json` is a BERT's; its weights are not read yet.

    :param tokenizer: the JSON of its `tokenizer.json`. :param digests: of `config.json` and of the weights.
    :param setting: that named it, with which messages begin.
    """

    address: str
    shape: EncoderShape
    tokenizer: Mapping[str, Any]
    digests: Mapping[str, str]
    setting: str

    @property
    def shown(self) -> str:
        return _shown(self.setting, self.address)

    def read(self) -> tuple[dict[str, Tensor], list[str]]:
        """The weights in fp32 under our names, and the heads that it lacks.

        :raises TrainingError: they are not those of its `config.json`.
        """
        shown = f"{self.shown}/{WEIGHTS}"
        data = _bytes(self.setting, self.address, WEIGHTS)
        if data is None or digest(data) != self.digests["weights"]:
            raise TrainingError(f"{shown}: changed while it was read; start again once it is written")
        try:
            named = _named_as_now(load(data))
        except SafetensorError as error:
            raise TrainingError(f"{shown}: not a safetensors file ({error}); save the model again") from error
        missing = self._check(named, shown)
        return {name: value.float() for name, value in from_transformers(named, self.shape, missing).items()}, missing

    def _check(self, named: Mapping[str, Tensor], shown: str) -> list[str]:
        """See that all weights are there and sound; names the heads that are not, and what is left over."""
        with torch.device("meta"):
            described = to_transformers(BertForPretraining(self.shape).state_dict(), self.shape)
        heads = {head: names_of_head(self.shape, head) for head in HEADS}
        missing = [head for head, names in heads.items() if not names & named.keys()]
        wanted = described.keys() - {name for head in missing for name in heads[head]}
        if absent := sorted(wanted - named.keys()):
            raise TrainingError(f"{shown}: lacks {some(absent, _SHOWN)}; wanted the weights that its {CONFIG} describes")
        for name in sorted(wanted):
            if named[name].shape != described[name].shape:
                sizes = f"{name} {tuple(named[name].shape)}, wanted {tuple(described[name].shape)} as its {CONFIG} says"
                raise TrainingError(f"{shown}: {sizes}; save the model again")
            if not named[name].is_floating_point():
                kind = str(named[name].dtype).removeprefix("torch.")
                raise TrainingError(f"{shown}: {name} holds {kind}, wanted floating-point numbers; take a checkpoint that is not quantized")
            if not named[name].isfinite().all():
                raise TrainingError(f"{shown}: {name} has numbers that are not finite; take another checkpoint")
        embedding = named["bert.embeddings.word_embeddings.weight"]
        if not torch.equal(named.get(_DECODER, embedding), embedding):
            raise TrainingError(f"{shown}: the decoder's weights are not those of the token embedding; wanted tied ones")
        if extra := sorted(named.keys() - wanted - {_DECODER}):
            logger.info("%s: ignored %s", shown, some(extra, _SHOWN))
        if missing:
            logger.info("%s: has no %s; they start at random", shown, ", ".join(missing))
        return missing


def open_pretrained(address: str, setting: str = "warm_start") -> Checkpoint:
    """Look at a checkpoint folder at any fsspec address.

    :param setting: that names it.
    :raises TrainingError: a file is missing or unreadable, or the model is not a BERT that this project can express.
    """
    address = address.rstrip("/")
    shown = _shown(setting, address)
    config = _bytes(setting, address, CONFIG)
    if config is None:
        raise TrainingError(f"{shown}: no {CONFIG} here; wanted a folder that transformers' save_pretrained wrote")
    tokenizer = _bytes(setting, address, TOKENIZER)
    if tokenizer is None:
        todo = "save the tokenizer there too, AutoTokenizer.from_pretrained(…).save_pretrained(folder)"
        raise TrainingError(f"{shown}: no {TOKENIZER} here; {todo}")
    try:
        values = json.loads(config)
        if not isinstance(values, dict) or values.get("model_type") != "bert":
            found = values.get("model_type") if isinstance(values, dict) else values
            raise ValueError(f"model_type {found!r}, wanted 'bert'")
        shape = shape_of(values)
    except KeyError as error:
        raise TrainingError(f"{shown}/{CONFIG}: {error} is missing; wanted a BERT's sizes") from error
    except ValueError as error:
        raise TrainingError(f"{shown}/{CONFIG}: {error}; take another checkpoint, or start from random weights") from error
    try:
        weights = file_digest(f"{address}/{WEIGHTS}")
    except FileNotFoundError:
        fs, path = file_system(address)
        why = (text for name, text in _OTHER_WEIGHTS.items() if fs.exists(f"{path}/{name}"))
        raise TrainingError(f"{shown}: no {WEIGHTS} here; {next(why, 'save the model there')}") from None
    except OSError as error:
        raise TrainingError(f"{shown}/{WEIGHTS}: cannot be read ({error}); check the address") from error
    try:
        return Checkpoint(address, shape, json.loads(tokenizer), {"config": digest(config), "weights": weights}, setting)
    except ValueError as error:
        raise TrainingError(f"{shown}/{TOKENIZER}: not JSON ({error}); save the tokenizer again") from error


def publish_pretrained(store: Store, address: str, vocabulary: Output, preset: Preset) -> Output:
    """Check a checkpoint against a run's vocabulary and model, and publish it for `plan_run`.

    :param vocabulary: made with kind file from the checkpoint's own `tokenizer.json`, or equal to that.
    :raises TrainingError: it does not fit; the message names both values of each difference.
    """
    checkpoint = open_pretrained(address)
    _check_model(checkpoint, vocabulary, preset)
    table = _check_tokenizer(store, checkpoint, vocabulary)

    recipe = Recipe(STAGE, FORMAT, checkpoint.digests, {"vocabulary": vocabulary.key})
    recorded = {"source": without_credentials(checkpoint.address)}
    return store.make(recipe, lambda folder: write_checkpoint(checkpoint, table, folder), recorded=recorded, verify=True)


def write_checkpoint(checkpoint: Checkpoint, table: TokenTable, folder: Path) -> dict[str, Any]:
    """Write its weights and sizes in the encoder folder's format. Returns what it lacks and how many parameters it has.

    :raises TrainingError: the weights are not those of its `config.json`.
    """
    state, missing = checkpoint.read()
    save_tensors(folder / WEIGHTS, to_transformers(state, checkpoint.shape, missing))
    (folder / CONFIG).write_text(json.dumps(config_of(checkpoint.shape, table.pad_id), indent=1) + "\n", "utf-8")
    return {"missing_heads": missing, "parameters": sum(value.numel() for value in state.values())}


def _check_model(checkpoint: Checkpoint, vocabulary: Output, preset: Preset) -> None:
    """See that the sizes are the run's; dropout may differ."""
    wanted = EncoderShape(vocab_size=vocabulary.facts["size"], **preset.model.as_dict())
    if sizes := checkpoint.shape.differences(wanted):
        raise TrainingError(f"{checkpoint.shown} has {sizes}; give the model and the vocabulary these values, or take another checkpoint")


def _check_tokenizer(store: Store, checkpoint: Checkpoint, vocabulary: Output) -> TokenTable:
    """See that an id means the same in the checkpoint and in the vocabulary."""
    mine: Mapping[str, Any] = json.loads(store.read(vocabulary.file(TOKENIZER)) or b"{}")
    table, theirs = TokenTable.read(mine), checkpoint.tokenizer
    todo = f"set vocabulary.kind=file and vocabulary.file={without_credentials(checkpoint.address)}/{TOKENIZER}"
    try:
        found = TokenTable.read(theirs)
    except ValueError as error:
        raise TrainingError(f"{checkpoint.shown}/{TOKENIZER}: not a BERT tokenizer ({error}); take another checkpoint") from error
    if found != table:
        pairs = zip(found.tokens, table.tokens, strict=False)
        sizes = f"{len(found)} tokens of {theirs['model'].get('type')} (wanted {len(table)} of {mine['model'].get('type')})"
        first = next((f"id {number} is {a!r} (wanted {b!r})" for number, (a, b) in enumerate(pairs) if a != b), sizes)
        raise TrainingError(f"{checkpoint.shown}/{TOKENIZER} is not vocabulary {vocabulary.key}: {first}; {todo}")
    for part in ("normalizer", "pre_tokenizer"):
        if mine.get(part) != theirs.get(part):
            differing = f"{part} {theirs.get(part)} (wanted {mine.get(part)})"
            raise TrainingError(f"{checkpoint.shown}/{TOKENIZER} is not vocabulary {vocabulary.key}: {differing}; {todo}")
    return table


def _named_as_now(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same under the names of a whole pretraining model of today's transformers."""
    bare = not any(name.startswith("bert.") for name in named)  # of the encoder alone
    found: dict[str, Tensor] = {}
    for name, value in named.items():
        module, _, kind = name.rpartition(".")
        prefix = "bert." if bare and name.startswith(("embeddings.", "encoder.", "pooler.")) else ""
        found[f"{prefix}{module}.{_OLD_KINDS.get(kind, kind)}"] = value
    if (bias := found.pop("cls.predictions.decoder.bias", None)) is not None:
        found.setdefault("cls.predictions.bias", bias)
    return found


def _shown(setting: str, address: str) -> str:
    """What messages begin with: the setting, and the address without credentials."""
    return f"{setting}: {without_credentials(address)}"


def _bytes(setting: str, address: str, name: str) -> bytes | None:
    """A file's contents, None where there is no such file."""
    try:
        return read_file(f"{address}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ImportError, ValueError) as error:
        raise TrainingError(f"{_shown(setting, address)}/{name}: cannot be read ({error}); check the address") from error
