"""Builders of every kind make the same shards, and end when they should."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from flows import builders as flow_builders
from flows import logs, processes
from flows.builders import INSTALL, builders
from flows.pretrain_bert import shards
from flows.stages import stage
from pipeline.data import build
from pipeline.data.parallel import Builders
from pipeline.errors import CorpusError, PipelineError, SettingsError
from pipeline.settings import BuilderSettings
from pipeline.shards import SHARD, shard_buckets
from pipeline.storage import Store

from .conftest import ROOT, free_port
from .pieces import die, fail_at_one

LOCAL = {"dashboard_address": "127.0.0.1:0", "threads_per_worker": 1, "memory_limit": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A Prefect server."""
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), prefect_test_harness(server_startup_timeout=90):
        logs.set_up()
        yield PREFECT_API_URL.value()


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    """Dask's scheduler and two workers."""
    with distributed.LocalCluster(n_workers=2, **LOCAL) as cluster:
        yield cluster


def in_flow(settings: BuilderSettings, work: Callable[[Builders], Any]) -> Any:
    """What a stage of a flow gets from its builders."""

    @stage("shards")
    def build_all() -> Any:
        with builders(settings) as those:
            return work(those)

    return flow(build_all, name="builds")()


@pytest.mark.parametrize(
    ("runner", "workers", "wanted"),
    [
        ("threads", 1, 1),
        ("threads", 2, 2),
        ("processes", 2, 2),
        ("dask", 0, 2),
        ("address", 0, 2),
        ("address", 1, 1),
    ],
)
def test_whoever_builds_the_shards_are_the_same(
    server, cluster, small_built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str, workers: int, wanted: int
) -> None:
    monkeypatch.setattr(build, "PART_BYTES", 2_000)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "other"))
    shutil.copytree(small_built.store.root, tmp_path / "other", ignore=shutil.ignore_patterns("bucket", "shards"))
    address = cluster.scheduler_address if runner == "address" else ""
    settings = {"runner": "dask" if address else runner, "workers": workers, "address": address}
    preset = small_built.preset.override(builders=settings)
    built = flow(lambda: shards(small_built.corpus, small_built.vocabulary, "train", preset), name="builds")()
    assert built.facts == small_built.train.facts and built.key == small_built.train.key
    for bucket, same in zip(shard_buckets(Store(str(tmp_path / "other")), built), shard_buckets(small_built.store, built), strict=True):
        assert (Path(bucket) / SHARD).read_bytes() == (Path(same) / SHARD).read_bytes()
    recorded = built.manifest["recorded"]
    assert [recorded[name] for name in ("runner", "workers", "buckets_made", "buckets_found")] == [settings["runner"], wanted, 2, 0]


def test_an_error_is_told_once_and_ends_the_others(server, caplog) -> None:
    with pytest.raises(CorpusError, match=r"^row 3: got nothing, wanted text$") as caught:
        in_flow(BuilderSettings(runner="processes", workers=2), lambda those: those.map(fail_at_one, range(4)))
    assert caught.value.told
    assert not [child for child in multiprocessing.active_children() if "Spawn" in child.name and not child.daemon]


def test_a_process_that_is_killed_is_said_to_be(server, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"its builder was killed.*memory.*the same command goes on"):
        in_flow(BuilderSettings(runner="processes", workers=1), lambda those: those.map(die, [tmp_path / "once"]))


def test_what_a_killed_worker_of_dask_was_at_is_done_again(server, cluster, tmp_path: Path) -> None:
    settings = BuilderSettings(runner="dask", address=cluster.scheduler_address)
    (pid,) = in_flow(settings, lambda those: those.map(die, [tmp_path / "once"]))
    assert pid != os.getpid()


WAITS = """
import os, sys, time
from pathlib import Path
from prefect import flow
from flows.builders import builders
from pipeline.settings import BuilderSettings

def tell_and_wait(folder):
    (folder / str(os.getpid())).touch()
    time.sleep(600)

@flow
def run():
    with builders(BuilderSettings(runner=sys.argv[1], workers=1)) as those:
        those.map(tell_and_wait, [Path(sys.argv[2])])

if __name__ == "__main__":
    run()
"""


@pytest.mark.parametrize("runner", ["processes", "dask"])
def test_builders_end_with_a_run_that_is_killed(server, pids: Path, eventually, runner: str) -> None:
    script = pids.parent / "run.py"
    script.write_text(WAITS, "utf-8")
    environment = os.environ | {"PREFECT_API_URL": server, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, str(script), runner, str(pids)], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: list(pids.iterdir()) or run.poll() is not None, 120)
        assert run.poll() is None
        family = processes.descendants([found]) - {found} if (found := processes.find(run.pid)) else set()
        assert int(next(pids.iterdir()).name) in {process.pid for process in family}
    finally:
        run.kill()
        run.wait()
    eventually(lambda: not family & processes.running().keys(), 60)


def test_dask_that_is_not_installed_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    with pytest.raises(SettingsError) as caught, builders(BuilderSettings(runner="dask")):
        pass
    assert INSTALL in str(caught.value)


def test_an_address_where_nobody_is_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_builders, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(flow_builders, "NOBODY_SECONDS", 0.2)
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        pytest.raises(PipelineError, match=f"no scheduler answers at {address}"),
        builders(BuilderSettings(runner="dask", address=address)),
    ):
        pass
    with distributed.LocalCluster(n_workers=0, **LOCAL) as empty:
        settings = BuilderSettings(runner="dask", address=empty.scheduler_address)
        with pytest.raises(PipelineError, match=f"{empty.scheduler_address}: no worker there.*dask worker"), builders(settings):
            pass
