"""Runs the flows `pretrain-bert` and `finetune-encoder` in this process, for the command line."""

from contextlib import AbstractContextManager
from typing import Any

from prefect.settings import PREFECT_API_URL, temporary_settings

from pipeline.finetuning.settings import FinetuningOverrides
from pipeline.settings import (
    BuilderOverrides,
    CorpusOverrides,
    GateOverrides,
    ModelOverrides,
    ShardOverrides,
    TextOverrides,
    TrainingOverrides,
    VocabularyOverrides,
)

from .finetune_encoder import finetune_encoder
from .pretrain_bert import Result, pretrain_bert


def run(parameters: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Result:
    """Run the flow with settings by section.

    :raises PipelineError: as the stage that failed said it.
    """
    with _server_or_none():
        result: Result = pretrain_bert(
            **parameters,
            corpus_settings=CorpusOverrides(**sections["corpus"]),
            text_settings=TextOverrides(**sections["text"]),
            vocabulary_settings=VocabularyOverrides(**sections["vocabulary"]),
            shard_settings=ShardOverrides(**sections["shards"]),
            builder_settings=BuilderOverrides(**sections["builders"]),
            model_settings=ModelOverrides(**sections["model"]),
            training_settings=TrainingOverrides(**sections["training"]),
            gate_settings=GateOverrides(**sections["gate"]),
        )
    return result


def finetune(parameters: dict[str, Any], settings: dict[str, Any]) -> Result:
    """Run the flow `finetune-encoder`; raises as `run` does."""
    with _server_or_none():
        result: Result = finetune_encoder(**parameters, finetuning_settings=FinetuningOverrides(**settings))
    return result


def _server_or_none() -> AbstractContextManager[object]:
    """Empty means no server; Prefect's event worker takes an empty address for one, so it has to be none."""
    return temporary_settings({PREFECT_API_URL: PREFECT_API_URL.value() or None})
