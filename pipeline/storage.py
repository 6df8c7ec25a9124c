"""The store of stage outputs: folders that never change once published.

In: what an output is made of (`Recipe`) and a function that builds its files in a local folder. Out: an `Output`
at `<root>/<stage>/<key>`, local or on any fsspec store. The decision that matters: data files go first and
`manifest.json` last, created only if absent, so that a kill at any moment leaves a whole output or none;
readers trust the manifest alone.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from . import lease, staging, stores
from .errors import DamagedOutputError, PipelineError
from .files import file_digest, file_system, read_file

MANIFEST = "manifest.json"
LEASES = "leases"
_KEY_LENGTH = 20  # hexadecimal digits: 80 bits
_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """What the bytes of an output depend on; its hash is the output's key.

    :param stage: the stage's name, also the folder of its outputs.
    :param format: raised whenever the code changes what the stage writes.
    :param inputs: keys of the outputs that this one is made from.
    """

    stage: str
    format: int
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]

    @property
    def key(self) -> str:
        parts = {"stage": self.stage, "format": self.format, "settings": dict(self.settings), "inputs": dict(self.inputs)}
        return digest(json.dumps(parts, sort_keys=True, allow_nan=False).encode())[:_KEY_LENGTH]


@dataclass(frozen=True)
class Output:
    """A published output: its address and the manifest that lists its files.

    `manifest` holds stage, format, key, settings, inputs, files (name, size, sha256), facts (what was counted
    or measured) and recorded (what is noted but not part of the key). `found` is true where nothing had to be made.
    """

    address: str
    manifest: Mapping[str, Any]
    found: bool = False

    @property
    def key(self) -> str:
        return str(self.manifest["key"])

    @property
    def stage(self) -> str:
        return str(self.manifest["stage"])

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self.manifest["facts"])

    def file(self, name: str) -> str:
        """The address of one of the output's files."""
        return f"{self.address}/{name}"


def digest(data: bytes) -> str:
    """The sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def open_output(address: str) -> Output:
    """Open a published output and check that its files are there with their sizes.

    :raises PipelineError: there is no manifest.
    :raises DamagedOutputError: the manifest is unreadable, or a file is missing or of another size.
    """
    fs, path = file_system(address)
    return _open(fs, path, address)


def _open(fs: Any, path: str, address: str) -> Output:
    try:
        manifest = json.loads(fs.cat_file(f"{path}/{MANIFEST}"))
        files = {entry["name"]: entry["size"] for entry in manifest["files"]}
    except FileNotFoundError:
        raise PipelineError(f"{address}: no {MANIFEST} here, so no finished output; run the stage that makes it") from None
    except (ValueError, KeyError, TypeError) as error:
        todo = "the flow makes it again"
        raise DamagedOutputError(f"{address}/{MANIFEST}: not a readable manifest ({error}); {todo}") from error
    for name, size in files.items():
        try:
            found = fs.info(f"{path}/{name}")["size"]
        except FileNotFoundError:
            raise DamagedOutputError(f"{address}/{name}: missing, wanted {size} bytes; the flow makes it again") from None
        if found != size:
            raise DamagedOutputError(f"{address}/{name}: {found} bytes, wanted {size}; the flow makes it again")
    return Output(address, manifest)


def verify_digests(output: Output) -> None:
    """Read every file of an output and compare it with the manifest.

    :raises DamagedOutputError: names the first file that differs.
    """
    for entry in output.manifest["files"]:
        _compare(output.file(entry["name"]), file_digest(output.file(entry["name"])), entry["sha256"])


def read_verified(output: Output, name: str) -> bytes:
    """The bytes of one of an output's files, which are those that were published.

    :raises DamagedOutputError: they differ, or the file is missing.
    """
    address = output.file(name)
    wanted = next((entry["sha256"] for entry in output.manifest["files"] if entry["name"] == name), None)
    try:
        data = read_file(address)
    except FileNotFoundError:
        raise DamagedOutputError(f"{address}: missing; the flow makes it again") from None
    _compare(address, digest(data), wanted)
    return data


def _compare(address: str, found: str, wanted: str | None) -> None:
    if found != wanted:
        raise DamagedOutputError(f"{address}: sha256 {found}, wanted {wanted}; the flow makes it again")


@contextmanager
def _plain_refusals(root: str) -> Iterator[None]:
    """Turn a full disk or a missing permission into an error that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        place = error.filename or root
        raise PipelineError(f"{place}: {error.strerror}; free some space, allow access, or set BERT_STORE to another place") from error


class Store:
    """The root under which all outputs live: a local folder or an fsspec address such as `s3://bucket/bert`."""

    def __init__(self, root: str) -> None:
        stores.check("BERT_STORE", root)
        fs, path = file_system(root)
        self._fs = fs
        self.local_root = isinstance(fs, LocalFileSystem)
        self.root = str(Path(path).absolute()) if self.local_root else root.rstrip("/")

    def address(self, stage: str, key: str) -> str:
        """Where the output of a stage with a key is or would be."""
        return f"{self.root}/{stage}/{key}"

    def find(self, stage: str, key: str) -> Output | None:
        """The published output, or None.

        :raises DamagedOutputError: it was published but is no longer whole.
        """
        address = self.address(stage, key)
        return _open(self._fs, address, address) if self._fs.exists(f"{address}/{MANIFEST}") else None

    def reuse(self, stage: str, key: str, *, verify: bool = False) -> Output | None:
        """The published output if it is whole; a damaged one is withdrawn, with a warning. For whoever holds its lease.

        :param verify: compare digests, not only sizes.
        """
        try:
            return self._checked(stage, key, verify)
        except DamagedOutputError as error:
            logger.warning("%s/%s is damaged and is made again: %s", stage, key, error)
            self.withdraw(stage, key)
            return None

    def whole(self, stage: str, key: str, *, verify: bool = False) -> Output | None:
        """The published output if it is whole; a damaged one is left for whoever holds its lease to withdraw."""
        try:
            return self._checked(stage, key, verify)
        except DamagedOutputError:
            return None

    def _checked(self, stage: str, key: str, verify: bool) -> Output | None:
        found = self.find(stage, key)
        if found is not None and verify:
            verify_digests(found)
        return found and replace(found, found=True)

    def withdraw(self, stage: str, key: str) -> None:
        """Delete an output's manifest, so that nobody takes what is left for whole."""
        self.remove(f"{self.address(stage, key)}/{MANIFEST}")

    def make(
        self,
        recipe: Recipe,
        build: Callable[[Path], Mapping[str, Any]],
        *,
        recorded: Mapping[str, Any] | None = None,
        verify: bool = False,
    ) -> Output:
        """Find the output of a recipe or build and publish it; where another process is at it, wait for that.

        A damaged output is withdrawn and made again under the same key, with a warning.

        :param build: writes files into the local folder that it is given and returns facts for the manifest.
        :param recorded: noted in the manifest, not part of the key; read once the build is done.
        :param verify: compare digests, not only sizes, of an output that is found.
        """
        if found := self.whole(recipe.stage, recipe.key, verify=verify):
            return found
        with self.lease(recipe.stage, recipe.key) as held:
            if found := self.reuse(recipe.stage, recipe.key, verify=verify):  # whoever was at it has made it
                return found
            with self.staging() as folder:
                facts = build(folder)
                held.check()
                return self.publish(recipe, folder, facts, recorded or {})

    @contextmanager
    def lease(self, stage: str, key: str) -> Iterator[lease.Lease]:
        """Be the only one at an output, on all machines that use this store; waits while another process is."""
        with lease.hold(self, f"{self.root}/{LEASES}", f"{stage}-{key}") as held:
            yield held

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A local folder to build in, on the store's own disk where the store is local; gone afterwards.

        What processes that were killed left there is deleted.

        :raises PipelineError: the disk is full, or the store may not be written to.
        """
        parent = Path(self.root) / staging.FOLDER if self.local_root else None
        with _plain_refusals(self.root):
            if parent:
                parent.mkdir(parents=True, exist_ok=True)
                staging.sweep(parent)
            folder = Path(tempfile.mkdtemp(prefix=staging.own_prefix(), dir=parent))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def publish(self, recipe: Recipe, folder: Path, facts: Mapping[str, Any], recorded: Mapping[str, Any]) -> Output:
        """Move the files of a local folder to the recipe's address, then create the manifest."""
        head = {
            "stage": recipe.stage,
            "format": recipe.format,
            "key": recipe.key,
            "settings": dict(recipe.settings),
            "inputs": dict(recipe.inputs),
            "facts": dict(facts),
            "recorded": {"created": datetime.now(UTC).isoformat(timespec="seconds"), **recorded},
        }
        return self.publish_at(self.address(recipe.stage, recipe.key), folder, head)

    def publish_at(self, address: str, folder: Path, head: Mapping[str, Any]) -> Output:
        """Move the files of a local folder to an address, then create a manifest of `head` and the list of files.

        Where another process has published there meanwhile, its output stands.
        """
        if self._fs.exists(f"{address}/{MANIFEST}"):
            return _open(self._fs, address, address)
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        files = [{"name": name, "size": (folder / name).stat().st_size, "sha256": file_digest(str(folder / name))} for name in names]
        for name in names:
            self._put(folder / name, f"{address}/{name}")
        self.create(f"{address}/{MANIFEST}", json.dumps({**head, "files": files}, indent=1, allow_nan=False).encode())
        return _open(self._fs, address, address)

    def children(self, address: str) -> list[str]:
        """The names of the entries below an address, sorted; none where the address does not exist."""
        try:
            if self.local_root:  # fsspec looks at each entry, and one that vanishes meanwhile would be taken for the folder
                with _plain_refusals(self.root):
                    return sorted(path.name for path in Path(address).iterdir())
            return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in self._fs.ls(address, detail=False))
        except FileNotFoundError:
            return []

    def remove(self, address: str) -> None:
        """Delete a small file, where it is there."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(address)

    def delete(self, address: str) -> None:
        """Delete an output, its manifest first, so that it is never taken for whole while it goes."""
        self.remove(f"{address}/{MANIFEST}")
        with suppress(FileNotFoundError):
            self._fs.rm(address, recursive=True)

    @contextmanager
    def local(self, output: Output) -> Iterator[Path]:
        """A local folder with an output's files and manifest: the output itself where the store is local, else a copy for the while."""
        if self.local_root:
            yield Path(output.address)
            return
        with self.staging() as folder:
            (folder / MANIFEST).write_text(json.dumps(output.manifest, indent=1), "utf-8")
            for entry in output.manifest["files"]:
                copy = folder / entry["name"]
                copy.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(output.file(entry["name"]), str(copy))
                if (found := copy.stat().st_size) != entry["size"]:
                    address = output.file(entry["name"])
                    raise DamagedOutputError(f"{address}: got {found} bytes, wanted {entry['size']}; the flow makes it again")
            yield folder

    @contextmanager
    def _aside(self, address: str, data: bytes) -> Iterator[Path]:
        """A small file of a local store, written whole under another name; the folder of its place is made."""
        parent = Path(self.root) / staging.FOLDER
        with _plain_refusals(self.root):
            for folder in (parent, Path(address).parent):
                folder.mkdir(parents=True, exist_ok=True)
            path = parent / f"{staging.own_prefix()}{uuid.uuid4().hex}"  # not by tempfile, whose files others may not read
            try:
                path.write_bytes(data)
                yield path
            finally:
                path.unlink(missing_ok=True)

    def _put(self, source: Path, address: str) -> None:
        if self.local_root:
            Path(address).parent.mkdir(parents=True, exist_ok=True)
            source.replace(address)  # one file system: whole or not at all
        else:
            self._fs.put_file(str(source), address)

    def create(self, address: str, data: bytes) -> bool:
        """Create a small file whole, only if it is absent. Returns whether it was created."""
        if not self.local_root:
            try:
                self._fs.pipe_file(address, data, mode="create")
            except FileExistsError:
                return self.read(address) == data  # ours, if it was created and the answer got lost on the way
            except FileNotFoundError as error:
                raise PipelineError(f"{self.root}: {error}; create it, or set BERT_STORE to another place") from error
            return True
        with self._aside(address, data) as path:
            try:
                os.link(path, address)  # unlike open("x"), never visible half-written
            except FileExistsError:
                return False
        return True

    def overwrite(self, address: str, data: bytes) -> None:
        """Write a small file whole, whatever stood there."""
        if not self.local_root:
            self._fs.pipe_file(address, data)
            return
        with self._aside(address, data) as path:
            path.replace(address)

    def read(self, address: str) -> bytes | None:
        """The bytes of a small file, None where there is none."""
        try:
            data: bytes = self._fs.cat_file(address)
        except FileNotFoundError:
            return None
        return data

    def usage(self, address: str) -> tuple[int, datetime | None]:
        """Bytes of the files below an address, and when the newest was written; None where there is none or the store does not tell."""
        files = self._fs.find(address, detail=True)
        times: list[datetime] = []
        for path in files or [address]:
            with suppress(FileNotFoundError, KeyError, NotImplementedError):
                times.append(self._fs.modified(path))
        return sum(int(file["size"] or 0) for file in files.values()), max(times, default=None)
