"""Files over SFTP, as OpenSSH serves them.

In: `sftp://[user@]host[:port]/path`, and of ssh's own files the agent, `~/.ssh/config`, keys and `known_hosts`. Out: an fsspec file
system. The decision that matters: a file is written under another name first and then takes its own at one stroke, by
`hardlink@openssh.com` where it may not be there yet and by `posix-rename@openssh.com` where it may, so that nobody ever reads half
of one. fsspec's own `sftp` and sshfs do neither, trust any server's key and never connect again, hence this.
"""

import asyncio
import errno
import logging
import os
import posixpath
import stat
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import asyncssh
from asyncssh.constants import FX_FAILURE
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import infer_storage_options

from .errors import PipelineError

CONNECT_SECONDS = 20.0
ALIVE_SECONDS = 10.0  # without a word from the server, after which it is asked for one
ALIVE_COUNT = 3  # unanswered, after which the connection is taken for lost
ASIDE = ".aside-"  # how names begin under which files are written first; listings leave them out
_CLOSED = (
    asyncssh.SFTPNoConnection,
    asyncssh.SFTPConnectionLost,
    asyncssh.ConnectionLost,
    asyncssh.ServiceNotAvailable,
    asyncssh.ChannelOpenError,
)
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}


class SftpFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """One connection a process, made when it is first needed and again where it was lost; no listing is kept.

    :param options: what the address says: username, port, password. What it does not say, `~/.ssh/config` does.
    """

    protocol = ("sftp", "ssh")

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(host=host, **options)
        self._host = host
        self._login = {name: options[name] for name in ("username", "port", "password") if options.get(name)}
        self._connection: asyncssh.SSHClientConnection | None = None
        self._client: asyncssh.SFTPClient | None = None
        self._connecting = asyncio.Lock()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(entry) for entry in path]
        return infer_storage_options(os.fspath(path))["path"].rstrip("/") or "/"

    @staticmethod
    def _get_kwargs_from_urls(address: str) -> dict[str, Any]:
        return {name: value for name, value in infer_storage_options(address).items() if name not in ("path", "protocol")}

    def unstrip_protocol(self, name: str) -> str:
        user, port = self._login.get("username"), self._login.get("port")
        return f"sftp://{f'{user}@' if user else ''}{self._host}{f':{port}' if port else ''}{self._strip_protocol(name)}"

    async def _connected(self) -> asyncssh.SFTPClient:
        async with self._connecting:
            if self._client is None or self._connection is None or self._connection.is_closed():
                logging.getLogger("asyncssh").setLevel(logging.WARNING)  # it tells of each connection
                self._connection = await asyncssh.connect(
                    self._host,
                    **self._login,
                    connect_timeout=CONNECT_SECONDS,
                    login_timeout=CONNECT_SECONDS,
                    keepalive_interval=ALIVE_SECONDS,
                    keepalive_count_max=ALIVE_COUNT,
                )
                self._client = await self._connection.start_sftp_client()
            return self._client

    @asynccontextmanager
    async def _on(self, path: str) -> AsyncIterator[asyncssh.SFTPClient]:
        """The client; what goes wrong with a path as Python's own errors, by which others know what can heal."""
        try:
            yield await self._connected()
        except asyncssh.SFTPNoSuchFile:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        except asyncssh.SFTPPermissionDenied as error:
            raise PermissionError(f"{path}: {error.reason}") from error
        except _CLOSED as error:
            if self._connection is not None:
                self._connection.abort()
            self._client = None
            raise ConnectionError(f"{self._host}: {error.reason or 'the connection is lost'}") from error
        except asyncssh.DisconnectError as error:  # an unknown host key, no key of ours that it knows, no common method
            raise PermissionError(f"{self._host}: {error.reason}") from error
        except asyncssh.SFTPError as error:
            todo = "see that the disk there is not full and the path is right, or give another address"
            raise PipelineError(f"{self._host}:{path}: the server answers {error.reason}; {todo}") from error

    @asynccontextmanager
    async def _aside(self, client: asyncssh.SFTPClient, path: str, write: Callable[[str], Awaitable[None]]) -> AsyncIterator[str]:
        """Written under another name beside a path, in a folder that is made where it is missing; nothing is left there."""
        parent, name = posixpath.split(path)
        aside = f"{parent}/{ASIDE}{uuid.uuid4().hex}-{name}"
        try:
            try:
                await write(aside)
            except asyncssh.SFTPNoSuchFile:
                await client.makedirs(parent, exist_ok=True)
                await write(aside)
            yield aside
        finally:
            with suppress(asyncssh.Error, OSError):  # it has its own name by now, or the connection is lost
                await client.unlink(aside)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)

        async def write(aside: str) -> None:
            async with client.open(aside, "wb") as file:
                await file.write(value)

        async with self._on(path) as client, self._aside(client, path, write) as aside:
            if mode != "create":
                await client.posix_rename(aside, path)
                return
            try:
                await client.link(aside, path)
            except asyncssh.SFTPError as error:  # of a name that is taken the server says no more than that it failed
                if error.code != FX_FAILURE or not await client.lexists(path):
                    raise
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None

    async def _put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        path = self._strip_protocol(rpath)

        async def write(aside: str) -> None:
            await client.put(os.fspath(lpath), aside)

        async with self._on(path) as client, self._aside(client, path, write) as aside:
            await client.posix_rename(aside, path)

    async def _get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        path = self._strip_protocol(rpath)
        async with self._on(path) as client:
            await client.get(path, os.fspath(lpath))

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        async with self._on(path) as client, client.open(path, "rb") as file:
            data: bytes = await file.read(-1 if end is None else end - (start or 0), start or 0)
            return data

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        async with self._on(path) as client:
            return _described(path, await client.stat(path))

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        async with self._on(path) as client:
            found = [entry async for entry in client.scandir(path)]
        names = {str(entry.filename): entry.attrs for entry in found}
        kept = {name: attrs for name, attrs in names.items() if name not in (".", "..") and not name.startswith(ASIDE)}
        return [_described(posixpath.join(path, name), kept[name]) if detail else posixpath.join(path, name) for name in sorted(kept)]

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        await self._makedirs(path, exist_ok=True)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        async with self._on(path) as client:
            await client.makedirs(path, exist_ok=exist_ok)

    async def _rm_file(self, path: str, **_: Any) -> None:
        path = self._strip_protocol(path)
        async with self._on(path) as client:
            await client.unlink(path)

    async def _rm(self, path: str, recursive: bool = False, **_: Any) -> None:
        path = self._strip_protocol(path)
        async with self._on(path) as client:
            await (client.rmtree(path) if recursive and await client.isdir(path) else client.unlink(path))

    def modified(self, path: str) -> datetime:
        """When a file was last written, by the server's clock."""
        moment: datetime = self.info(path)["mtime"]
        return moment

    def _open(self, path: str, mode: str = "rb", block_size: int | str = "default", **_: Any) -> AbstractBufferedFile:
        if mode != "rb":
            raise NotImplementedError(f"{path}: got mode {mode}, wanted rb; files are written whole")
        return AbstractBufferedFile(self, path, mode, block_size)


def _described(path: str, attributes: asyncssh.SFTPAttrs) -> dict[str, Any]:
    kind = _KINDS.get(stat.S_IFMT(attributes.permissions or 0), "other")
    return {"name": path, "size": attributes.size, "type": kind, "mtime": datetime.fromtimestamp(attributes.mtime or 0, UTC)}
