"""A finished run -> an encoder folder.

In: a published run and its vocabulary. Out: `config.json` and `model.safetensors` under transformers' names, the
tokenizer's two files, and a manifest whose keys lead back to the corpus.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from .encoder_format import CONFIG, TOKENIZER_CONFIG, WEIGHTS, config_of, to_transformers
from .errors import TrainingError
from .files import read_file
from .model.encoder import EncoderShape
from .storage import Output, Recipe, Store
from .tensors import save_tensors
from .tokens import TOKENIZER, TokenTable

FORMAT = 1
STAGE = "encoder"


def find_encoder(store: Store, key: str) -> Output:
    """A published encoder, for a run that starts from it.

    :raises TrainingError: it is not in the store.
    """
    output = store.whole(STAGE, key, verify=True)
    if output is None:
        raise TrainingError(f"warm_start: encoder {key} is not whole in {store.root}; run what made it again, or start from random weights")
    return output


def export_encoder(store: Store, run: Output, vocabulary: Output, corpus: Output) -> Output:
    """Publish the encoder of a finished run, heads included."""
    settings = run.manifest["settings"]
    recipe = Recipe(STAGE, FORMAT, {}, {"run": run.key, "vocabulary": vocabulary.key})

    def build(folder: Path) -> dict[str, Any]:
        shape = EncoderShape(vocab_size=vocabulary.facts["size"], **settings["model"])
        with store.local(run) as source:
            save_tensors(folder / WEIGHTS, to_transformers(load_file(source / WEIGHTS), shape))
        (folder / TOKENIZER).write_bytes(read_file(vocabulary.file(TOKENIZER)))
        table = TokenTable.read(json.loads((folder / TOKENIZER).read_text("utf-8")))
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.max_position_embeddings,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **table.special_tokens,
        }
        for name, values in ((CONFIG, config_of(shape, table.pad_id)), (TOKENIZER_CONFIG, tokenizer_config)):
            (folder / name).write_text(json.dumps(values, indent=1) + "\n", "utf-8")
        return {
            "lineage": {"corpus": corpus.key, "vocabulary": vocabulary.key, **run.manifest["inputs"], "run": run.key},
            "run": {name: value for name, value in run.facts.items() if name != "parameters"},
            "parameters": run.facts["parameters"],
        }

    return store.make(recipe, build)
