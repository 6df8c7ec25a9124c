"""Leases: real processes at one name, killed, suspended and on other machines."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import lease
from pipeline.errors import LeaseLostError
from pipeline.storage import Recipe, Store

HOLD = """
import sys, time
from pipeline.storage import Store
with Store(sys.argv[1]).lease("run", "abc") as held:
    print("held", flush=True)
    time.sleep(300)
"""
CONTEND = """
import random, sys, time
from pathlib import Path
from pipeline.storage import Store
store, log = Store(sys.argv[1]), Path(sys.argv[1]) / "log"
for _ in range(15):
    with store.lease("run", "abc"):
        with log.open("a") as file:
            file.write("in\\n")
        time.sleep(random.random() / 500)
        with log.open("a") as file:
            file.write("out\\n")
"""


def holder(root: Path) -> subprocess.Popen[str]:
    """A process that holds the lease."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.02)


def test_never_two_at_once(tmp_path: Path) -> None:
    code = f"from pipeline import lease; lease.POLL_SECONDS = 0.001\n{CONTEND}"
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [child.wait(120) for child in children] == [0] * 4
    assert (tmp_path / "log").read_text().split() == ["in", "out"] * 60
    assert not Store(str(tmp_path)).children(f"{tmp_path}/leases"), "nothing is left of leases that were given up"


def test_an_owner_that_was_killed_is_replaced_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = holder(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    began = time.monotonic()
    with Store(str(tmp_path)).lease("run", "abc") as held:
        held.check()
    assert time.monotonic() - began < lease.STALE_SECONDS / 3
    assert f"process {child.pid}" in caplog.text and "gave no sign any more" in caplog.text


def test_a_process_that_got_a_dead_owners_id_is_not_taken_for_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with store.lease("run", "abc") as held:
        sign = held._sign
    store.create(f"{tmp_path}/leases/run-abc.1", replace(sign, started="1").data())
    began = time.monotonic()
    with store.lease("run", "abc"):
        assert time.monotonic() - began < lease.STALE_SECONDS / 3


def test_waiting_says_for_whom_and_ends_when_it_is_given_up(quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, entered = Store(str(tmp_path)), threading.Event()

    def wait() -> None:
        with store.lease("run", "abc"):
            entered.set()

    with caplog.at_level(logging.INFO), store.lease("run", "abc") as held:
        other = threading.Thread(target=wait)
        other.start()
        assert not entered.wait(1.5), "longer than an owner without a sign is left"
        held.check()
    other.join(10)
    assert entered.is_set()
    assert caplog.text.count(f"run-abc: process {os.getpid()} on ") == 1


@pytest.mark.parametrize("root", ["", "memory://leases"])
def test_an_owner_on_another_machine_is_replaced_after_missed_renewals(quick: None, tmp_path: Path, root: str) -> None:
    store = Store(root or str(tmp_path))
    with store.lease("run", "elsewhere") as held:
        sign = held._sign
    store.create(f"{store.root}/leases/run-elsewhere.7", replace(sign, machine="another", host="far").data())
    began = time.monotonic()
    with store.lease("run", "elsewhere"):
        assert time.monotonic() - began >= lease.STALE_SECONDS
        assert store.children(f"{store.root}/leases") == ["run-elsewhere.8"]


def test_a_suspended_owner_learns_that_it_was_replaced(quick: None, tmp_path: Path) -> None:
    code = """
import sys, time
from pipeline import lease
from pipeline.errors import LeaseLostError
from pipeline.storage import Store
lease.RENEW_SECONDS = 0.1
with Store(sys.argv[1]).lease("run", "abc") as held:
    print("held", flush=True)
    sys.stdin.readline()
    try:
        held.check()
    except LeaseLostError as error:
        print(error, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    child.send_signal(signal.SIGSTOP)
    try:
        with Store(str(tmp_path)).lease("run", "abc") as held:
            child.send_signal(signal.SIGCONT)
            said, _ = child.communicate("\n", timeout=30)
            held.check()
    finally:
        child.kill()
    assert f"process {os.getpid()} on " in said and "has taken this over" in said


def test_a_child_acts_under_its_parents_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    with store.lease("run", "abc") as held:
        monkeypatch.setenv(lease.TOKEN, held.token)
        with store.lease("run", "abc") as inherited:
            inherited.check()
        held.check()
        with store.lease("run", "other") as own:
            assert own.token != held.token
        store.remove(f"{tmp_path}/leases/run-abc.1")
        with pytest.raises(LeaseLostError, match=r"^run-abc: its lease in .*leases is gone; if the store was moved"):
            inherited.check()


def test_two_at_one_output_make_it_once(quick: None, tmp_path: Path) -> None:
    store, built, begun = Store(str(tmp_path)), [], threading.Event()

    def build(folder: Path) -> dict[str, int]:
        begun.set()
        built.append(folder)
        time.sleep(0.5)
        (folder / "file").write_text("x")
        return {}

    recipe = Recipe("thing", 1, {}, {})
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(store.make(recipe, build).found)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(built) == 1 and sorted(found) == [False, True, True]


def test_what_takers_left_that_were_killed_blocks_nobody(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with store.lease("run", "abc") as held:
        sign = replace(held._sign, started="1")
    for number in (3, 4, 6):
        store.create(f"{tmp_path}/leases/run-abc.{number}", sign.data())
    began = time.monotonic()
    with store.lease("run", "abc") as held:
        held.check()
        assert time.monotonic() - began < lease.STALE_SECONDS / 3
        assert store.children(f"{tmp_path}/leases") == ["run-abc.7"]
    assert not store.children(f"{tmp_path}/leases")


def test_who_comes_back_too_late_leaves_the_new_owners_lease_alone(tmp_path: Path) -> None:
    """Numbers begin again once all have given up, so the same one may be somebody else's."""
    store = Store(str(tmp_path))
    with store.lease("run", "abc") as late:
        store.remove(f"{tmp_path}/leases/run-abc.1")
        other = replace(late._sign, owner="another")
        store.create(f"{tmp_path}/leases/run-abc.1", other.data())
    assert store.read(f"{tmp_path}/leases/run-abc.1") == other.data()


def test_holders_are_those_that_live(quick: None, tmp_path: Path) -> None:
    store, folder = Store(str(tmp_path)), f"{tmp_path}/leases"
    assert lease.holders(store, folder) == []
    with store.lease("run", "abc") as held:
        for name, sign in (("dead", replace(held._sign, started="1")), ("far", replace(held._sign, machine="another", host="far"))):
            store.create(f"{folder}/run-{name}.1", sign.data())
        assert [entry.partition(" at ")[2] for entry in lease.holders(store, folder)] == ["run-abc"]


def test_other_names_do_not_wait(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with store.lease("run", "abc"), store.lease("run", "ab"), store.lease("encoder", "abc"):
        pass


def test_an_owner_that_lost_its_lease_publishes_nothing(quick: None, tmp_path: Path) -> None:
    store = Store(str(tmp_path))

    def build(folder: Path) -> dict[str, int]:
        (mine,) = store.children(f"{tmp_path}/leases")
        store.remove(f"{tmp_path}/leases/{mine}")
        return {}

    recipe = Recipe("thing", 1, {}, {})
    with pytest.raises(LeaseLostError):
        store.make(recipe, build)
    assert store.find("thing", recipe.key) is None
