"""A real OpenSSH server on loopback, as a plain process of this user, with keys made for it."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ALIAS = "storebox"
_BINARY = "/usr/sbin/sshd"
_CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/me.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""
_CLIENT = """
Host {alias}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/me
"""


@dataclass
class Sshd:
    """`home` is that of a client whose `~/.ssh` reaches the server as `ALIAS`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(self) -> None:
        log = (self.folder / "sshd.log").open("ab")
        self.process = subprocess.Popen([_BINARY, "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=log)
        log.close()
        for _ in range(200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.05)
        raise AssertionError("sshd does not listen")

    def stop(self) -> None:
        """End it and what it serves."""
        if self.process is not None:
            sessions = self.sessions()
            self.process.kill()
            self.process.wait()
            for pid in sessions:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def sessions(self) -> list[int]:
        """The processes that serve connections."""
        assert self.process is not None
        parents: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parents.setdefault(int(path.read_text("utf-8", "replace").rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        found, waiting = list[int](), [self.process.pid]
        while waiting:
            waiting += (children := parents.get(waiting.pop(), []))
            found += children
        return found

    def send(self, number: signal.Signals) -> None:
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def serve(folder: Path) -> Iterator[Sshd]:
    """Run a server; skips where there is none, but in CI fails."""
    if not Path(_BINARY).exists():
        message = "install OpenSSH's server to run this test: apt-get install openssh-server"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it locks itself in; a service's start makes it
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    for name in ("host", "me"):
        subprocess.run([shutil.which("ssh-keygen") or "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    server = Sshd(folder, port)
    ssh = server.home / ".ssh"
    ssh.mkdir(parents=True)
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (ssh / "config").write_text(_CLIENT.format(alias=ALIAS, port=port, user=getpass.getuser(), folder=folder))
    (folder / "sshd_config").write_text(_CONFIG.format(port=port, folder=folder))
    server.start()
    try:
        yield server
    finally:
        server.stop()
