"""The encoder folder's format: transformers' names for our parameters and sizes.

In and out: state dictionaries and `config.json`. The decision that matters: names in the folder are transformers', names
in the code are ours, and this file alone knows both. It needs torch alone, so that it can be shipped with an encoder.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from .model.architecture import ARCHITECTURES
from .model.encoder import EncoderShape

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
HEADS = ("masked_lm", "next_sentence.pooler", "next_sentence.classifier")
"""What a checkpoint may lack, each whole or not at all."""

_NAMES = {
    "encoder.token_embedding": "bert.embeddings.word_embeddings",
    "encoder.token_type_embedding": "bert.embeddings.token_type_embeddings",
    "encoder.position_embedding": "bert.embeddings.position_embeddings",
    "masked_lm.transform": "cls.predictions.transform.dense",
    "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "masked_lm.decoder": "cls.predictions.decoder",
    "next_sentence.pooler": "bert.pooler.dense",
    "next_sentence.classifier": "cls.seq_relationship",
}
_NORM_NAMES = {"encoder.embedding_norm": "bert.embeddings.LayerNorm"}
_LAYER_NAMES = {
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_QKV = ("query", "key", "value")
# transformers has no architecture without a norm after the embeddings, so the deck's `model_type` is our own.
_MODEL_TYPES = {"bert": "bert", "bert-deck": "deck"}
_FIXED = ("hidden_act", "layer_norm_eps", "tie_word_embeddings")  # by the architecture
_NEVER = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}  # another value is another model


def to_transformers(state: Mapping[str, Tensor], shape: EncoderShape, without: Collection[str] = ()) -> dict[str, Tensor]:
    """Our parameters under transformers' names; one weight of query, key and value becomes three.

    :param without: heads that the state lacks.
    """
    named = {theirs: state[ours] for ours, theirs in _parameters(shape, without).items()}
    for ours, theirs in _attention_inputs(shape).items():
        named |= dict(zip(theirs, state[ours].chunk(3), strict=True))
    return named


def from_transformers(named: Mapping[str, Tensor], shape: EncoderShape, without: Collection[str] = ()) -> dict[str, Tensor]:
    """The inverse of `to_transformers`.

    :raises KeyError: a parameter is missing.
    """
    state = {ours: named[theirs] for ours, theirs in _parameters(shape, without).items()}
    return state | {ours: torch.cat([named[part] for part in theirs]) for ours, theirs in _attention_inputs(shape).items()}


def names_of_head(shape: EncoderShape, head: str) -> set[str]:
    """transformers' names of a head's parameters."""
    return {theirs for ours, theirs in _parameters(shape).items() if ours.startswith(f"{head}.")}


def _parameters(shape: EncoderShape, without: Collection[str] = ()) -> dict[str, str]:
    """Our name and transformers' of each parameter but those of query, key and value.

    With tied weights the decoder's is the token embedding, and transformers keeps its bias one level up.
    """
    modules = _NAMES | (_NORM_NAMES if shape.design.normed_embeddings else {})
    for number in range(shape.num_hidden_layers):
        modules |= {f"encoder.layers.{number}.{ours}": f"bert.encoder.layer.{number}.{theirs}" for ours, theirs in _LAYER_NAMES.items()}
    names = {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
        if not (kind == "bias" and ours.endswith("embedding"))
    }
    if shape.design.tie_word_embeddings:
        del names["masked_lm.decoder.weight"]
        names["masked_lm.decoder.bias"] = "cls.predictions.bias"
    return {ours: theirs for ours, theirs in names.items() if not ours.startswith(tuple(f"{head}." for head in without))}


def _attention_inputs(shape: EncoderShape) -> dict[str, list[str]]:
    """Our name of each parameter of query, key and value, and transformers' three."""
    return {
        f"encoder.layers.{number}.attention.qkv.{kind}": [f"bert.encoder.layer.{number}.attention.self.{part}.{kind}" for part in _QKV]
        for number in range(shape.num_hidden_layers)
        for kind in ("weight", "bias")
    }


def config_of(shape: EncoderShape, pad_token_id: int) -> dict[str, Any]:
    """`config.json`."""
    model_type = next(name for name, architecture in _MODEL_TYPES.items() if architecture == shape.architecture)
    design = shape.design
    return {
        "model_type": model_type,
        **({"architectures": ["BertForPreTraining"]} if model_type == "bert" else {}),
        "vocab_size": shape.vocab_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_attention_heads,
        "intermediate_size": shape.intermediate_size,
        "hidden_act": design.hidden_act,
        "hidden_dropout_prob": shape.hidden_dropout_prob,
        "attention_probs_dropout_prob": shape.attention_probs_dropout_prob,
        "max_position_embeddings": shape.max_position_embeddings,
        "type_vocab_size": shape.type_vocab_size,
        "layer_norm_eps": design.layer_norm_eps,
        **({"initializer_range": design.initializer_range} if design.initializer_range else {}),
        "tie_word_embeddings": design.tie_word_embeddings,
        "pad_token_id": pad_token_id,
    }


def shape_of(config: Mapping[str, Any]) -> EncoderShape:
    """The architecture and sizes in a `config.json`.

    :raises KeyError: a size is missing. :raises ValueError: the model is none of ours; names each difference.
    """
    if (found := config.get("model_type")) not in _MODEL_TYPES:
        raise ValueError(f"model_type {found!r}, wanted {' or '.join(map(repr, _MODEL_TYPES))}")
    architecture = _MODEL_TYPES[found]
    fixed = {name: getattr(ARCHITECTURES[architecture], name) for name in _FIXED} | _NEVER
    if differing := [f"{name} {config[name]!r}, wanted {value!r}" for name, value in fixed.items() if config.get(name, value) != value]:
        raise ValueError("; ".join(differing))
    sizes = {name: config[name] for name in EncoderShape.__dataclass_fields__ if name != "architecture"}
    for name, value in sizes.items():
        share = name.endswith("_prob")
        sound = (
            isinstance(value, int | float if share else int) and not isinstance(value, bool) and (0 <= value < 1 if share else value > 0)
        )
        if not sound:
            raise ValueError(f"{name} {value!r}, wanted a number {'from 0 to below 1' if share else 'from 1 on'}")
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise ValueError(f"hidden_size {sizes['hidden_size']}, wanted a multiple of num_attention_heads {sizes['num_attention_heads']}")
    return EncoderShape(architecture=architecture, **sizes)
