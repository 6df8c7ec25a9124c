"""Runs the flow `pretrain-bert` in this process, for the command line."""

from typing import Any

from prefect.settings import PREFECT_API_URL, temporary_settings

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

from .pretrain_bert import Result, pretrain_bert


def run(parameters: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Result:
    """Run the flow with settings by section.

    :raises PipelineError: as the stage that failed said it.
    """
    # Empty means no server; Prefect's event worker takes an empty address for one, so it has to be none.
    with temporary_settings({PREFECT_API_URL: PREFECT_API_URL.value() or None}):
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
