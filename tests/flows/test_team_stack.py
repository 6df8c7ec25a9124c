"""The servers of a team, on real PostgreSQL: a run through them, who is refused, where passwords stand, and a restart."""

import base64
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from flows import credentials, models, postgres, processes, registry, services
from flows.places import EXPERIMENT
from flows.servers import NAMES

from .conftest import ROOT, act, environment, free_port, write_corpus

MODEL = "bert-tiny-river-birds"
SMALL = {
    "steps": 2,
    "vocabulary_settings": {"min_count": 1},
    "shard_settings": {"buckets": 1, "held_out_buckets": 1},
    "model_settings": {"intermediate_size": 32, "max_position_embeddings": 64},
    "training_settings": {"batch_size": 16, "device": "cpu"},
}


@dataclass(frozen=True)
class Team:
    """Running servers. `operator` is the environment of `make up`, `client` that of a shell which sourced `team.env`."""

    folder: Path
    operator: dict[str, str]

    @property
    def file(self) -> Path:
        return self.folder / "servers" / credentials.TEAM

    @property
    def client(self) -> dict[str, str]:
        return self.operator | credentials.read_variables(self.file)

    @property
    def passwords(self) -> set[str]:
        """Every secret of both files, and the token that stands for one in a request."""
        known = credentials.read_variables(self.file) | credentials.read_variables(self.file.with_name(credentials.SERVERS))
        plain = {value for name, value in known.items() if name.endswith(("PASSWORD", "KEY"))}
        shared = known["PREFECT_API_AUTH_STRING"]
        return plain | {shared.partition(":")[2], base64.b64encode(shared.encode()).decode()}

    def up(self) -> None:
        done = act("up", self.operator)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"source {self.file}" in done.stdout
        assert not any(password in done.stdout + done.stderr for password in self.passwords)

    def processes(self) -> set[processes.Process]:
        """All that the stack runs."""
        roots = [services.running(services.state_file(self.folder, name)) for name in NAMES]
        return processes.descendants([root for root in roots if root])


@pytest.fixture(scope="module")
def team(text: Callable[[int, int], str]) -> Iterator[Team]:
    """The stack, after one run of a deployment."""
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and not shutil.which("initdb"):
        assert os.environ.get("CI") != "true", f"no PostgreSQL: {postgres.INSTALL}"
        pytest.skip(f"no PostgreSQL: {postgres.INSTALL}")
    with tempfile.TemporaryDirectory(prefix="team-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # as root, PostgreSQL runs as another user, who has to come through
        ports = {f"{server}_PORT": str(free_port()) for server in ("POSTGRES", "PREFECT", "MLFLOW")}
        here = environment(STACK="team", BERT_STORE=str(folder), BERT_WORKERS="cpu", PREFECT_HOME=str(folder / "client"), **ports)
        started = Team(folder, here)
        started.up()
        try:
            run_deployment(started, write_corpus(folder / "river-birds", text, train=30, valid=10))
            yield started
        finally:
            assert act("down", here).returncode == 0


def run_deployment(team: Team, corpus: Path) -> None:
    parameters = json.dumps(SMALL | {"corpus": str(corpus)})
    command = [sys.executable, "-m", "prefect", "deployment", "run", "pretrain-bert/tiny", "--watch", "--params", parameters]
    done = subprocess.run(command, cwd=ROOT, env=team.client, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr + (team.folder / "logs" / "worker.log").read_text("utf-8")


def status_of(address: str, credentials: str = "") -> int:
    """What a server answers to a request with these credentials."""
    headers = {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"} if credentials else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def as_client(team: Team, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    for name, value in team.client.items():
        monkeypatch.setenv(name, value)
    return MlflowClient(team.client["MLFLOW_TRACKING_URI"])


def test_files_go_through_the_server(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    client = as_client(team, monkeypatch)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.artifact_location.startswith("mlflow-artifacts:")
    run = client.get_run(client.get_model_version_by_alias(MODEL, "champion").run_id)
    assert run.info.status == "FINISHED"
    assert {"loss_curve.png", "sample_encodings.json"} <= {file.path for file in client.list_artifacts(run.info.run_id)}


def test_both_servers_refuse_a_client_without_credentials(team: Team) -> None:
    prefect, mlflow = team.client["PREFECT_API_URL"], team.client["MLFLOW_TRACKING_URI"]
    known = {
        f"{prefect}/admin/version": team.client["PREFECT_API_AUTH_STRING"],
        f"{mlflow}/api/2.0/mlflow/registered-models/get?name={MODEL}": ":".join(
            team.client[f"MLFLOW_TRACKING_{part}"] for part in ("USERNAME", "PASSWORD")
        ),
    }
    for address, right in known.items():
        assert [status_of(address), status_of(address, "admin:password1234"), status_of(address, right)] == [401, 401, 200], address
    found = f"{mlflow}/api/2.0/mlflow-artifacts/artifacts"
    assert status_of(found) == 401, "its files neither"


def test_a_client_is_told_which_credentials_are_missing(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    as_client(team, monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "password1234")
    with pytest.raises(
        registry.RegistryError, match=r"'admin' with its password is refused .*MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING"
    ):
        registry.find_run("any")
    for wrong, got in (("", "none"), ("admin:password1234", "others than its own")):
        monkeypatch.setenv(services.PREFECT_AUTH, wrong)
        with pytest.raises(services.ServiceError, match=f"PREFECT_API_AUTH_STRING: got {got}, .*; set PREFECT_API_AUTH_STRING"):
            services.check_prefect(team.client["PREFECT_API_URL"])


def test_the_database_wants_a_password_and_gives_a_role_its_own_database_alone(team: Team) -> None:
    known = credentials.read_variables(team.file.with_name(credentials.SERVERS))
    server = postgres.find_postgres(team.folder / "servers" / "postgres", int(team.operator["POSTGRES_PORT"]), "")
    where = [str(server.binaries / "psql"), "-X", "-w", "-h", services.HOST, "-p", str(server.port)]

    def enters(user: str, database: str, password: str) -> bool:
        settings = environment(PGPASSWORD=password)
        return subprocess.run([*where, "-U", user, "-d", database, "-c", "select 1"], env=settings, capture_output=True).returncode == 0

    assert enters("mlflow", "mlflow", known["MLFLOW_DATABASE_PASSWORD"])
    assert not enters("mlflow", "mlflow", "another")
    assert not enters("postgres", "postgres", "")
    assert not enters("mlflow", "prefect", known["MLFLOW_DATABASE_PASSWORD"])


def test_passwords_stand_in_two_files_that_only_their_owner_reads(team: Team) -> None:
    files = [team.file, team.file.with_name(credentials.SERVERS)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600, 0o600]
    wanted = [password.encode() for password in team.passwords]
    for path in team.folder.rglob("*"):  # logs, states, both databases, all that MLflow and Prefect keep
        if path.is_file() and path not in files:
            assert not any(password in path.read_bytes() for password in wanted), path
    for process in team.processes():
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert not any(password in line for password in wanted), line


def test_another_kind_of_stack_does_not_start_beside_it(team: Team) -> None:
    done = act("up", team.operator | {"STACK": "laptop"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: STACK: got laptop, while the stack `team` runs here")


def act_as_the_page_says(team: Team, block: str, folder: Path) -> None:
    """Run the commands of docs/servers.md but `make`, which are the test's own, on this stack's folder and port."""
    lines = [line for line in block.splitlines() if not line.startswith("make ")]
    lines = [line.replace("artifacts/servers", str(team.file.parent)).replace("5433", team.operator["POSTGRES_PORT"]) for line in lines]
    if os.geteuid() == 0:
        lines = [line.replace("$bin/pg_ctl", "runuser -u postgres -- $bin/pg_ctl") for line in lines]
    done = subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=folder, env=team.operator, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_lost_over_a_restart_and_a_backup_is_brought_back(team: Team, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backups = (ROOT / "docs" / "servers.md").read_text("utf-8").partition("\n## Backups\n")[2].partition("\n## ")[0]
    back_up, bring_back = re.findall(r"^```\n(.*?)^```", backups, re.DOTALL | re.MULTILINE)
    act_as_the_page_says(team, back_up, tmp_path)
    assert {"mlflow-files.tar.gz", "mlflow.dump", "prefect.dump"} <= {path.name for path in tmp_path.iterdir()}
    as_client(team, monkeypatch).set_model_version_tag(MODEL, "1", "made", "after the backup")
    family = team.processes()
    assert len(family) >= 4
    assert act("status", team.operator).returncode == 0
    done = act("down", team.operator)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ended") == 4
    assert not family & processes.running().keys()
    assert act("status", team.operator).returncode == 3
    before = [path.read_text("utf-8") for path in sorted(team.file.parent.glob("*.env"))]
    act_as_the_page_says(team, "".join(back_up.splitlines(keepends=True)[:2]) + bring_back, tmp_path)
    team.up()
    assert [path.read_text("utf-8") for path in sorted(team.file.parent.glob("*.env"))] == before
    assert "COMPLETED" in prefect_runs(team), "beside what is scheduled"
    client = as_client(team, monkeypatch)
    version = client.get_model_version_by_alias(MODEL, "champion")
    assert client.get_run(version.run_id).data.params["training.steps"] == "2"
    assert "complete" in version.tags and "made" not in version.tags, "the backup is older"
    monkeypatch.setenv("BERT_STORE", str(tmp_path))  # a machine that shares nothing but the servers
    folder = models.download(f"models:/{MODEL}/1")
    assert (folder / "model.safetensors").stat().st_size > 100_000


def prefect_runs(team: Team) -> list[Any]:
    """States of the flow's runs, as Prefect knows them."""
    token = base64.b64encode(team.client["PREFECT_API_AUTH_STRING"].encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{team.client['PREFECT_API_URL']}/flow_runs/filter", b"{}", headers)
    with urllib.request.urlopen(asked, timeout=20) as response:
        return [run["state"]["type"] for run in json.load(response)]


def test_a_missing_password_is_told_before_anything_starts(tmp_path: Path) -> None:
    data = tmp_path / "postgres"
    made = credentials.keep_credentials(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:1/api"}, data=data)
    data.mkdir()
    again = credentials.keep_credentials(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:2/api"}, data=data)
    assert again.servers == made.servers
    assert again.team == made.team | {"PREFECT_API_URL": "http://127.0.0.1:2/api"}
    (tmp_path / credentials.SERVERS).unlink()
    with pytest.raises(services.ServiceError, match=r"servers\.env: got no POSTGRES_PASSWORD, .*bring the file back"):
        credentials.keep_credentials(tmp_path, {}, data=data)


def test_missing_programs_are_one_line_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(services.ServiceError, match=r"PostgreSQL: got no initdb, .*; apt-get install postgresql$"):
        postgres._find_binaries(tmp_path / "data")
