"""The encoder folder's format: transformers' names for our parameters and sizes.

In and out: state dictionaries and `config.json`. The decision that matters: names in the folder are transformers', names
in the code are ours, and this file alone knows both. It needs torch alone, so that it can be shipped with an encoder.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .model.encoder import EncoderShape

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"

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
_LAYER_NAMES = {
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_QKV = ("query", "key", "value")


def to_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters under transformers' names; one weight of query, key and value becomes three."""
    named: dict[str, Tensor] = {}
    for name, value in state.items():
        module, _, kind = name.rpartition(".")
        if module in _NAMES:
            named[f"{_NAMES[module]}.{kind}"] = value
            continue
        number, _, rest = module.removeprefix("encoder.layers.").partition(".")
        layer = f"bert.encoder.layer.{number}"
        if rest == "attention.qkv":
            named |= {f"{layer}.attention.self.{part}.{kind}": piece for part, piece in zip(_QKV, value.chunk(3), strict=True)}
        else:
            named[f"{layer}.{_LAYER_NAMES[rest]}.{kind}"] = value
    return named


def from_transformers(named: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The inverse of `to_transformers`.

    :raises KeyError: a parameter is missing.
    """
    modules = dict(_NAMES)
    for number in range(layers):
        modules |= {f"encoder.layers.{number}.{ours}": f"bert.encoder.layer.{number}.{theirs}" for ours, theirs in _LAYER_NAMES.items()}
    state = {
        f"{ours}.{kind}": named[f"{theirs}.{kind}"]
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
        if not (kind == "bias" and ours.endswith("embedding"))
    }
    for number in range(layers):
        for kind in ("weight", "bias"):
            parts = [named[f"bert.encoder.layer.{number}.attention.self.{part}.{kind}"] for part in _QKV]
            state[f"encoder.layers.{number}.attention.qkv.{kind}"] = torch.cat(parts)
    return state


def config_of(shape: EncoderShape) -> dict[str, Any]:
    """`config.json`. transformers has no architecture without a norm after the embeddings, so `model_type` is our own."""
    return {
        "model_type": "bert-deck",
        "vocab_size": shape.vocab_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_attention_heads,
        "intermediate_size": shape.intermediate_size,
        "hidden_act": "relu",
        "hidden_dropout_prob": shape.hidden_dropout_prob,
        "attention_probs_dropout_prob": shape.attention_probs_dropout_prob,
        "max_position_embeddings": shape.max_position_embeddings,
        "type_vocab_size": shape.type_vocab_size,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }


def shape_of(config: Mapping[str, Any]) -> EncoderShape:
    """The sizes in a `config.json`.

    :raises KeyError: a size is missing.
    """
    sizes = {name: config[name] for name in EncoderShape.__dataclass_fields__ if name != "architecture"}
    return EncoderShape(architecture="deck", **sizes)
