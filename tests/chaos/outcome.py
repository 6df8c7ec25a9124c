"""What no kill may change: files, figures of each step, one registered version."""

import json
from collections import Counter
from typing import Any

from mlflow import MlflowClient

from pipeline.files import file_digest

from .command import NAME, FaultError, Flow


def outcome(flow: Flow) -> dict[str, Any]:
    """All that kills may not change: digests of files, read anew, and the figures of each step."""
    read = {name: [json.loads(path.read_text("utf-8")) for path in flow.published(name)] for name in ("shards", "run")}
    files = {
        f"{name}/{path.parent.name}/{entry.name}": file_digest(str(entry))
        for name in ("corpus", "vocabulary", "bucket", "run", "encoder")
        for path in flow.published(name)
        for entry in path.parent.iterdir()
        if entry.suffix in (".tokens", ".json", ".parquet", ".safetensors") and entry.name not in ("manifest.json", "run.json")
    }
    [metrics] = flow.store.glob("run/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    return {
        "shards": {manifest["facts"]["split"]: manifest["facts"]["contents"] for manifest in read["shards"]},
        "files": files,
        "steps": [(row["step"], row["mlm_loss"], row["next_sentence_loss"]) for row in rows if row["kind"] == "train"],
        "held out": [row for row in rows if row["kind"] == "held_out"],
    }


def _lines(values: Any) -> set[str]:
    return set(map(repr, values.items() if isinstance(values, dict) else values))


def compare(disturbed: Flow, undisturbed: Flow) -> dict[str, Any]:
    """The outcome of both.

    :raises FaultError: they differ, or a step is missing or there twice.
    """
    ours, wanted = outcome(disturbed), outcome(undisturbed)
    for part in wanted:
        if ours[part] != wanted[part]:
            raise FaultError(f"{part} differ:\n{_lines(ours[part]) ^ _lines(wanted[part])}")
    steps = [step for step, *_ in ours["steps"]]
    if steps != list(range(1, len(steps) + 1)):
        raise FaultError(f"steps of the finished run: got {steps}, wanted each once, in order")
    return ours


def check_registry(flow: Flow, steps: int) -> tuple[list[int], Counter[str]]:
    """Exactly one version, complete, whose run has the whole curve.

    :returns: steps that stand more than once in the curve, and how many runs have which status.
    :raises FaultError: it is otherwise.
    """
    client = MlflowClient(f"sqlite:///{flow.store / 'mlflow.db'}")
    versions = client.search_model_versions(f"name = '{NAME}'")
    if len(versions) != 1:
        raise FaultError(f"versions of {NAME}: got {[version.version for version in versions]}, wanted exactly one")
    version = client.get_model_version(NAME, versions[0].version)
    champion = client.get_model_version_by_alias(NAME, "champion").version
    if champion != version.version or not version.description or version.tags.get("complete") != "true":
        raise FaultError(f"version {version.version} is not complete: champion {champion}, {version.tags}, {version.description!r}")
    seen = Counter(metric.step for metric in client.get_metric_history(version.run_id, "train/mlm_loss"))
    if set(seen) != set(range(1, steps + 1)):
        raise FaultError(f"the curve in MLflow lacks steps {sorted(set(range(1, steps + 1)) - set(seen))}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return sorted(step for step, count in seen.items() if count > 1), Counter(run.info.status for run in runs)
