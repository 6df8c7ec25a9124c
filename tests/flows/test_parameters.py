"""The form of the flow `pretrain-bert`, and `prefect.yaml` against what Prefect reads of it."""

import dataclasses
from typing import Any

import pytest
import yaml
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel, WorkPoolConfig
from prefect.exceptions import ParameterTypeError
from prefect.utilities.schema_tools.validation import is_valid

from flows import automations
from flows.finetune_encoder import finetune_encoder
from flows.pretrain_bert import pretrain_bert
from flows.pretrain_encoder import pretrain_encoder
from flows.watch_corpus import CHANGED, watch_corpus
from pipeline.section import Settings
from pipeline.settings import (
    BuilderSettings,
    CorpusSettings,
    GateSettings,
    ModelSettings,
    ShardSettings,
    TextSettings,
    TrainingSettings,
    VocabularySettings,
    load_preset,
    preset_names,
)

from .conftest import ROOT

SECTIONS: dict[str, type[Settings]] = {
    "corpus_settings": CorpusSettings,
    "text_settings": TextSettings,
    "vocabulary_settings": VocabularySettings,
    "shard_settings": ShardSettings,
    "builder_settings": BuilderSettings,
    "model_settings": ModelSettings,
    "training_settings": TrainingSettings,
    "gate_settings": GateSettings,
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """What the page's form is made of and the server checks against."""
    return pretrain_bert.parameters.model_dump()


@pytest.fixture(scope="module")
def prefect_yaml() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))
    return loaded


@pytest.mark.parametrize("flow", [pretrain_bert, pretrain_encoder, watch_corpus, finetune_encoder], ids=lambda flow: flow.name)
def test_every_parameter_is_described(flow: Any) -> None:
    schema = flow.parameters.model_dump()
    for name, entry in schema["properties"].items():
        described = [entry, *entry.get("anyOf", [])]
        described += [schema["definitions"][part["$ref"].rsplit("/", 1)[-1]] for part in described if "$ref" in part]
        assert any(part.get("description") for part in described), name


@pytest.mark.parametrize(("parameter", "kind"), SECTIONS.items())
def test_every_setting_is_described_with_its_limits(schema: dict[str, Any], parameter: str, kind: type[Settings]) -> None:
    reference = schema["properties"][parameter]["anyOf"][0]["$ref"]
    fields = schema["definitions"][reference.rsplit("/", 1)[-1]]["properties"]
    settings = dataclasses.fields(kind)
    assert set(fields) == {entry.name for entry in settings}
    words = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum", "pattern": "pattern"}
    for entry in settings:
        name = entry.name
        assert fields[name]["description"] == entry.metadata["description"]
        if entry.type in ("bool", bool):
            assert fields[name]["anyOf"] == [{"type": "boolean"}, {"type": "null"}], "a switch that is left alone would say no"
            continue
        assert "default" not in fields[name] and "anyOf" not in fields[name], "one input, empty: as the preset says"
        for limit, word in words.items():
            if limit in entry.metadata and (limit != "pattern" or "enum" not in fields[name]):
                assert fields[name][word] == entry.metadata[limit], name


def test_few_values_are_a_list_to_choose_from(schema: dict[str, Any]) -> None:
    training, text = (schema["definitions"][name]["properties"] for name in ("TrainingOverrides", "TextOverrides"))
    assert training["schedule"]["enum"] == ["constant", "linear", "cosine", "wsd"]
    assert text["sentences"]["enum"] == ["prose", "line", "deck"]
    assert "enum" not in text["language"]
    assert schema["definitions"]["TrainingOverrides"]["title"] == "training settings"


def test_the_presets_are_the_choices(schema: dict[str, Any]) -> None:
    entry = schema["properties"]["preset"]
    assert sorted(entry["enum"]) == preset_names()


GOOD: list[dict[str, Any]] = [
    {},
    {"preset": "tiny", "corpus": "somewhere", "steps": 1, "seed": 0, "model_name": "bert-mine"},
    {"training_settings": {"learning_rate": 3e-4, "steps": None}, "shard_settings": {"masking_rate": 1}},
    {"preset": "mini", "corpus": "s3://b/*.jsonl.gz", "corpus_settings": {"text_column": "body"}, "text_settings": {"sentences": "line"}},
    {"warm_start": "models:/bert-tiny/3"},
    {"warm_start": "s3://bucket/bert-base"},
    {"warm_start": "sftp://me@host/bert-base", "corpus": "sftp://me@host/texts/*.txt"},
]
BAD: list[dict[str, Any]] = [
    {"preset": "huge"},
    {"steps": 0},
    {"steps": "many"},
    {"seed": -1},
    {"seed": 2**32},
    {"corpus": 5},
    {"training_settings": {"learning_rate": 0}},
    {"training_settings": {"learning_rat": 1e-4}},
    {"training_settings": {"device": "tpu"}},
    {"shard_settings": {"masking_rate": 1.5}},
    {"model_settings": {"num_hidden_layers": 0}},
    {"corpus_settings": {"form": "pdf"}},
    {"vocabulary_settings": {"lowercase": "maybe"}},
    {"vocabulary_settings": {"kind": "file", "file": "s3://key:HIDDEN@bucket/tokenizer.json"}},
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_good_parameters_pass_on_the_server_and_in_the_flow(schema: dict[str, Any], values: dict[str, Any]) -> None:
    assert is_valid(values, schema)
    pretrain_bert.validate_parameters(values)


@pytest.mark.parametrize("values", BAD, ids=str)
def test_bad_parameters_are_refused_on_the_server_and_in_the_flow(schema: dict[str, Any], values: dict[str, Any]) -> None:
    assert not is_valid(values, schema)
    with pytest.raises(ParameterTypeError):
        pretrain_bert.validate_parameters(values)


@pytest.mark.parametrize("flow", [pretrain_bert, watch_corpus], ids=lambda flow: flow.name)
@pytest.mark.parametrize("parameter", ["corpus", "warm_start"])
def test_an_address_with_credentials_is_refused_by_the_server_before_it_records_it(flow: Any, parameter: str) -> None:
    for address in ("s3://key:HIDDEN@bucket/a", "https://host/a?signature=HIDDEN"):
        assert not is_valid({parameter: address}, flow.parameters.model_dump())


def test_the_default_parameters_are_good(schema: dict[str, Any]) -> None:
    """Prefect does not check a default."""
    defaults = {name: entry["default"] for name, entry in schema["properties"].items()}
    pretrain_bert.validate_parameters(defaults)
    load_preset(defaults["preset"])


def test_prefect_yaml_has_no_key_that_prefect_ignores(prefect_yaml: dict[str, Any]) -> None:
    known = {field.alias or name for name, field in PrefectYamlModel.model_fields.items()}
    assert set(prefect_yaml) <= known
    for deployment in prefect_yaml["deployments"]:
        assert set(deployment) <= set(DeploymentConfig.model_fields)
        assert set(deployment["work_pool"]) <= set(WorkPoolConfig.model_fields)
        assert set(deployment["work_pool"]["job_variables"]) <= {"env", "command", "labels", "name", "stream_output", "working_dir"}
    PrefectYamlModel.model_validate(prefect_yaml)


def test_deployments_give_good_parameters_and_never_fall_back(prefect_yaml: dict[str, Any]) -> None:
    flows = dict.fromkeys(preset_names(), pretrain_bert) | {"gpu": pretrain_encoder, "cpu": finetune_encoder, "nightly": watch_corpus}
    assert {deployment["name"] for deployment in prefect_yaml["deployments"]} == set(flows)
    for deployment in prefect_yaml["deployments"]:
        flow = flows[deployment["name"]]
        schema = flow.parameters.model_dump()
        if flow in (pretrain_encoder, finetune_encoder):  # whoever runs it gives them
            assert "parameters" not in deployment
            continue
        assert is_valid(deployment["parameters"], schema)
        assert deployment["parameters"]["preset"] == (deployment["name"] if flow is pretrain_bert else "tiny")
        assert set(deployment["parameters"]) <= set(schema["properties"])
        assert not deployment["parameters"].get("sample_without_network", False)
        assert deployment["entrypoint"] == f"{flow.fn.__module__}.{flow.fn.__name__}"


def test_a_changed_corpus_triggers_the_deployment_with_parameters_that_it_has(prefect_yaml: dict[str, Any], schema: dict[str, Any]) -> None:
    *presets, _, _, nightly = prefect_yaml["deployments"]
    assert nightly["parameters"]["preset"] in {deployment["name"] for deployment in presets}
    for deployment in presets:
        (trigger,) = deployment["triggers"]
        assert (trigger["expect"], trigger["match"]["bert.preset"]) == ([CHANGED], deployment["name"])
        assert set(trigger["parameters"]) <= set(schema["properties"])
    (schedule,) = nightly["schedules"]
    assert schedule["active"] is True


def test_the_server_looks_after_every_flow_that_is_deployed(prefect_yaml: dict[str, Any]) -> None:
    modules = {deployment["entrypoint"].rpartition(".")[0] for deployment in prefect_yaml["deployments"]}
    flows = [pretrain_bert, pretrain_encoder, watch_corpus, finetune_encoder]
    assert modules == {flow.fn.__module__ for flow in flows}
    assert sorted(automations.FLOWS) == sorted(flow.name for flow in flows)


def test_every_preset_trains_where_a_deployment_is(prefect_yaml: dict[str, Any]) -> None:
    (gpu,) = (deployment for deployment in prefect_yaml["deployments"] if deployment["name"] == "gpu")
    assert gpu["work_pool"]["name"] == "gpu"
    wanted = {name: load_preset(name).training.deployment for name in preset_names()}
    assert wanted == dict.fromkeys(preset_names(), "") | dict.fromkeys(("base", "large"), f"{pretrain_encoder.name}/{gpu['name']}")


def test_the_pull_step_names_no_folder(prefect_yaml: dict[str, Any]) -> None:
    assert prefect_yaml["pull"] == [{"prefect.deployments.steps.set_working_directory": {"directory": "{{ $BERT_HOME }}"}}]
