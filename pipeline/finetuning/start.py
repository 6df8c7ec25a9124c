"""The encoder that a head is put on.

In: a folder with an encoder, from the registry or anyone's. Out: an output of the store, and a model whose encoder has its
weights. The decision that matters: an encoder of this project keeps the key that its manifest names, also in a store that has
lost it, so that a head leads to its encoder; any other folder is kept by the digest of its files, as stage `pretrained`.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..encoder_format import CONFIG, HEADS, TOKENIZER_CONFIG, WEIGHTS, from_transformers, names_of_head, shape_of
from ..errors import DamagedOutputError, TrainingError
from ..export import STAGE as ENCODER
from ..files import file_digest
from ..lineage import read_manifest
from ..model.encoder import EncoderShape
from ..starting import STAGE as PRETRAINED
from ..starting import open_pretrained, write_checkpoint
from ..storage import Output, Recipe, Store
from ..tokens import TOKENIZER
from .head_format import Head, Model, open_tokenizer
from .settings import FinetuningSettings

FORMAT = 3  # of stage pretrained: 1 has no tokenizer, 2 its files as they came
_FILES = (CONFIG, WEIGHTS, TOKENIZER)
_POOLER = "next_sentence.pooler"


def publish_start(store: Store, folder: Path) -> Output:
    """An encoder's folder as an output of the store.

    :raises TrainingError: it is none. :raises DamagedOutputError: it is not what its manifest says.
    """
    for name in _FILES:
        if not (folder / name).is_file():
            raise TrainingError(f"encoder: {folder}: no {name} here; wanted an encoder folder")
    head = read_manifest(folder)
    if head and head["stage"] == ENCODER:
        return store.whole(ENCODER, head["key"]) or _restore(store, folder, head)
    return _publish_other(store, folder)


def _publish_other(store: Store, folder: Path) -> Output:
    """Check and publish an encoder of nobody's, or of transformers'."""
    checkpoint = open_pretrained(str(folder), "encoder")
    table = open_tokenizer(folder)[1]
    if len(table) > checkpoint.shape.vocab_size:
        got = f"{len(table)} tokens in its {TOKENIZER}, vocab_size {checkpoint.shape.vocab_size} in its {CONFIG}"
        raise TrainingError(f"encoder: {folder}: {got}; wanted the tokenizer that it was trained with")
    names = [name for name in (TOKENIZER, TOKENIZER_CONFIG) if (folder / name).is_file()]
    digests = {**checkpoint.digests, **{name: file_digest(str(folder / name)) for name in names}}

    def build(staging: Path) -> dict[str, Any]:
        for name in names:
            shutil.copyfile(folder / name, staging / name)
        return {"name": folder.name, **write_checkpoint(checkpoint, table, staging)}

    return store.make(Recipe(PRETRAINED, FORMAT, digests, {}), build, recorded={"source": str(folder)}, verify=True)


def _restore(store: Store, folder: Path, head: Mapping[str, Any]) -> Output:
    """Put an encoder that came from elsewhere under its own key."""
    for entry in head["files"]:
        if Path(entry["name"]).name != entry["name"]:
            raise DamagedOutputError(f"encoder: {folder}: its manifest lists {entry['name']!r}; wanted names of files in it")
        if (found := file_digest(str(folder / entry["name"]))) != entry["sha256"]:
            raise DamagedOutputError(f"encoder: {folder / entry['name']}: sha256 {found}, wanted {entry['sha256']}; fetch it again")
    with store.lease(ENCODER, head["key"]), store.staging() as staging:
        if known := store.reuse(ENCODER, head["key"], verify=True):
            return known
        for entry in head["files"]:
            shutil.copyfile(folder / entry["name"], staging / entry["name"])
        rest = {name: value for name, value in head.items() if name != "files"}
        return store.publish_at(store.address(ENCODER, head["key"]), staging, rest)


def start_model(folder: Path, head: Head, settings: FinetuningSettings, *, random_encoder: bool) -> tuple[Model, EncoderShape]:
    """A model with a new head on an encoder's weights, or on random ones of its shape.

    :raises TrainingError: the folder is no encoder's, or takes no rows as long as the settings want.
    """
    try:
        shape = shape_of(json.loads((folder / CONFIG).read_text("utf-8")))
    except (KeyError, ValueError, AttributeError) as error:
        raise TrainingError(f"encoder: {folder}/{CONFIG}: {error}; wanted an encoder's") from error
    if settings.max_length > shape.max_position_embeddings:
        wanted = f"at most {shape.max_position_embeddings}, what the encoder takes"
        raise TrainingError(f"finetuning.max_length: got {settings.max_length}, wanted {wanted}")
    shape = replace(shape, hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout)
    model = head.model(shape, settings.dropout)
    if not random_encoder:
        model.load_state_dict(model.state_dict() | _pretrained(folder, shape, {*model.state_dict()}))
    return model, shape


def _pretrained(folder: Path, shape: EncoderShape, wanted: set[str]) -> dict[str, Tensor]:
    """The encoder's weights, and the pooler's where there is one."""
    try:
        named = load_file(folder / WEIGHTS)
        missing = [head for head in HEADS if not names_of_head(shape, head) <= named.keys()]
        state = {name: value.to(torch.float32) for name, value in from_transformers(named, shape, missing).items()}
    except Exception as error:  # safetensors raises its own
        raise TrainingError(f"encoder: {folder}/{WEIGHTS}: {type(error).__name__}: {error}; wanted the weights of its {CONFIG}") from error
    renamed = {name.replace(_POOLER, "pooler"): value for name, value in state.items()}
    return {name: value for name, value in renamed.items() if name in wanted}
