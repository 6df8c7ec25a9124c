"""Two machines: a worker that prepares the data, and one that trains, which share nothing but a store and the servers.

Each has a home with its own copy of the project, its own Prefect home and environment; that which trains has an interpreter of
its own too. The store is a real S3 server on loopback, MLflow's server hands out its files itself, and a CPU stands in for the GPU.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from mlflow.tracking import MlflowClient
from moto.server import ThreadedMotoServer
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import automations, handover, processes, services
from flows.places import QUIET
from pipeline.errors import SettingsError

from .conftest import ROOT, Stack, environment, free_port, until, write_corpus

pytestmark = pytest.mark.timeout(1200)  # servers, workers and five flow runs' processes, on a machine that is busy otherwise
STALE_SECONDS = 40  # a heartbeat comes each 30 seconds, which is the least that Prefect takes
PARAMETERS: dict[str, Any] = {
    "steps": 150,
    "vocabulary_settings": {"min_count": 1},
    "shard_settings": {"buckets": 2, "held_out_buckets": 2},
    "model_settings": {"intermediate_size": 32, "max_position_embeddings": 64},
}
TRAINING: dict[str, Any] = {
    "batch_size": 16,
    "device": "cpu",
    "log_every": 1,
    "checkpoint_every_steps": 10,
    "deployment": "pretrain-encoder/gpu",
}


@dataclass(frozen=True)
class Machine:
    """A worker in a home of its own."""

    home: Path
    environment: dict[str, str]
    command: list[str]

    def start(self) -> processes.Process:
        with (self.home / "worker.log").open("ab") as log:
            child = subprocess.Popen(
                self.command, cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        found = processes.find(child.pid)
        assert found is not None
        return found

    def training(self, worker: processes.Process) -> set[processes.Process]:
        """Its processes that train."""
        return {entry for entry in processes.descendants([worker]) if b"pipeline.training" in command_line(entry)}


def command_line(process: processes.Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill(worker: processes.Process) -> None:
    """As a machine dies: nobody says goodbye."""
    for process in processes.descendants([worker]):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def copy_project(home: Path) -> Path:
    for package in ("flows", "pipeline"):
        shutil.copytree(ROOT / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    return home


def interpreter(home: Path) -> str:
    """An interpreter of the home's own, which finds the home's project and what is installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], check=True)
    (packages,) = (home / "venv" / "lib").glob("python3*/site-packages")
    installed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "project.pth").write_text("\n".join([str(home), *installed]), "utf-8")
    return str(home / "venv" / "bin" / "python")


@dataclass(frozen=True)
class Site:
    """Servers and machines."""

    stack: Stack
    cpu: Machine
    gpu: Machine
    s3: Any
    workers: list[processes.Process]

    def start_worker(self, machine: Machine) -> processes.Process:
        self.workers.append(machine.start())
        return self.workers[-1]

    def start(self, **changed: Any) -> str:
        """Run pretrain-bert/tiny, its training for the GPU machine. Returns the flow run's id."""
        training = TRAINING | changed.pop("training", {})
        return self.stack.start(PARAMETERS | changed | {"training_settings": training})

    def children(self, parent: str) -> list[dict[str, Any]]:
        """The flow runs that train for a flow run, oldest first."""
        theirs = {"flow_runs": {"parent_flow_run_id": {"any_": [parent]}}, "sort": "EXPECTED_START_TIME_ASC"}
        return list(self.stack.ask("flow_runs/filter", theirs))

    def checkpoints(self) -> list[str]:
        found = self.s3.list_objects_v2(Bucket="bert").get("Contents", [])
        return [entry["Key"] for entry in found if "/checkpoints/" in entry["Key"] and entry["Key"].endswith("manifest.json")]

    def metrics(self, parent: str) -> list[int]:
        """Steps that MLflow has of the run that a flow run trains."""
        tags = self.children(parent)[0]["parameters"]["tags"]
        client = MlflowClient(self.stack.mlflow)
        found = client.search_runs(["1"], f"tags.run_key = '{tags['run_key']}'")
        return [entry.step for run in found for entry in client.get_metric_history(run.info.run_id, "train/mlm_loss")]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, s3: str) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    prefect, mlflow = free_port(), free_port()
    api, tracking = f"http://127.0.0.1:{prefect}/api", f"http://127.0.0.1:{mlflow}"
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": s3}
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
    client.create_bucket(Bucket="bert")
    clients = QUIET | {"PREFECT_API_URL": api, "MLFLOW_TRACKING_URI": tracking}

    def machine(pool: str, python: str, *more: str, **variables: str) -> Machine:
        home = folder / pool
        own = {"PREFECT_HOME": str(home / "prefect"), "BERT_HOME": str(home), "BERT_STORE": "s3://bert/store"}
        own |= {"PREFECT_WORKER_QUERY_SECONDS": "1", "OMP_NUM_THREADS": "1"}
        command = [python, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", *more]
        return Machine(home, environment(**(clients | own | keys | variables)), command)

    def server(name: str, module: str, port: int, ready: str, *words: str, **variables: str) -> services.Service:
        command = [sys.executable, "-m", *module.split(), "--host", "127.0.0.1", "--port", str(port), *words]
        return services.Service(name, command, QUIET | variables, lambda: services.answers(ready), folder, port=port)

    files = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "mlflow")]
    servers = [
        server("prefect", "prefect server start", prefect, f"{api}/health", PREFECT_HOME=str(folder / "server")),
        server(
            "mlflow", "mlflow server", mlflow, f"{tracking}/health", "--workers", "1", *files, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"
        ),
    ]
    cpu_home, gpu_home = (copy_project(folder / pool) for pool in ("cpu", "gpu"))
    cpu = machine("cpu", sys.executable, PYTHONPATH=str(cpu_home))
    gpu = machine("gpu", interpreter(gpu_home), "--limit", "1")
    gpu.environment.pop("PYTHONPATH", None)
    deployer = environment(**clients, PREFECT_HOME=str(folder / "client"))
    made = Site(Stack(folder, api, tracking, deployer), cpu, gpu, client, [])
    try:
        for service in servers:
            service.start()
        for service in servers:
            service.wait()
        for pool in ("cpu", "gpu"):
            made.stack.ask("work_pools/", {"name": pool, "type": "process"})
        made.start_worker(cpu)
        deploy = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "-n", "tiny", "-n", "gpu"]
        done = subprocess.run(deploy, cwd=ROOT, env=deployer, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        with temporary_settings({PREFECT_API_URL: api}):
            assert automations.bring(automations.stale_runs(STALE_SECONDS)) == "made"
        yield made
    finally:
        for log in folder.glob("*/worker.log"):
            print(log.parent.name, log.read_text("utf-8")[-4000:])  # shown where a test fails
        for process in made.workers:
            kill(process)
        for service in servers:
            services.end(service.state)


@dataclass(frozen=True)
class Story:
    """Two runs whose training is handed over at once, while the GPU machine dies under the first and the second is cancelled.

    :param first: the flow run whose training began first; `second` waited for it.
    :param live_steps: that MLflow had of the first while it trained. :param trainer: how its training was started.
    """

    first: str
    second: str
    live_steps: list[int]
    trainer: bytes


@pytest.fixture(scope="module")
def story(site: Site, tmp_path_factory: pytest.TempPathFactory, text: Callable[[int, int], str]) -> Story:
    corpus = str(write_corpus(tmp_path_factory.mktemp("corpora") / "far-birds", text, train=100, valid=20))
    stack = site.stack
    both = [site.start(corpus=corpus, training={"seed": seed}) for seed in (1, 2)]
    until(lambda: any("none is online" in line for line in stack.said(both[0])), "the first says that no worker is there")
    worker = site.start_worker(site.gpu)
    until(lambda: all(site.children(run) for run in both), "both hand over")
    trains = until(lambda: [run for run in both if site.children(run)[0]["state"]["type"] == "RUNNING"], "one trains")
    first, second = trains[0], next(run for run in both if run not in trains)
    until(site.checkpoints, "a checkpoint")
    live = until(lambda: site.metrics(first), "live metrics")
    assert stack.state(site.children(first)[0]["id"])["type"] == "RUNNING"
    (trainer,) = map(command_line, site.gpu.training(worker))
    until(lambda: any("at 'bert-tiny-far-birds" in line for line in stack.said(second)), "the second says at what the worker is")
    kill(worker)
    assert stack.state(site.children(first)[0]["id"])["type"] == "RUNNING", "nobody is left to say otherwise"

    worker = site.start_worker(site.gpu)
    until(lambda: any("pairs/s" in line for line in stack.said(site.children(second)[0]["id"])), "the second trains")
    family = processes.descendants([worker]) - {worker}
    stack.ask(f"flow_runs/{second}/set_state", {"state": {"type": "CANCELLING"}, "force": False})  # as the page does
    until(lambda: not family & processes.running().keys(), "the training of the second ends")

    for run in (second, first):
        until(lambda run=run: stack.state(run)["type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}, "an end")
    return Story(first, second, live, trainer)


def states(site: Site, run: str) -> list[str]:
    """Of a flow run and those that trained for it, oldest first."""
    return [site.stack.state(run)["type"], *(child["state"]["type"] for child in site.children(run))]


def test_one_machine_prepares_and_registers_and_the_other_trains(site: Site, story: Story) -> None:
    assert states(site, story.first) == ["COMPLETED", "CRASHED", "COMPLETED"]
    assert story.trainer.startswith(f"{site.gpu.home}/venv/".encode()), "by its own interpreter"
    assert list(site.gpu.home.glob("artifacts/work/*/metrics.jsonl"))
    assert not list(site.cpu.home.glob("artifacts/work/*"))
    version = MlflowClient(site.stack.mlflow).get_model_version_by_alias("bert-tiny-far-birds", "champion")
    child = site.children(story.first)[0]
    assert version.tags["run_key"] == child["parameters"]["tags"]["run_key"]
    assert child["name"] == f"bert-tiny-far-birds, plan {child['parameters']['plan']}"


def test_a_killed_machine_loses_what_its_last_checkpoint_lacks(site: Site, story: Story) -> None:
    assert any("crashed: The run's heartbeats stopped" in line for line in site.stack.said(story.first)), site.stack.said(story.first)
    again = site.stack.said(site.children(story.first)[1]["id"])
    assert any("going on from the checkpoint" in line for line in again), again
    assert story.live_steps, "while the first child trained"
    assert site.metrics(story.first) == list(range(1, PARAMETERS["steps"] + 1)), "the curve goes on, each step once"


def test_each_page_shows_how_its_run_went(site: Site, story: Story) -> None:
    def shown(run: str) -> dict[str, Any]:
        return {entry["key"]: entry for entry in site.stack.ask("artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})}

    trained = shown(site.children(story.first)[1]["id"])
    assert set(trained) == {"training-progress", "loss-curve"}
    steps = PARAMETERS["steps"]
    assert trained["training-progress"]["description"].startswith(f"step {steps} of {steps}: ")
    assert {"loss-curve", "report", "examples-train", "what-was-built"} <= set(shown(story.first))


def test_waiting_is_said(site: Site, story: Story) -> None:
    said = [line for run in (story.first, story.second) for line in site.stack.said(run)]  # the worker came once one had said so
    assert any("none is online: start one with `prefect worker start --pool gpu" in line for line in said), said
    waited = f"waiting for a worker of pool gpu; 1 of pool gpu online, at '{site.children(story.first)[0]['name']}'"
    assert any(waited in line for line in site.stack.said(story.second)), site.stack.said(story.second)


def test_a_cancel_ends_the_training_on_the_other_machine(site: Site, story: Story) -> None:
    assert states(site, story.second)[0] == "CANCELLED"
    until(lambda: states(site, story.second) == ["CANCELLED", "CANCELLED"], "the child is Cancelled too", 90)
    assert not [line for line in site.stack.said(story.second) if "Traceback" in line]


def test_a_deployment_that_is_nowhere_is_refused_before_any_work(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "as of a run of a deployment")
    with temporary_settings({PREFECT_API_URL: site.stack.prefect}), pytest.raises(SettingsError, match="got 'pretrain-encoder/nowhere'"):
        handover.is_wanted("pretrain-encoder/nowhere")
