"""Each kind of corpus from its address to a registered encoder, through local, HTTP and S3 addresses.

The same documents in three forms are one corpus, so all but the first of them find the stages' outputs; what is proved is
that each form and each kind of address is read to the end of the flow.
"""

import gzip
import json
import lzma
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient
from moto.server import ThreadedMotoServer

from tests.conftest import sentences
from tests.pipeline.data.loopback import serve, whole

from .conftest import ROOT, Stack

FORMS = {"wikitext": "train.txt", "text": "train.txt.xz", "json-lines": "train.jsonl.gz", "parquet": "train.parquet"}
WHERE = {"wikitext": "S3", "text": "HTTP", "json-lines": "local", "parquet": "S3"}
SECRET = "HIDDENbyTheEnvironment"
RUN = """
import json, os, sys
import fsspec
from pipeline.addresses import without_credentials
from flows.pretrain_bert import pretrain_bert
given = json.loads(sys.argv[1])
fsspec.filesystem("memory").pipe("/kept/train.jsonl", given["memory"].encode())
results = {}
for name, address in given["addresses"].items():
    os.environ["BERT_CORPUS"] = address
    result = pretrain_bert(corpus=without_credentials(address), preset="mini", model_name=given["model"], **given["settings"])
    results[name] = {"version": result["version"], "encoder": result["encoder"], "note": result["note"], "samples": result["samples"]}
print(json.dumps(results))
"""
SETTINGS: dict[str, Any] = {
    "steps": 2,
    "text_settings": {"sentences": "line"},
    "vocabulary_settings": {"size": 200},
    "shard_settings": {"buckets": 2, "held_out_buckets": 1, "dupe_factor": 1},
    "model_settings": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32},
    "training_settings": {"batch_size": 8, "device": "cpu"},
}


def documents() -> list[list[str]]:
    """Documents of four sentences."""
    rng = random.Random(5)
    return [[sentences(1, rng) for _ in range(4)] for _ in range(120)]


def files() -> dict[str, bytes]:
    """The documents in each form."""
    found = documents()
    rows = [{"text": "\n".join(lines)} for lines in found]
    parquet = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    articles = "".join(f" = Article {number} = \n \n" + "".join(f" {line} \n" for line in lines) for number, lines in enumerate(found))
    return {
        "wikitext": articles.encode(),
        "text": lzma.compress("\n\n".join("\n".join(lines) for lines in found).encode()),
        "json-lines": gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()),
        "parquet": parquet.getvalue().to_pybytes(),
    }


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def results(stack: Stack, s3: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the flow gave for each form and kind of address."""
    folder, addresses = tmp_path_factory.mktemp("corpora"), dict[str, str]()
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": s3, "AWS_DEFAULT_REGION": "us-east-1"}
    bucket = fsspec.filesystem("s3", key="k", secret=SECRET, endpoint_url=s3)
    bucket.mkdir("corpora")
    with serve() as web:
        for form, contents in files().items():
            name = FORMS[form]
            (folder / form).mkdir()
            (folder / form / name).write_bytes(contents)
            web.answers[f"/{form}/{name}"] = whole(contents)
            bucket.pipe(f"corpora/{form}/{name}", contents)
            web_address = web.url(f"/{form}/{name}?signature={SECRET}").replace("//", f"//me:{SECRET}@")
            known = {"local": str(folder / form), "HTTP": web_address, "S3": f"s3://corpora/{form}/*"}
            addresses[form] = known[WHERE[form]]
        addresses["memory"] = "memory://kept"
        memory = "".join(json.dumps({"text": "\n".join(lines)}) + "\n" for lines in documents())
        given = {"addresses": addresses, "memory": memory, "settings": SETTINGS, "model": "bert-of-each-form"}
        done = subprocess.run(
            [sys.executable, "-c", RUN, json.dumps(given)],
            cwd=ROOT,
            env=stack.environment | keys,
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_form_and_address_ends_in_a_registered_encoder(results: dict[str, dict[str, Any]]) -> None:
    assert len(results) == len(FORMS) + 1
    for result in results.values():
        assert result["version"].startswith("models:/bert-of-each-form/")
        assert [sample["shape"][0] for sample in result["samples"]] == [1, 1]


def test_the_same_documents_are_one_encoder_whatever_their_form_and_address(results: dict[str, dict[str, Any]]) -> None:
    with_titles = results["wikitext"]["encoder"]
    without = {result["encoder"] for name, result in results.items() if name != "wikitext"}
    assert len(without) == 1
    assert with_titles not in without, "titles make WikiText's another text"


def test_nothing_that_is_recorded_holds_the_credentials_of_corpus_and_store(stack: Stack, results: dict[str, dict[str, Any]]) -> None:
    """Prefect's parameters, logs and artifacts, MLflow's parameters and tags, manifests: by their servers, and in every file."""
    runs = stack.ask("flow_runs/filter", {})
    said = [entry["message"] for entry in stack.ask("logs/filter", {"limit": 200})]
    shown = stack.ask("artifacts/filter", {})
    client = MlflowClient(stack.mlflow)
    versions = client.search_model_versions("name = 'bert-of-each-form'")
    trained = [client.get_run(version.run_id).data for version in versions]
    recorded = json.dumps([runs, said, shown]) + repr(versions) + repr(trained)
    assert "http://127.0.0.1" in recorded and "s3://corpora" in recorded
    files = [path for path in stack.folder.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert any(b'"source": "http://127.0.0.1' in path.read_bytes() for path in files if path.name == "manifest.json")
    assert any(b"s3://corpora/" in path.read_bytes() for path in files)
    assert SECRET not in recorded and not [path for path in files if SECRET.encode() in path.read_bytes()]
