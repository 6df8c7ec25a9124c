"""An address -> a digest of what its files' keepers say of them, without reading the files.

In: an address as `sources` takes it. Out: a `Fingerprint`, or None where nobody says enough to trust. The decision
that matters: in doubt there is none, so that the worst of a wrong guess is a corpus that is read once more.
"""

import json
import logging
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from ..addresses import without_credentials
from ..files import find_file_system
from ..settings import CorpusSettings
from ..storage import digest
from . import sources, web
from .download import ask_about

SETTLED_SECONDS = 2.0  # what changed less long ago may change again under the same time, which some keep in steps of 2 s
ANSWER_SECONDS = 5.0  # for a web server, over all that it is asked
_TICK = 0.02  # seconds; longer than the step of the clock that a kernel stamps changes with
_TAGS = frozenset({"etag", "generation", "checksum", "md5", "md5hash", "md5checksum", "contentmd5", "sha", "sha256", "blobid"})
_TIMES = frozenset({"lastmodified", "mtime", "modified", "modify", "updated", "modifiedtime"})
_CREATED = "created"  # of some file systems the last change, of others not: never enough alone

logger = logging.getLogger(__name__)
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Fingerprint:
    """Two that are equal say: the same files, not changed between.

    :param digest: of what was said of the files.
    :param taken: when, UTC, in ISO 8601.
    """

    digest: str
    taken: str


class _Untrusted(Exception):  # noqa: N818 no error: what is said does not suffice
    """Why there is no fingerprint."""


def take(address: str, settings: CorpusSettings = sources.DEFAULT) -> Fingerprint | None:
    """Ask what can be known of a corpus's files without reading them.

    The settings by which they are read count too. Take it before reading: what changes meanwhile is then seen the next time.

    :returns: None where a file is missing, too new, or nobody says when it changed; what is wrong there, the read will say.
    """
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        facts = _of_web(address) if web.is_address(address) else _of_files(address, settings)
    except Exception as error:  # fsspec's file systems raise what they like
        reason = str(error) if isinstance(error, _Untrusted) else type(error).__name__  # other messages may hold credentials
        logger.debug("%s: no fingerprint (%s)", without_credentials(address), reason)
        return None
    return Fingerprint(digest(json.dumps([facts, settings.as_dict()], sort_keys=True, default=str).encode()), taken)


def _of_files(address: str, settings: CorpusSettings) -> Facts:
    if "::" in address:
        raise _Untrusted("what stands in an archive has the time that its maker gave it")
    fs, path = find_file_system(address)
    fs.invalidate_cache()  # a listing from before would hide a change
    files = sources.list_files(fs, path, address, settings)
    told = _told_by_disk if isinstance(fs, LocalFileSystem) else _told_by_store
    return {split: [told(fs, info) for info in infos] for split, infos in files.items()}


def _told_by_disk(_: Any, info: Facts) -> Facts:
    """Inode and ctime besides, which nobody puts back after a change."""
    path = Path(info["name"])
    found = path.stat()
    _refuse_unsettled(found.st_mtime, time.time(), path.name)
    if abs(time.time() - found.st_ctime) < _TICK:
        time.sleep(_TICK)  # so that whatever changes from here on gets another ctime
        found = path.stat()
    return {"name": str(path), "size": found.st_size, "mtime": found.st_mtime_ns, "ctime": found.st_ctime_ns, "inode": found.st_ino}


def _told_by_store(fs: Any, info: Facts) -> Facts:
    """What an fsspec file system's listing says; each names it in its own way."""
    said = {name.lower().replace("-", "").replace("_", ""): value for name, value in info.items() if value not in (None, "")}
    facts = {name: said[name] for name in sorted(said.keys() & (_TAGS | _TIMES))}
    if not facts and (changed := fs.modified(info["name"])):
        facts["modified"] = changed
    if not facts:
        raise _Untrusted(f"{info['name']}: neither a tag nor a time of change")
    if not facts.keys() & _TAGS:
        for moment in facts.values():
            seconds = moment.timestamp() if isinstance(moment, datetime) else moment
            if not isinstance(seconds, int | float):
                raise _Untrusted(f"{info['name']}: a time of change that is text")
            if seconds == int(seconds):  # a clock that counts in seconds
                _refuse_unsettled(seconds, time.time(), info["name"])
    return {**facts, _CREATED: said.get(_CREATED), "name": info["name"], "size": info["size"]}


def _refuse_unsettled(changed: float, now: float, name: str) -> None:
    if now - changed < SETTLED_SECONDS:
        raise _Untrusted(f"{name} changed less than {SETTLED_SECONDS:g} s ago")


def _of_web(address: str) -> Facts:
    """What HEAD answers for a file, or for the files below a base address that reading would take."""
    deadline = time.monotonic() + ANSWER_SECONDS

    def told(url: str) -> Facts | None:
        """None where there is no such file."""
        status, headers = ask_about(url, seconds=deadline - time.monotonic())
        if status in web.NO_SUCH_FILE:
            return None
        if status != 200:
            raise _Untrusted(f"HEAD was answered {status}")
        return _told_by_server(headers)

    parts = urllib.parse.urlsplit(address)
    facts = {"file": told(address)} if web.is_one_file(parts) else web.take_below(lambda name, _: told(web.url_below(parts, name)))
    if not any(facts.values()):
        raise _Untrusted("nothing there")
    return facts


def _told_by_server(headers: Message) -> Facts:
    tag, changed, size = (headers.get(name) for name in ("ETag", "Last-Modified", "Content-Length"))
    if not tag and not (changed and size):
        raise _Untrusted("neither ETag nor Last-Modified with Content-Length")
    if changed and (not tag or tag.startswith("W/")):
        now = parsedate_to_datetime(headers["Date"]) if headers["Date"] else datetime.now(UTC)
        _refuse_unsettled(parsedate_to_datetime(changed).timestamp(), now.timestamp(), "the file")
    return {"etag": tag, "changed": changed, "size": size}
