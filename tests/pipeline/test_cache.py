"""Files that a machine keeps of a store elsewhere: the bound, several processes and threads, damage, a disk that is full."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline import staging
from pipeline.cache import Cache
from pipeline.storage import digest

SIZE = 1000
FILES = {digest(data): data for data in (bytes([number]) * SIZE for number in range(12))}
NAMES = list(FILES)
# Reads files in an order of its own, again and again, from a cache that holds four of them.
READER = """
import random, sys
from pathlib import Path
from pipeline.cache import Cache
from pipeline.storage import digest
files = {digest(data): data for data in (bytes([number]) * 1000 for number in range(12))}
cache, rng = Cache(Path(sys.argv[1]), 4000), random.Random(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    name = rng.choice(list(files))
    assert cache.read(name, lambda: files[name]) == files[name]
"""


def never() -> bytes:
    raise AssertionError("fetched again")


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if len(path.name) == 64}


def partial(folder: Path) -> list[Path]:
    return list((folder / staging.FOLDER).iterdir())


def counting(name: str, fetched: list[str]) -> Callable[[], bytes]:
    def fetch() -> bytes:
        fetched.append(name)
        time.sleep(0.01)
        return FILES[name]

    return fetch


def test_what_was_fetched_once_is_read_here(tmp_path: Path) -> None:
    assert Cache(tmp_path / "cache", 10 * SIZE).read(NAMES[0], lambda: FILES[NAMES[0]]) == FILES[NAMES[0]]
    assert Cache(tmp_path / "cache", 10 * SIZE).read(NAMES[0], never) == FILES[NAMES[0]]
    assert not partial(tmp_path / "cache")


def test_the_bound_holds_and_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * SIZE + SIZE // 2)
    for number, name in enumerate(NAMES[:3]):
        cache.read(name, lambda name=name: FILES[name])
        os.utime(tmp_path / name, (number, number))
    cache.read(NAMES[0], never)  # used again, so that the second is the oldest
    cache.read(NAMES[3], lambda: FILES[NAMES[3]])
    assert kept(tmp_path) == {NAMES[0], NAMES[2], NAMES[3]}
    large = bytes(4 * SIZE)
    assert cache.read(digest(large), lambda: large) == large
    assert kept(tmp_path) == {NAMES[0], NAMES[2], NAMES[3]}, "a file that is larger than the bound costs the others nothing"
    Cache(tmp_path, 2 * SIZE).read(NAMES[4], lambda: FILES[NAMES[4]])
    assert NAMES[4] in kept(tmp_path) and len(kept(tmp_path)) == 2, "a lower bound holds from the next file on"


@pytest.mark.parametrize("damage", [b"", b"x" * SIZE])
def test_a_damaged_file_is_fetched_anew(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cache, name = Cache(tmp_path, 10 * SIZE), NAMES[0]
    cache.read(name, lambda: FILES[name])
    (tmp_path / name).write_bytes(damage)
    assert cache.read(name, lambda: FILES[name]) == FILES[name] and "damaged; it is fetched anew" in caplog.text
    assert cache.read(name, never) == FILES[name]


def test_what_cannot_be_fetched_is_not_kept(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise ConnectionError("away")

    cache = Cache(tmp_path, 10 * SIZE)
    with pytest.raises(ConnectionError):
        cache.read(NAMES[0], fail)
    assert cache.read(NAMES[0], lambda: FILES[NAMES[0]]) == FILES[NAMES[0]], "and the lock is free"


def test_of_many_threads_that_want_a_file_one_fetches_it(tmp_path: Path) -> None:
    fetched: list[str] = []
    with ThreadPoolExecutor(8) as pool:
        wanted = NAMES[:4] * 8
        found = list(pool.map(lambda name: Cache(tmp_path, 100 * SIZE).read(name, counting(name, fetched)), wanted))
    assert found == [FILES[name] for name in wanted] and sorted(fetched) == sorted(NAMES[:4])


def test_readers_and_evictions_of_many_threads_do_each_other_no_harm(tmp_path: Path) -> None:
    cache, over = Cache(tmp_path, 2 * SIZE), []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            over.append(len(kept(tmp_path)) > 2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(6) as pool:
        wanted = NAMES * 12
        found = list(pool.map(lambda name: cache.read(name, lambda: FILES[name]), wanted))
    done.set()
    watcher.join()
    assert found == [FILES[name] for name in wanted] and not any(over)


def test_processes_share_it_and_what_a_killed_one_left_is_swept(tmp_path: Path) -> None:
    readers = [subprocess.Popen([sys.executable, "-c", READER, str(tmp_path), str(seed), "150"]) for seed in range(2)]
    doomed = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path), "9", "1000000"])
    assert [reader.wait(120) for reader in readers] == [0, 0]
    assert doomed.poll() is None
    doomed.send_signal(signal.SIGKILL)
    doomed.wait()
    left = tmp_path / staging.FOLDER / f"{staging.own_prefix().rpartition('-')[0].replace(str(os.getpid()), str(doomed.pid))}-half"
    left.write_bytes(b"half")
    cache = Cache(tmp_path, 4 * SIZE)
    for name, data in FILES.items():
        assert cache.read(name, lambda data=data: data) == data
    assert kept(tmp_path) == set(NAMES[-4:]) and not partial(tmp_path), "no lock and no partial file outlives its process"


@pytest.mark.parametrize("shut", ["full", "not a folder", "read-only"])
def test_a_disk_that_refuses_costs_one_warning_and_no_read(tmp_path: Path, shut: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "cache"
    if shut == "not a folder":
        folder.write_text("a file")
    elif shut == "read-only":
        folder = Path("/proc/self/cache")
    else:
        _mount_tiny(folder)
    try:
        cache = Cache(folder, 100_000 * SIZE)
        large = [bytes([number]) * 60_000 for number in range(3)]
        for data in large * 2:
            assert cache.read(digest(data), lambda data=data: data) == data
        assert len(caplog.messages) == 1 and "nothing is added, and what is not there is fetched" in caplog.text
        if shut == "full":
            assert "No space left on device" in caplog.text
            assert cache.read(digest(large[0]), never) == large[0], "what was kept before is still read"
            assert not partial(folder)
    finally:
        if shut == "full":
            subprocess.run(["umount", str(folder)], check=True)


def test_a_file_larger_than_the_system_allows_is_not_kept(tmp_path: Path) -> None:
    """As a full disk, where no file system can be mounted: the system refuses in the middle of a write."""
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from pipeline.cache import Cache\n"
        "from pipeline.storage import digest\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "data = bytes(9000)\n"
        "cache = Cache(Path(sys.argv[1]), 100_000)\n"
        "assert [cache.read(digest(data), lambda: data) for _ in range(2)] == [data, data]\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("File too large") == 1, done.stderr
    assert not kept(tmp_path) and not partial(tmp_path)


def _mount_tiny(folder: Path) -> None:
    """A file system of 128 kB."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        folder.rmdir()
        pytest.skip(f"mounts no file system here ({done.stderr.strip()})")
