"""One server of this machine: started once, found again, ended whole.

In: a command, its environment, an address that says when it is ready. Out: a running process and a small state file. The
decision that matters: the state holds the process's id and start time, so that `end` ends what was started here and
nothing else, whoever has the id by then.
"""

import base64
import contextlib
import http.client
import json
import os
import pwd
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.addresses import without_credentials
from pipeline.errors import PipelineError

from . import processes

HOST = "127.0.0.1"
START_SECONDS = 180.0
GRACE_SECONDS = 20.0
PREFECT_AUTH = "PREFECT_API_AUTH_STRING"
_LAST_LINES = 5
_REFUSALS = {401, 403}


class ServiceError(PipelineError):
    """A server that cannot be started, or does not answer."""


def nothing() -> None:
    """What comes before most services' start."""


@dataclass(frozen=True)
class Service:
    """A server.

    :param ready: whether it does its work yet. :param folder: where `servers/` holds its state and `logs/` its log.
    :param port: None where it listens on none. :param variable: the environment variable that sets the port.
    :param prepare: what comes before its start. :param user: whom it runs as; None: whoever starts it.
    :param stop: the signal that it ends by.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    folder: Path
    port: int | None = None
    variable: str = ""
    prepare: Callable[[], None] = nothing
    user: str | None = None
    stop: signal.Signals = signal.SIGTERM

    @property
    def state(self) -> Path:
        return state_file(self.folder, self.name)

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"

    def check_port(self) -> None:
        """See that it could listen.

        :raises ServiceError: another process has its port.
        """
        if self.port is not None and not port_is_free(self.port):
            todo = f"end what listens there, or set {self.variable} to another port"
            raise ServiceError(f"{self.name}: port {self.port} of {HOST} is in use by another process; {todo}")

    def start(self) -> None:
        """Start it, without waiting until it is ready.

        :raises ServiceError: it ended at once.
        """
        for path in (self.state, self.log):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                self.command,
                env=dict(os.environ) | dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_listen_to_interrupts,
                **as_user(self.user),
            )
        found = processes.find(child.pid)
        if found is None:
            raise ServiceError(f"{self.name}: ended at once; see {self.log}")
        self.state.write_text(json.dumps(asdict(found) | {"port": self.port, "stop": self.stop}), "utf-8")

    def wait(self) -> None:
        """Wait until it is ready.

        :raises ServiceError: it ended, or takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self.ready():
            if running(self.state) is None:
                said = " / ".join(self.log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:])
                raise ServiceError(f"{self.name}: ended while it started; its last words: {said}; see {self.log}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name}: not ready after {START_SECONDS:.0f} seconds; see {self.log}")
            time.sleep(0.2)


def state_file(folder: Path, name: str) -> Path:
    """Where the state of a service lies in the artifacts folder."""
    return folder / "servers" / f"{name}.json"


def running(state: Path) -> processes.Process | None:
    """The process that a state file speaks of, if it is still that one."""
    try:
        values = json.loads(state.read_text("utf-8"))
        known = processes.Process(values["pid"], values["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if processes.find(known.pid) == known else None


def port_of(state: Path) -> int | None:
    """The port that a service was started with."""
    port = json.loads(state.read_text("utf-8"))["port"]
    return None if port is None else int(port)


def end(state: Path) -> bool:
    """End what a state file speaks of, with its children. Returns whether it ran."""
    known = running(state)
    if known is not None:
        stop = signal.Signals(json.loads(state.read_text("utf-8")).get("stop", signal.SIGTERM))
        processes.end(known, GRACE_SECONDS, stop)
    state.unlink(missing_ok=True)
    return known is not None


def answers(address: str, credentials: str = "") -> bool:
    """Whether a server answers an address with success."""
    return ask(address, credentials) is not None


def ask(address: str, credentials: str = "") -> bytes | None:
    """What a server of this machine answers; None where it answers no success.

    :param credentials: NAME:PASSWORD, where it asks for them.
    """
    with contextlib.suppress(OSError):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is never behind a proxy
        with opener.open(_request(address, credentials), timeout=5) as response:
            return bytes(response.read())
    return None


def check_prefect(address: str, seconds: float = 5) -> None:
    """See that a Prefect server, here or elsewhere, answers in time, and takes this client.

    :raises ServiceError: it does not.
    """
    shown, known = without_credentials(address), os.environ.get(PREFECT_AUTH, "")
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=seconds):  # noqa: S310  the user's own address
            pass
        with urllib.request.urlopen(_request(f"{address.rstrip('/')}/admin/version", known), timeout=seconds):  # noqa: S310  health is told to all
            return
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # Prefect has settings of its own for these
        if isinstance(error, urllib.error.HTTPError) and error.code in _REFUSALS:
            got = "others than its own" if known else "none"
            todo = f"set {PREFECT_AUTH} to NAME:PASSWORD, as the server has it"
            raise ServiceError(f"{PREFECT_AUTH}: got {got}, wanted the credentials of the Prefect server at {shown}; {todo}") from error
        todo = "start it with make up, or unset PREFECT_API_URL to run without one"
        raise ServiceError(f"PREFECT_API_URL: no Prefect server answers at {shown}; {todo}") from error


def _request(address: str, credentials: str) -> urllib.request.Request:
    token = base64.b64encode(credentials.encode()).decode()
    return urllib.request.Request(address, headers={"Authorization": f"Basic {token}"} if credentials else {})  # noqa: S310


def as_user(name: str | None) -> dict[str, Any]:
    """What has a child process run as another user; only root may."""
    if name is None:
        return {}
    found = pwd.getpwnam(name)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def port_is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: an old connection is no user
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def _listen_to_interrupts() -> None:
    # A process started in the background of a script ignores SIGINT, and so would its children; Prefect ends by it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
