"""A store over SFTP: OpenSSH's own server on loopback, whose connections break, stop and come back."""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline import files, retries, sftp
from pipeline.data.corpus import fetch_corpus
from pipeline.errors import PipelineError, SettingsError, StoreUnavailableError
from pipeline.settings import Preset
from pipeline.storage import MANIFEST, Output, Store
from tests.pipeline.sshd import ALIAS, Sshd, serve
from tests.pipeline.store_calls import RECIPE, contend, go_the_whole_way, use, write


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with serve(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def sshd(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """The server, a client whose home knows it, no connection from before, and short pauses."""
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 0.02)
    sftp.SftpFileSystem.clear_instance_cache()
    yield server
    sftp.SftpFileSystem.clear_instance_cache()


@pytest.fixture
def store(sshd: Sshd, tmp_path: Path) -> Store:
    return Store(f"sftp://{ALIAS}{tmp_path}/store")


def test_every_call_works_by_an_alias_of_ssh_config(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        use(store)
    assert not caplog.records, "neither a call that was made again nor a line for each connection"


def test_an_address_may_say_user_and_port(sshd: Sshd, tmp_path: Path) -> None:
    (sshd.home / ".ssh" / "id_ed25519").write_bytes((sshd.folder / "me").read_bytes())
    user = Path(sshd.home / ".ssh" / "config").read_text().partition("User ")[2].split()[0]
    use(Store(f"sftp://{user}@127.0.0.1:{sshd.port}{tmp_path}/store"))


def test_create_is_for_one_only_and_never_seen_by_half(store: Store) -> None:
    """Many writers of one name, and a reader."""
    address, sizes = f"{store.root}/locks/a", set[int]()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if (data := store.read(address)) is not None:
                sizes.add(len(data))

    reader = threading.Thread(target=watch)
    reader.start()
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: store.create(address, bytes([number]) * 300_000), range(24)))
    for number in range(5):
        store.overwrite(address, bytes([number]) * 300_000)
    done.set()
    reader.join()
    assert sum(created) == 1 and sizes == {300_000}
    assert store.children(f"{store.root}/locks") == ["a"]
    assert [path.name for path in Path(store.root.removeprefix(f"sftp://{ALIAS}"), "locks").iterdir()] == ["a"], "nothing is left aside"


def test_never_two_at_once(store: Store, tmp_path: Path) -> None:
    contend(store, tmp_path / "log")


def test_a_connection_that_breaks_is_made_anew(sshd: Sshd, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """While files are written and read in several threads; none is lost, and none is written by two."""

    def write_many(writer: int) -> list[bool]:
        created = []
        for number in range(40):
            created.append(store.create(f"{store.root}/many/{writer}-{number}", f"{writer} {number}".encode()))
            if writer == 0 and number % 10 == 5:
                sshd.send(signal.SIGKILL)
        return created

    with caplog.at_level(logging.INFO, retries.logger.name), ThreadPoolExecutor(3) as pool:
        created = list(pool.map(write_many, range(3)))
    assert created == [[True] * 40] * 3, "also where the answer got lost on the way"
    assert "trying again" in caplog.text
    assert {store.read(f"{store.root}/many/{name}") for name in store.children(f"{store.root}/many")} == {
        f"{writer} {number}".encode() for writer in range(3) for number in range(40)
    }


def test_a_server_that_falls_silent_is_left_for_a_new_connection(sshd: Sshd, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sftp, "ALIVE_SECONDS", 0.2)
    store.overwrite(f"{store.root}/note", b"1")
    silent = sshd.sessions()
    sshd.send(signal.SIGSTOP)
    try:
        assert store.read(f"{store.root}/note") == b"1"
    finally:
        assert set(sshd.sessions()) - set(silent)
        sshd.send(signal.SIGCONT)


def test_a_server_that_is_away_is_waited_for(sshd: Sshd, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    sshd.stop()
    back = threading.Timer(0.5, sshd.start)
    back.start()
    with caplog.at_level(logging.INFO, retries.logger.name):
        assert store.make(RECIPE, write).facts == {"rows": 2}
    back.join()
    assert "trying again" in caplog.text


def test_a_server_that_stays_away_is_one_clear_error(sshd: Sshd, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PATIENCE_SECONDS", 0.2)
    sshd.stop()
    try:
        with pytest.raises(StoreUnavailableError, match=rf"{store.root}: the store answered .*[Cc]onnect.*, and no better for"):
            store.read(f"{store.root}/note")
    finally:
        sshd.start()


@pytest.mark.parametrize(("file", "said"), [("known_hosts", "not trusted"), ("config", "Permission denied")])
def test_a_server_or_a_client_that_the_other_does_not_know_is_refused(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, said: str
) -> None:
    """A key of the server's that is not in known_hosts; no key of ours."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    for name in {"known_hosts", "config"} - {file}:
        (ssh / name).write_bytes((sshd.home / ".ssh" / name).read_bytes())
    if file == "config":
        (ssh / "config").write_text(f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {sshd.port}\n")
    monkeypatch.setenv("HOME", str(ssh.parent))
    with pytest.raises(PipelineError, match=rf"sftp://{ALIAS}/x: the store refuses \(.*{said}.*\); check the credentials") as raised:
        Store(f"sftp://{ALIAS}/x").read("sftp://storebox/x/note")
    assert "\n" not in str(raised.value)


def test_what_the_server_cannot_do_is_one_clear_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    with pytest.raises(PipelineError, match=rf"{tmp_path}/store.*: the server answers .*; see that the disk there"):
        store.make(RECIPE, write)


def test_a_kill_while_an_output_goes_out_leaves_no_manifest(store: Store, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from pipeline.storage import Recipe, Store\n"
        "def build(folder):\n"
        "    for n in range(40): (folder / f'{n}.bin').write_bytes(bytes([n]) * 200_000)\n"
        "    print('built', flush=True)\n"
        "    return {}\n"
        "Store(sys.argv[1]).make(Recipe('things', 1, {'size': 3}, {}), build)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, store.root], stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline() == b"built\n"
    folder = tmp_path / "store" / "things" / RECIPE.key
    while not folder.exists():
        time.sleep(0.001)
    child.kill()
    child.communicate()
    if not (folder / MANIFEST).exists():  # else it was quicker than the kill, and is whole
        assert store.find("things", RECIPE.key) is None
        assert store.make(RECIPE, write).facts == {"rows": 2}


def test_a_corpus_over_sftp(store: Store, tmp_path: Path, text: Callable[[int, int], str]) -> None:
    (tmp_path / "texts").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "texts" / f"wiki.{split}.tokens").write_text(text(20, len(split)))
    there, here = f"sftp://{ALIAS}{tmp_path}/texts", str(tmp_path / "texts")
    assert fetch_corpus(store, there).output.key == fetch_corpus(Store(str(tmp_path / "local")), here).output.key
    assert fetch_corpus(store, f"{there}/*.tokens").output.key == fetch_corpus(store, f"{there}/").output.key


def test_a_large_file_is_read_block_by_block(sshd: Sshd, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK", 70_000)
    contents = bytes(range(256)) * 2000
    store.overwrite(f"{store.root}/large", contents)
    with files.open_file(f"{store.root}/large") as file:
        head = file.read(100_000)
        sshd.send(signal.SIGKILL)
        assert head + file.read() == contents


def test_the_whole_way_over_sftp(
    store: Store,
    tmp_path: Path,
    small_preset: Preset,
    publish: Callable[..., Output],
    text: Callable[[int, int], str],
    train: Callable[..., Any],
) -> None:
    go_the_whole_way(store, tmp_path / "work", publish(store, text(40, 1), text(10, 2)), small_preset, train)


def test_without_its_library_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    monkeypatch.delitem(sys.modules, "pipeline.sftp")
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "sftp", raising=False)  # imported before
    with pytest.raises(SettingsError, match=r"sftp://host/bert: sftp is not installed; .*'\.\[sftp\]'"):
        Store("sftp://host/bert")
