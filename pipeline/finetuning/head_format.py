"""The folder of an encoder with a head: transformers' names for the heads' parameters, and what `config.json` says of a task.

In and out: a model, its task and the folder. The decision that matters: the folder is one that transformers loads as
BertForSequenceClassification or BertForQuestionAnswering where it knows the architecture; what it has no word for stands in
`config.json` under `finetuning`, which it passes over.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from ..encoder_format import CONFIG, WEIGHTS, config_of, from_transformers, shape_of, to_transformers
from ..errors import EncodingError
from ..model.encoder import EncoderShape
from ..model.finetuning import BertForClassification, BertForQuestionAnswering
from ..tokens import TOKENIZER, TokenTable

Model = BertForClassification | BertForQuestionAnswering

_SECTION = "finetuning"  # of config.json
_PRETRAINING = ("masked_lm", "next_sentence")  # heads that the model has no more
_HEADS = {"pooler": "bert.pooler.dense", "classifier": "classifier", "span": "qa_outputs"}


@dataclass(frozen=True)
class Head:
    """What a head does.

    :param labels: its classes, in the order of its logits; none: it finds answers.
    :param max_length: tokens of a row. :param doc_stride: tokens by which windows overlap.
    :param max_answer_length: most tokens of an answer. :param impossible: whether it was taught that there may be no answer.
    """

    task: str
    labels: tuple[str, ...]
    max_length: int
    doc_stride: int
    max_answer_length: int
    impossible: bool

    def model(self, shape: EncoderShape, dropout: float = 0.0) -> Model:
        """A model of random weights with this head."""
        return BertForClassification(shape, len(self.labels), dropout) if self.labels else BertForQuestionAnswering(shape)


def config_with_head(shape: EncoderShape, table: TokenTable, head: Head, dropout: float) -> dict[str, Any]:
    """`config.json`."""
    config = config_of(shape, table.pad_id)
    if "architectures" in config:
        config["architectures"] = ["BertForSequenceClassification" if head.labels else "BertForQuestionAnswering"]
    if head.labels:
        numbers = {label: number for number, label in enumerate(head.labels)}
        config |= {"id2label": {str(number): label for label, number in numbers.items()}, "label2id": numbers}
        config |= {"classifier_dropout": dropout, "problem_type": "single_label_classification"}
    return config | {_SECTION: {name: value for name, value in asdict(head).items() if name != "labels"}}


def named_weights(state: Mapping[str, Tensor], shape: EncoderShape) -> dict[str, Tensor]:
    """A model's parameters under transformers' names."""
    heads = {f"{_HEADS[name.partition('.')[0]]}.{name.partition('.')[2]}": value for name, value in state.items() if _of_head(name)}
    return to_transformers(state, shape, _PRETRAINING) | heads


def _of_head(name: str) -> bool:
    return name.partition(".")[0] in _HEADS


def load_with_head(folder: Path) -> tuple[Model, Head, Tokenizer, TokenTable]:
    """Load a folder that this project wrote, in evaluation.

    :raises EncodingError: it is another's, or not whole.
    """
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise EncodingError(f"{folder}: no {name} here; wanted the folder of a fine-tuned encoder")
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    if _SECTION not in config:
        raise EncodingError(f"{folder}/{CONFIG}: has no section {_SECTION}; wanted a fine-tuned encoder, as `pretrain-bert finetune` makes")
    try:
        labels: Sequence[str] = [config["id2label"][str(number)] for number in range(len(config.get("id2label", ())))]
        head = Head(labels=tuple(labels), **config[_SECTION])
        shape = shape_of(config)
        model = head.model(shape)
        weights = load_file(folder / WEIGHTS)
        own = [name for name in model.state_dict() if _of_head(name)]
        heads = {name: weights[f"{_HEADS[name.partition('.')[0]]}.{name.partition('.')[2]}"] for name in own}
        model.load_state_dict(from_transformers(weights, shape, _PRETRAINING) | heads)
    except Exception as error:  # safetensors raises its own
        raise EncodingError(f"{folder}: not a fine-tuned encoder of this project ({type(error).__name__}: {error})") from error
    return model.eval(), head, *open_tokenizer(folder)


def open_tokenizer(folder: Path) -> tuple[Tokenizer, TokenTable]:
    """The tokenizer of a folder, which takes text that spells a special token as text.

    :raises EncodingError: it is none that an encoder can have.
    """
    text = (folder / TOKENIZER).read_text("utf-8")
    try:
        tokenizer, table = Tokenizer.from_str(text), TokenTable.read(json.loads(text))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise EncodingError(f"{folder}/{TOKENIZER}: {error}; wanted the tokenizer of an encoder folder") from error
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # the file cannot say so
    return tokenizer, table
