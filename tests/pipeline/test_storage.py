"""The store: whole or absent, on a local disk and on another file system of fsspec's."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.errors import DamagedOutputError, PipelineError
from pipeline.storage import MANIFEST, Recipe, Store, open_output, verify_digests

RECIPE = Recipe("things", 1, {"size": 3}, {"corpus": "abc"})


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store") if request.param == "local" else f"memory://{uuid4().hex}")


def write(folder: Path) -> dict[str, int]:
    (folder / "a.txt").write_text("alpha")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.bin").write_bytes(bytes(1000))
    return {"rows": 2}


def refuse(folder: Path) -> dict[str, int]:
    raise AssertionError("built again")


def test_an_output_is_made_once_and_found_again(store: Store) -> None:
    made = store.make(RECIPE, write)
    assert made.facts == {"rows": 2} and made.key == RECIPE.key
    assert [entry["name"] for entry in made.manifest["files"]] == ["a.txt", "sub/b.bin"]
    verify_digests(made)
    assert store.make(RECIPE, refuse).manifest == made.manifest
    with store.local(made) as folder:
        assert (folder / "a.txt").read_text() == "alpha"
        assert json.loads((folder / MANIFEST).read_text("utf-8")) == made.manifest, "what is registered leads back to its inputs"


@pytest.mark.parametrize(
    "other",
    [
        Recipe("other", 1, {"size": 3}, {"corpus": "abc"}),
        Recipe("things", 2, {"size": 3}, {"corpus": "abc"}),
        Recipe("things", 1, {"size": 4}, {"corpus": "abc"}),
        Recipe("things", 1, {"size": 3}, {"corpus": "abd"}),
    ],
)
def test_whatever_changes_the_output_changes_the_key(other: Recipe) -> None:
    assert other.key != RECIPE.key


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_build_that_fails_leaves_nothing(store: Store, number: int) -> None:
    def fail(folder: Path) -> dict[str, int]:
        write(folder)
        raise OSError(number, os.strerror(number))

    with pytest.raises(PipelineError, match=f"{os.strerror(number)}; free some space"):
        store.make(RECIPE, fail)
    assert store.find(RECIPE.stage, RECIPE.key) is None
    assert not store.local_root or not list((Path(store.root) / ".staging").iterdir())


def test_a_root_that_cannot_be_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PipelineError, match=r"file.*set BERT_STORE to another place"):
        Store(str(tmp_path / "file")).make(RECIPE, write)


def test_a_damaged_output_is_made_again_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path))
    made = store.make(RECIPE, write)
    for damage in (lambda p: p.unlink(), lambda p: p.write_text("al"), lambda p: p.write_text("alphX")):
        damage(Path(made.file("a.txt")))
        with caplog.at_level(logging.WARNING):
            assert store.make(RECIPE, write, verify=True).key == made.key
        assert Path(made.file("a.txt")).read_text() == "alpha"
        assert "a.txt" in caplog.text and "made again" in caplog.text
        caplog.clear()


def test_an_unreadable_manifest_is_damage(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made = store.make(RECIPE, write)
    (Path(made.address) / MANIFEST).write_text("{")
    with pytest.raises(DamagedOutputError, match="not a readable manifest"):
        open_output(made.address)
    assert store.make(RECIPE, write).facts == {"rows": 2}


def test_opening_what_is_not_there_says_so(store: Store) -> None:
    with pytest.raises(PipelineError, match=r"no manifest\.json here"):
        open_output(store.address("things", "none"))


def test_create_is_for_one_only(store: Store) -> None:
    address = store.address("locks", "a")
    assert store.create(address, b"first") and not store.create(address, b"second")


def test_publishing_twice_keeps_the_first_manifest(store: Store, tmp_path: Path) -> None:
    """Two makers of one key: what the slower one brings changes nothing."""
    first = store.make(RECIPE, write)
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "a.txt").write_text("other bytes, as a log's are")
    assert store.publish(RECIPE, folder, {"rows": 2}, {"who": "slow"}).manifest == first.manifest
    verify_digests(first)


def test_a_kill_at_any_moment_leaves_a_whole_output_or_none(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pipeline.storage import Recipe, Store\n"
        "def build(folder):\n"
        "    for n in range(40): (folder / f'{n}.bin').write_bytes(bytes([n]) * 200_000)\n"
        "    return {}\n"
        "store = Store(sys.argv[1]); print('ready', flush=True)\n"
        "for n in range(1000): store.make(Recipe('things', 1, {'n': n}, {}), build)\n"
    )
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        root = tmp_path / f"store-{delay}"
        child = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE)
        assert child.stdout and child.stdout.readline() == b"ready\n"
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = Store(str(root))
        for key in store.children(f"{root}/things"):
            if output := store.find("things", key):
                verify_digests(output)
                assert len(output.manifest["files"]) == 40
            else:
                assert not (root / "things" / key / MANIFEST).exists()


@pytest.mark.parametrize(
    "call",
    [
        "with store.staging(): os.kill(os.getpid(), 9)",
        "os.link = lambda *_: os.kill(os.getpid(), 9); store.create(sys.argv[1] + '/a', b'data')",
    ],
)
def test_what_a_killed_process_left_in_staging_is_swept(tmp_path: Path, call: str) -> None:
    code = f"import os, sys; from pipeline.storage import Store\nstore = Store(sys.argv[1])\n{call}"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert len(list((tmp_path / ".staging").iterdir())) == 1
    with Store(str(tmp_path)).staging() as mine, Store(str(tmp_path)).staging() as other:
        assert set((tmp_path / ".staging").iterdir()) == {mine, other}


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        made = Store(str(tmp_path)).make(RECIPE, write)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in Path(made.address).rglob("*") if path.is_file()} == {0o644}


def test_the_manifest_lists_size_and_digest_of_each_file(tmp_path: Path) -> None:
    made = Store(str(tmp_path)).make(RECIPE, write)
    manifest = json.loads((Path(made.address) / MANIFEST).read_text())
    assert manifest["files"][0] == {
        "name": "a.txt",
        "size": 5,
        "sha256": "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8",
    }
